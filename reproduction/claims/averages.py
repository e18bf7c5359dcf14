"""Two averages that the paper states without saying what is averaged.

One is BiTTA's lead over the baselines, the other the baselines' gain by binary answers. Both are
computed in each way that fits the sentence: over the best baseline and over the mean of the
baselines, with equal conditions for all (fair) and with the conditions of the published code
(handicaps, see docs/reference/glossary.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from bitta.report.rows import Row, restrict_to_shared_seeds
from reproduction.claims.claim import Finding
from reproduction.claims.results import ResultFolders
from reproduction.claims.tables import TableComparison, compare_table, paper_table

_STREAMS = (
    ("CIFAR-10-C", "tab:tinyimagenetc/cifar10-c", "tab:app_original/cifar10-c", "mean"),
    ("CIFAR-100-C", "tab:tinyimagenetc/cifar100-c", "tab:app_original/cifar100-c", "mean"),
    (
        "Tiny-ImageNet-C", "tab:tinyimagenetc/tiny-imagenet-c",
        "tab:app_original/tiny-imagenet-c", "mean",
    ),
    ("PACS, domains", "tab:pacs_vlcs", "tab:app_original_pacs", "mean"),
    ("PACS, mixed", "tab:pacs_vlcs", "tab:app_original_pacs", "mixed-100"),
)  # fmt: skip
"""Name, table with binary answers, table without answers, column."""
BASELINES = ("TENT*", "EATA*", "SAR*", "CoTTA*", "RoTTA*", "SoTTA*", "SimATTA*")
"""Rows with binary answers. SimATTA, the last, has no form without answers."""


@dataclass(frozen=True, slots=True)
class Leads:
    """BiTTA's lead over the baselines on one stream, and their gains by answers, in points."""

    over_best: float
    """Lead over the best baseline."""
    over_mean: float
    """Lead over the mean of the baselines."""
    gains: Mapping[str, float] = field(default_factory=dict)
    """Gain by answers of each baseline except SimATTA; empty if one was not run without answers."""
    over_mean_of_stable: float | None = None
    """Lead over the mean of the baselines that did not collapse, if some did."""
    collapsed: tuple[str, ...] = ()
    """Baselines that collapsed in some domain."""

    @property
    def mean_gain(self) -> float | None:
        """Mean gain by answers."""
        return fmean(self.gains.values()) if self.gains else None


@dataclass(frozen=True, slots=True)
class StreamLeads:
    """The leads on one stream, in the paper and here."""

    name: str
    paper: Leads
    fair: Leads | None
    handicapped: Leads | None
    raised_by_handicaps: tuple[str, ...]
    """Baselines that are more accurate with the handicaps than without."""
    n_run_both_ways: int
    """Number of baselines that were run with and without the handicaps."""
    better_variants: Mapping[str, Row]
    """Best row of each baseline with other settings, if it is better than the fair row."""
    over_better_variants: Leads | None
    """The leads with these rows in place of the fair ones."""


def leads_by_stream(results: ResultFolders) -> list[StreamLeads]:
    """Compute the leads on all five streams. Ours are None if a baseline was not run."""
    return [_stream_leads(*stream, results) for stream in _STREAMS]


def check_lead(claimed: float, results: ResultFolders) -> Finding | None:
    """Check that BiTTA's fair lead over the mean of the baselines is as large as claimed."""
    found = [stream for stream in leads_by_stream(results) if stream.fair or stream.handicapped]
    summaries = []
    for heading, leads in _fair_and_handicapped(found):
        best, mean = (
            fmean(lead.over_best for lead in leads),
            fmean(lead.over_mean for lead in leads),
        )
        summary = f"{heading}: {best:+.1f} over the best, {mean:+.1f} over the mean"
        if any(lead.collapsed for lead in leads):
            stable = fmean(
                lead.over_mean if lead.over_mean_of_stable is None else lead.over_mean_of_stable
                for lead in leads
            )
            summary += f", {stable:+.1f} over the mean of the rows that did not collapse"
        summaries.append(summary)
    fair = [stream.fair.over_mean for stream in found if stream.fair]
    return _finding(summaries, fair, claimed)


def check_gain_from_answers(claimed: float, results: ResultFolders) -> Finding | None:
    """Check that six baselines gain as much by answers as claimed."""
    found = [s for s in leads_by_stream(results) if s.fair and s.fair.gains]
    summaries = []
    for heading, leads in _fair_and_handicapped(found):
        gains = [lead.gains for lead in leads if lead.gains]
        by_method = {name: fmean(gain[name] for gain in gains) for name in gains[0]}
        largest = max(by_method, key=lambda method: by_method[method])
        others = fmean(gain for method, gain in by_method.items() if method != largest)
        mean = fmean(by_method.values())
        summaries.append(
            f"{heading}: mean gain {mean:+.2f}, or {others:+.2f} without {largest}, "
            "which gains most"
        )
    fair = [stream.fair.mean_gain for stream in found if stream.fair]
    return _finding(summaries, [gain for gain in fair if gain is not None], claimed)


def mean_leads(leads: Sequence[Leads]) -> Leads:
    """Average leads over streams. Gains are averaged over the streams that have them."""
    gains = [lead.gains for lead in leads if lead.gains]
    return Leads(
        fmean(lead.over_best for lead in leads),
        fmean(lead.over_mean for lead in leads),
        {name: fmean(gain[name] for gain in gains) for name in (gains[0] if gains else ())},
    )


def _stream_leads(
    name: str, table_with: str, table_without: str, column: str, results: ResultFolders
) -> StreamLeads:
    answered = compare_table(paper_table(table_with), results)
    unanswered = compare_table(paper_table(table_without), results)
    fair = _our_leads(answered, unanswered, column, with_handicaps=False)
    raised, n_run_both_ways = _raised_by_handicaps(answered, column)
    variants = _better_variants(answered, column, results)
    rows = {**answered.our_rows(column), **variants}
    return StreamLeads(
        name,
        _paper_leads(answered, unanswered, column),
        fair,
        _our_leads(answered, unanswered, column, with_handicaps=True),
        raised,
        n_run_both_ways,
        variants,
        fair and _leads(_accuracies(rows), answered.bitta),
    )


def _fair_and_handicapped(streams: Sequence[StreamLeads]) -> list[tuple[str, list[Leads]]]:
    """Return the leads of both kinds with a heading. Leave out a kind that was not run."""
    fair = [stream.fair for stream in streams if stream.fair]
    handicapped = [stream.handicapped for stream in streams if stream.handicapped]
    return [
        (f"{kind}, {len(leads)} of {len(_STREAMS)} streams", leads)
        for kind, leads in (("fair", fair), ("with the handicaps", handicapped))
        if leads
    ]


def _finding(summaries: Sequence[str], fair: Sequence[float], claimed: float) -> Finding | None:
    """Decide by the mean over all five streams without handicaps."""
    if not summaries:
        return None
    is_complete = len(fair) == len(_STREAMS)
    holds = fmean(fair) >= claimed if is_complete else None
    return Finding("; ".join(summaries), holds, is_complete)


def _our_leads(
    answered: TableComparison, unanswered: TableComparison, column: str, *, with_handicaps: bool
) -> Leads | None:
    rows = answered.our_rows(column, with_handicaps=with_handicaps)
    if not {answered.bitta, *BASELINES} <= set(rows):
        return None
    accuracies = _accuracies(rows)
    leads = _leads(accuracies, answered.bitta, _accuracies(unanswered.our_rows(column)))
    collapsed = tuple(name for name in BASELINES if rows[name].collapsed_domains)
    stable = [accuracies[name] for name in BASELINES if name not in collapsed]
    if not collapsed or not stable:
        return leads
    over_stable = accuracies[answered.bitta] - fmean(stable)
    return replace(leads, over_mean_of_stable=over_stable, collapsed=collapsed)


def _paper_leads(answered: TableComparison, unanswered: TableComparison, column: str) -> Leads:
    index = answered.table.columns.index(column)
    with_answers = {row.name: row.values[index] for row in answered.table.rows}
    without = {row.name: row.values[index] for row in unanswered.table.rows}
    return _leads(with_answers, answered.bitta, without)


def _leads(
    accuracies: Mapping[str, float], bitta: str, without_answers: Mapping[str, float] | None = None
) -> Leads:
    """Compute leads from accuracies by printed name."""
    baselines = [accuracies[name] for name in BASELINES]
    before = without_answers or {}
    names = {_without_star(name): name for name in BASELINES[:-1]}
    is_known = set(names) <= set(before)
    gains = {plain: accuracies[star] - before[plain] for plain, star in names.items() if is_known}
    lead = accuracies[bitta]
    return Leads(lead - max(baselines), lead - fmean(baselines), gains)


def _better_variants(
    answered: TableComparison, column: str, results: ResultFolders
) -> dict[str, Row]:
    """Find better rows of the baselines among those with the same answers and images."""
    rows, found = answered.our_rows(column), {}
    for name in (name for name in BASELINES if name in rows):
        fair = rows[name]
        others = results.rows_on_same_images(fair)
        best = max(
            (other for other in others if _is_variant(other, fair)),
            key=lambda row: row.domain_mean.mean,
            default=fair,
        )
        if best.domain_mean.mean > fair.domain_mean.mean:
            found[name] = best
    return found


def _is_variant(row: Row, fair: Row) -> bool:
    """Return True if only settings of the method differ. Handicaps and fine-tuning do not count."""
    own, usual = row.settings["method"], fair.settings["method"]
    differs = any(own[key] != usual[key] for key in own.keys() & usual.keys())
    is_alike = row.method == fair.method and row.settings["feedback"] == fair.settings["feedback"]
    return is_alike and differs and not {"reference", "prepared"} & set(row.qualifiers)


def _raised_by_handicaps(answered: TableComparison, column: str) -> tuple[tuple[str, ...], int]:
    """Return the raised baselines, and the number of baselines that were run both ways."""
    fair = answered.our_rows(column)
    handicapped = answered.our_rows(column, with_handicaps=True)
    both = [name for name in BASELINES if name in fair and name in handicapped]
    return tuple(name for name in both if _is_raised(fair[name], handicapped[name])), len(both)


def _is_raised(fair: Row, handicapped: Row) -> bool:
    """Compare two rows by the seeds that both have."""
    before, after = restrict_to_shared_seeds([fair, handicapped])
    return after.domain_mean.mean > before.domain_mean.mean


def _accuracies(rows: Mapping[str, Row]) -> dict[str, float]:
    return {name: row.domain_mean.mean for name, row in rows.items()}


def _without_star(name: str) -> str:
    return name.removesuffix("*")
