"""Two averages that the paper states without their basis, made anew on every basis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from bitta.report.row import Row, on_shared_seeds
from reproduction.claims.claim import Finding, seeds_of
from reproduction.claims.results import Results
from reproduction.claims.tables import Measured, measured, paper_table

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
"""Name, table with verdicts, table without answers, column."""
STARS = ("TENT*", "EATA*", "SAR*", "CoTTA*", "RoTTA*", "SoTTA*", "SimATTA*")


@dataclass(frozen=True, slots=True)
class Average:
    """Of some rows of one stream, in points."""

    over_best: float
    """BiTTA above the best of the rows with verdicts."""
    over_mean: float
    """BiTTA above their mean."""
    gains: Mapping[str, float] = field(default_factory=dict)
    """What each of the six without SimATTA gains by answers; none where one was not run."""
    seeds: str = ""
    over_standing: float | None = None
    """BiTTA above the mean of those that did not collapse, where some did."""
    fell: tuple[str, ...] = ()
    """Those that did, somewhere."""

    @classmethod
    def of(
        cls, bitta: float, stars: Sequence[float], plain: Sequence[float] | None, seeds: str = ""
    ) -> "Average":
        """From accuracies in the order of the rows; SimATTA has no form without answers."""
        pairs = zip(STARS, stars, plain or (), strict=False)
        gains = {_plain(name): star - before for name, star, before in pairs}
        return cls(bitta - max(stars), bitta - fmean(stars), gains, seeds)

    @property
    def from_answers(self) -> float | None:
        """What the six gain on average."""
        return fmean(self.gains.values()) if self.gains else None

    def without(self, fallen: Sequence[str], bitta: float, stars: Mapping[str, float]) -> "Average":
        """Told as well without some of the rows."""
        standing = [value for name, value in stars.items() if name not in fallen]
        if not fallen or not standing:
            return self
        return replace(self, over_standing=bitta - fmean(standing), fell=tuple(fallen))


@dataclass(frozen=True, slots=True)
class Stream:
    """One of the five, in the paper and here."""

    name: str
    paper: Average
    fair: Average | None
    handicapped: Average | None
    raised: tuple[str, ...]
    """Rows that are higher with the handicaps than without, of those run both ways."""
    n_both: int
    better: Mapping[str, Row]
    """Of a method's rows with other settings the best, where it is better than the fair one."""
    at_best: Average | None
    """BiTTA above those instead."""


def streams(results: Results) -> list[Stream]:
    """All five; ours where every row was run."""
    made = []
    for name, asked, unasked, column in _STREAMS:
        verdicts = measured(paper_table(asked), results)
        without = measured(paper_table(unasked), results)
        fair, handicapped = (_ours(verdicts, without, column, handicaps=h) for h in (False, True))
        paper = _paper(verdicts, without, column)
        raised, n_both = _raised(verdicts, column)
        better = _better(verdicts, column, results)
        at_best = fair and _over({**verdicts.ours(column), **better}, verdicts.bitta)
        made.append(Stream(name, paper, fair, handicapped, raised, n_both, better, at_best))
    return made


def gain(claimed: float, results: Results) -> Finding | None:
    """BiTTA above the mean of the rows with verdicts, on average; told above the best as well."""
    found = [stream for stream in streams(results) if stream.fair or stream.handicapped]
    told = []
    for name, ours in _ways(found):
        best, mean = fmean(o.over_best for o in ours), fmean(o.over_mean for o in ours)
        told.append(f"{name}: {best:+.1f} over the best, {mean:+.1f} over the mean")
        if any(o.fell for o in ours):
            standing = [o.over_mean if o.over_standing is None else o.over_standing for o in ours]
            told[-1] += f", {fmean(standing):+.1f} over that of rows that did not collapse"
    return _decided(told, [s.fair.over_mean if s.fair else None for s in found], claimed)


def from_answers(claimed: float, results: Results) -> Finding | None:
    """What the six methods gain by answers, on average."""
    found = [s for s in streams(results) if s.fair and s.fair.from_answers is not None]
    told = []
    for name, ours in _ways(found):
        all_gains = [o.gains for o in ours if o.gains]
        by_method = {m: fmean(gains[m] for gains in all_gains) for m in map(_plain, STARS[:-1])}
        most = max(by_method, key=lambda method: by_method[method])
        others = fmean(gain for method, gain in by_method.items() if method != most)
        mean = fmean(by_method.values())
        told.append(f"{name}: {mean:+.2f}, {others:+.2f} without {most}, which gains most")
    return _decided(told, [s.fair.from_answers if s.fair else None for s in found], claimed)


def _ways(found: Sequence[Stream]) -> list[tuple[str, list[Average]]]:
    fair = [stream.fair for stream in found if stream.fair]
    handicapped = [stream.handicapped for stream in found if stream.handicapped]
    return [
        (f"{name}, {len(ours)} of {len(_STREAMS)} streams", ours)
        for name, ours in (("fair", fair), ("with the handicaps", handicapped))
        if ours
    ]


def _decided(told: Sequence[str], fair: Sequence[float | None], claimed: float) -> Finding | None:
    """All five streams decide, without handicaps."""
    if not told:
        return None
    values = [value for value in fair if value is not None]
    whole = len(values) == len(_STREAMS)
    return Finding("; ".join(told), fmean(values) >= claimed if whole else None, whole)


def _ours(verdicts: Measured, without: Measured, column: str, *, handicaps: bool) -> Average | None:
    rows = verdicts.ours(column, handicaps=handicaps)
    if verdicts.bitta not in rows or any(star not in rows for star in STARS):
        return None
    stars = [rows[star] for star in STARS]
    originals = without.ours(column)
    plain = [originals[name] for name in map(_plain, STARS[:-1]) if name in originals]
    gains = _means(plain) if len(plain) == len(STARS) - 1 else None
    bitta = rows[verdicts.bitta]
    own, values = bitta.domain_mean.mean, _means(stars)
    average = Average.of(own, values, gains, seeds_of([bitta, *stars]))
    fallen = [star for star in STARS if rows[star].collapsed]
    return average.without(fallen, own, dict(zip(STARS, values, strict=True)))


def _over(rows: Mapping[str, Row], bitta: str) -> Average:
    return Average.of(rows[bitta].domain_mean.mean, _means([rows[s] for s in STARS]), None)


def _better(verdicts: Measured, column: str, results: Results) -> dict[str, Row]:
    """With the same answers, on the same images; handicaps and tuned models are no settings."""
    rows, found = verdicts.ours(column), {}
    for star in (star for star in STARS if star in rows):
        fair = rows[star]
        best = max(
            (other for other in results.beside(fair) if _is_other_way(other, fair)),
            key=lambda row: row.domain_mean.mean,
            default=fair,
        )
        if best.domain_mean.mean > fair.domain_mean.mean:
            found[star] = best
    return found


def _is_other_way(row: Row, fair: Row) -> bool:
    own, usual = row.settings["method"], fair.settings["method"]
    differs = any(own[key] != usual[key] for key in own.keys() & usual.keys())
    same = row.method == fair.method and row.settings["feedback"] == fair.settings["feedback"]
    return same and differs and not {"reference", "enhanced"} & set(row.apart)


def _raised(verdicts: Measured, column: str) -> tuple[tuple[str, ...], int]:
    fair, handicapped = (verdicts.ours(column, handicaps=h) for h in (False, True))
    both = [star for star in STARS if star in fair and star in handicapped]
    raised = [star for star in both if _is_raised(fair[star], handicapped[star])]
    return tuple(raised), len(both)


def _is_raised(fair: Row, handicapped: Row) -> bool:
    """With the seeds that both have."""
    before, after = on_shared_seeds([fair, handicapped])
    return after.domain_mean.mean > before.domain_mean.mean


def _paper(verdicts: Measured, without: Measured, column: str) -> Average:
    place = verdicts.table.columns.index(column)
    asked = {row.name: row.values[place] for row in verdicts.table.rows}
    unasked = {row.name: row.values[place] for row in without.table.rows}
    plain = [unasked[_plain(star)] for star in STARS[:-1]]
    return Average.of(asked[verdicts.bitta], [asked[star] for star in STARS], plain)


def _plain(star: str) -> str:
    return star.removesuffix("*")


def _means(rows: Sequence[Row]) -> list[float]:
    return [row.domain_mean.mean for row in rows]
