"""The page that lists the paper's claims, and our numbers beside the paper's."""

from collections import Counter
from collections.abc import Mapping, Sequence

from bitta.report.paper_numbers import PaperRow
from bitta.report.rows import Row, format_range, format_seeds
from bitta.report.tables import DASH, Cell, Table, format_number, format_spread
from reproduction.claims.averages import Leads, StreamLeads, leads_by_stream, mean_leads
from reproduction.claims.claim import ClaimStatus, Outcome, evaluate_claim, seeds_text
from reproduction.claims.claim_list import claims_by_heading
from reproduction.claims.orders import count_best_domains
from reproduction.claims.results import SUBSTITUTE_FOLDERS, ResultFolders
from reproduction.claims.tables import TableComparison, compare_table, paper_table, paper_tables
from reproduction.paths import RESULTS, relative

SHORTER_MARK = " †"
"""Mark of a number that was measured on streams shorter than the paper's."""


def reproduction_page(results: ResultFolders, reasons: Mapping[str, str], introduction: str) -> str:
    """Return the page in Markdown. `introduction` is its first part.

    `reasons` explain claims that fail, by the id of the claim.
    """
    outcomes = {
        title: [evaluate_claim(claim, results, reasons) for claim in claims]
        for title, claims in claims_by_heading().items()
    }
    every = [outcome for group in outcomes.values() for outcome in group]
    parts = [introduction.strip(), _results_section(results), "## Claims", _status_counts(every)]
    for title, group in outcomes.items():
        shown = [o for o in group if o.status is not ClaimStatus.NOT_MEASURABLE]
        parts += [f"### {title}", _claims_table(shown, results)]
    parts += ["### Not measurable", _not_measurable_list(every)]
    parts += ["## Two averages", _AVERAGES, _averages_section(leads_by_stream(results))]
    comparisons = [compare_table(paper_table(table_id), results) for table_id in paper_tables()]
    with_rows = [c for c in comparisons if c.fair or c.handicapped]
    missing = ", ".join(c.table.title for c in comparisons if c not in with_rows)
    parts += ["## Tables", _TABLES + (f" Not run: {missing}." if missing else "")]
    by_id = {outcome.claim.id: outcome for outcome in every}
    for comparison in with_rows:
        table_id = comparison.table.id
        found = (by_id[table_id], by_id.get(f"{table_id}/handicaps"))
        parts += _table_section(comparison, [outcome for outcome in found if outcome])
    return "\n\n".join(parts) + "\n"


# Results.


def _results_section(results: ResultFolders) -> str:
    """List the results, one line per folder, protocol and source model."""
    rows = []
    for folder, names in results.expected.items():
        for section in results.own_sections(folder):
            n_done = len(results.run_names(folder) & set(names))
            n_runs = sum(len(row.runs) for row in section.rows)
            cells = (
                _folder(folder), f"{n_done} of {len(names)}", str(n_runs), section.title,
                seeds_text(section.rows), f"`{section.model}`",
                ", ".join(section.environment_values("device")),
                str(len(section.environment_values("code"))),
            )  # fmt: skip
            rows.append([Cell(text) for text in cells])
    header = (
        "folder", "runs", "runs on this stream", "stream", "seeds", "model", "device",
        "versions of the code",
    )  # fmt: skip
    table = Table(header, rows, len(header)).as_markdown() if rows else "Nothing was run."
    return f"## What was run\n\n{table}{_results_notes(results)}"


def _results_notes(results: ResultFolders) -> str:
    """Name the folders without results, with substitute rows, or with several code versions."""
    text = ""
    if missing := [folder for folder in results.expected if not results.has_results(folder)]:
        text += f"\n\nNot run: {', '.join(f'`{folder}`' for folder in missing)}."
    for substitute in dict.fromkeys(SUBSTITUTE_FOLDERS.values()):
        users = [f"`{f}`" for f in SUBSTITUTE_FOLDERS if SUBSTITUTE_FOLDERS[f] == substitute]
        if results.has_results(substitute):
            text += (
                f"\n\nRows that are missing in {_joined(users)} come from "
                f"{_folder(substitute)}. They have one seed and the versions of the code of that "
                "folder."
            )
    several = [
        _folder(folder)
        for folder in results.expected
        if any(
            len(section.environment_values("code")) > 1 for section in results.own_sections(folder)
        )
    ]
    if several:
        text += (
            f"\n\nThese folders have rows of several versions of the code: {_joined(several)}. "
            "The field `code` of each file identifies the version."
        )
    return text


# Claims.


def _status_counts(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.status for outcome in outcomes)
    listed = ", ".join(f"{status} {counts[status]}" for status in ClaimStatus)
    return f"Status of the {len(outcomes)} claims: {listed}."


def _claims_table(outcomes: Sequence[Outcome], results: ResultFolders) -> str:
    rows = []
    for outcome in outcomes:
        claim = outcome.claim
        runs = claim.runs or "*"
        tables = paper_tables().values()
        has_other_length = any(
            results.has_other_lengths(folder, tables, runs) for folder in claim.experiments
        )
        mark = SHORTER_MARK if has_other_length else ""
        ours = outcome.summary + mark if outcome.summary else DASH
        paper = claim.paper or DASH
        cells = claim.text, claim.location, paper, ours, outcome.status, outcome.reason
        rows.append([Cell(text) for text in cells])
    header = ("claim", "location", "paper", "ours", "status", "reason, or command for missing runs")
    return Table(header, rows, len(header)).as_markdown()


def _not_measurable_list(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for outcome in outcomes:
        if outcome.status is ClaimStatus.NOT_MEASURABLE:
            paper = f"Paper: {outcome.claim.paper}. " if outcome.claim.paper else ""
            lines.append(f"* {outcome.claim.text} {paper}{outcome.reason}")
    return "\n".join(lines)


# The two averages.

_AVERAGES = """\
The paper states two averages, 13.3 points and 1.14 points. It does not say what they are averages
of. The table has three numbers per stream, in points:

* **over best**: BiTTA's lead over the best row with a star;
* **over mean**: BiTTA's lead over the mean of all seven rows with a star;
* **answers**: the mean gain from answers of the six methods without SimATTA.

Each number is given three times:

* **paper**: according to the paper's tables;
* **fair**: in our rows with equal conditions for all methods;
* **handicaps**: in our rows with the handicaps of the published code. They do not lower every row.
  Rows without answers have no handicaps, so the column "handicaps, answers" has the effect of
  answers and handicaps together.

The paper says that the methods lose 1.14 points without answers. According to its tables they gain
about as much without answers on the three corrupted data sets. Over all five streams they lose on
average."""
_NO_LEADS = [Cell(DASH)] * 3


def _averages_section(streams: Sequence[StreamLeads]) -> str:
    table = _averages_table(streams).as_markdown()
    collapses = [note for stream in streams for note in _collapse_notes(stream)]
    if collapses:
        table += f"\n\nThese means include collapsed rows. {' '.join(collapses)}"
    return table + _raised_note(streams) + _variants_note(streams)


def _averages_table(streams: Sequence[StreamLeads]) -> Table:
    header = [
        "stream",
        *(
            f"{kind}, {column}"
            for kind in ("paper", "fair", "handicaps")
            for column in ("over best", "over mean", "answers")
        ),
    ]
    triples = [(stream.paper, stream.fair, stream.handicapped) for stream in streams]
    rows = [
        [Cell(stream.name), *(cell for leads in triple for cell in _lead_cells(leads))]
        for stream, triple in zip(streams, triples, strict=True)
    ]
    paper_mean = mean_leads([paper for paper, _, _ in triples])
    rows.append([Cell("mean"), *_lead_cells(paper_mean), *_NO_LEADS * 2])
    kinds_run = [kind for kind in (1, 2) if any(triple[kind] for triple in triples)]
    run = [triple for triple in triples if all(triple[kind] for kind in kinds_run)]
    if kinds_run and run:
        cells = [Cell("mean of the streams run")]
        for leads_of_kind in zip(*run, strict=True):
            known = [leads for leads in leads_of_kind if leads is not None]
            cells += _lead_cells(mean_leads(known) if known else None)
        rows.append(cells)
    return Table(header, rows, 1)


def _lead_cells(leads: Leads | None) -> list[Cell]:
    if leads is None:
        return _NO_LEADS
    return [
        Cell(format_number(value, "+.1f"))
        for value in (leads.over_best, leads.over_mean, leads.mean_gain)
    ]


def _collapse_notes(stream: StreamLeads) -> list[str]:
    """Give the lead over the baselines that did not collapse, for each kind of run."""
    kinds = {"fair": stream.fair, "with handicaps": stream.handicapped}
    return [
        f"{stream.name}, {kind}: {format_number(leads.over_mean_of_stable, '+.1f')} over the mean "
        f"without {_joined(leads.collapsed)}.".replace("*", "\\*")
        for kind, leads in kinds.items()
        if leads is not None and leads.collapsed
    ]


def _raised_note(streams: Sequence[StreamLeads]) -> str:
    """List the baselines that are more accurate with the handicaps."""
    notes = []
    for stream in streams:
        raised = stream.raised_by_handicaps
        if stream.n_run_both_ways:
            names = f" ({_joined(raised)})".replace("*", "\\*") if raised else ""
            notes.append(f"{stream.name} {len(raised)} of {stream.n_run_both_ways}{names}")
    return f"\n\nRows with a higher accuracy with handicaps: {'; '.join(notes)}." if notes else ""


def _variants_note(streams: Sequence[StreamLeads]) -> str:
    """Give BiTTA's lead over the baselines with their best settings."""
    notes = []
    for stream in streams:
        rows = [
            f"{name} {row.domain_mean.mean:.2f} (`{row.name}`)"
            for name, row in stream.better_variants.items()
        ]
        if rows:
            notes.append(f"{stream.name} {', '.join(rows)}")
    leads = [stream.over_better_variants for stream in streams if stream.over_better_variants]
    if not notes or not leads:
        return ""
    mean = mean_leads(leads)
    return (
        "\n\nSome methods with a star have a better row with other settings: "
        f"{'; '.join(notes)}. These rows are chosen by the accuracy that is compared here. If they "
        f"replace the fair rows, BiTTA's lead is {mean.over_best:+.1f} over the best and "
        f"{mean.over_mean:+.1f} over the mean."
    ).replace("*", "\\*")


# Tables of the paper.

_TABLES = """\
An accuracy is the mean over the domains of a stream, with equal weights. ± is the standard
deviation over seeds. A difference is our number minus the paper's. It is left out if our streams
are shorter than the paper's."""


def _table_section(comparison: TableComparison, outcomes: Sequence[Outcome]) -> list[str]:
    """Return heading, caption, our rows beside the paper's, and the claims about the order."""
    parts = [f"### {comparison.table.title}", comparison.table.caption, _rows_table(comparison)]
    parts += [_order_text(outcome, comparison) for outcome in outcomes]
    if counts := count_best_domains(comparison):
        in_paper, here = counts
        n = len(comparison.domains)
        parts.append(
            f"BiTTA is best in {here} of {n} domains here, and in {in_paper} in the paper."
        )
    return parts


def _rows_table(comparison: TableComparison) -> str:
    has_columns, has_handicaps = len(comparison.columns) > 1, bool(comparison.handicapped)
    header = ["row", *(["stream"] if has_columns else []), "paper", "ours", "difference"]
    header += ["with handicaps", "difference"] if has_handicaps else []
    rows = []
    for column in comparison.shown_columns:
        if comparison.our_rows(column) or comparison.our_rows(column, with_handicaps=True):
            rows += [_row_cells(comparison, row, column) for row in comparison.table.rows]
    return Table(header, rows, 2 if has_columns else 1).as_markdown()


def _row_cells(comparison: TableComparison, paper_row: PaperRow, column: str) -> list[Cell]:
    paper = comparison.paper_value(paper_row, column)
    cells = [Cell(paper_row.name)]
    if len(comparison.columns) > 1:
        cells.append(Cell(column))
    cells.append(Cell(format_number(paper, f".{comparison.table.decimals}f")))
    for with_handicaps in (False, True) if comparison.handicapped else (False,):
        row = comparison.our_row(paper_row, column, with_handicaps=with_handicaps)
        cells += _our_cells(comparison, row, column, paper)
    return cells


def _our_cells(
    comparison: TableComparison, row: Row | None, column: str, paper: float | None
) -> list[Cell]:
    """Return our number and its difference from the paper's."""
    if row is None:
        return [Cell(DASH)] * 2
    ours, unit = comparison.our_value(row, column), comparison.table.unit
    form = ".3f" if unit == "s" else f".{comparison.table.decimals}f"
    is_comparable = paper is not None and not comparison.has_other_lengths
    difference = ours.mean - paper if paper is not None and is_comparable else None
    collapse = f", {_describe_collapse(row)}" if row.collapsed_domains and unit == "%" else ""
    return [
        Cell(format_spread(ours, form) + collapse),
        Cell(format_number(difference, f"+z{form}")),
    ]


def _order_text(outcome: Outcome, comparison: TableComparison) -> str:
    text, ours = (t.replace("*", "\\*") for t in (outcome.claim.text, outcome.summary))
    mark = SHORTER_MARK if comparison.has_other_lengths else ""
    summary = f": {ours}{mark}" if ours else ""
    is_missing_runs = outcome.status in (ClaimStatus.NOT_RUN, ClaimStatus.PARTLY_RUN)
    reason = f"Command for missing runs: {outcome.reason}" if is_missing_runs else outcome.reason
    return f"{text} **{outcome.status.capitalize()}**{summary}. {reason}".strip()


def _folder(name: str) -> str:
    return f"`{relative(RESULTS)}/{name}`"


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _describe_collapse(row: Row) -> str:
    """Return domains and seeds in which a row collapsed: "collapsed in 9 to 10 of 15 domains"."""
    n_domains = format_range([len(domains) for domains in row.collapsed_domains.values()])
    is_partial = len(row.collapsed_domains) < len(row.runs)
    seeds = f" with {format_seeds(row.collapsed_domains)}" if is_partial else ""
    return f"collapsed in {n_domains} of {len(row.accuracy_by_domain)} domains{seeds}"
