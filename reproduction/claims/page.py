"""docs/explanation/reproducing-the-paper.md: what the paper claims, ours beside it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from bitta.report.accuracy import spread_text
from bitta.report.cells import NOTHING, Cell, Table, as_markdown, number
from bitta.report.collapse import fallen
from bitta.report.reference_numbers import PaperRow
from bitta.report.row import Row
from reproduction.claims.averages import Average, Stream, streams
from reproduction.claims.claim import Outcome, Verdict, judged, seeds_of
from reproduction.claims.claim_list import statements
from reproduction.claims.orders import domains_led
from reproduction.claims.results import STAND_INS, Results
from reproduction.claims.tables import Measured, measured, paper_table, paper_tables

SHORT = " †"
"""Behind what was measured on streams that are shorter than the paper's."""


def reproduction_page(results: Results, reasons: Mapping[str, str], heading: str) -> str:
    """The page below a text that says what it is."""
    outcomes = {
        title: [judged(statement, results, reasons) for statement in group]
        for title, group in statements().items()
    }
    every = [outcome for group in outcomes.values() for outcome in group]
    parts = [heading.strip(), _run(results), "## Claims", _counted(every)]
    for title, group in outcomes.items():
        shown = [outcome for outcome in group if outcome.verdict is not Verdict.NOTHING]
        parts += [f"### {title}", _claims(shown, results)]
    parts += ["### Nothing to measure", _nothing(every)]
    parts += ["## Two averages", _AVERAGES, _averages(streams(results))]
    found = [measured(paper_table(table_id), results) for table_id in paper_tables()]
    there = [of for of in found if of.fair or of.handicapped]
    missing = ", ".join(of.table.place for of in found if of not in there)
    parts += ["## Tables", _TABLES + (f" Not run: {missing}." if missing else "")]
    by_id = {outcome.statement.id: outcome for outcome in every}
    for of in there:
        parts += _table(of, by_id[of.table.id], by_id.get(f"{of.table.id}/handicaps"))
    return "\n\n".join(parts) + "\n"


def _run(results: Results) -> str:
    """What lies under results/, folder by folder."""
    rows = []
    for folder, names in results.expected.items():
        for section in results.own_sections(folder):
            done = len(results.names(folder) & set(names))
            runs = sum(len(row.runs) for row in section.rows)
            shown = (
                f"`results/{folder}`", f"{done} of {len(names)}", str(runs), section.title,
                seeds_of(section.rows), f"`{section.model}`",
                ", ".join(section.environment("device")), str(len(section.environment("code"))),
            )  # fmt: skip
            rows.append([Cell(text) for text in shown])
    header = (
        "folder", "runs", "of this stream", "stream", "seeds", "model", "device",
        "versions of the code",
    )  # fmt: skip
    missing = [folder for folder in results.expected if not results.has(folder)]
    text = as_markdown(Table(header, rows, len(header))) if rows else "Nothing was run."
    if missing:
        text += f"\n\nNot run: {', '.join(f'`{folder}`' for folder in missing)}."
    for other in dict.fromkeys(STAND_INS.values()):
        used = [f"`{folder}`" for folder in STAND_INS if STAND_INS[folder] == other]
        if results.has(other):
            text += (
                f" Rows that {_listed(used)} do not have, or not yet, are those of "
                f"`results/{other}`, of its versions of the code and with one seed."
            )
    several = [
        f"`results/{folder}`"
        for folder in results.expected
        if any(len(section.environment("code")) > 1 for section in results.own_sections(folder))
    ]
    if several:
        text += (
            f"\n\nRows of different versions of the code stand side by side in {_listed(several)}; "
            "`code` in each file says which it is of."
        )
    return f"## What was run\n\n{text}"


def _counted(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.verdict for outcome in outcomes)
    told = [f"{verdict} {counts[verdict]}" for verdict in Verdict]
    return f"{len(outcomes)} statements: {', '.join(told)}."


def _claims(outcomes: Sequence[Outcome], results: Results) -> str:
    rows = []
    for outcome in outcomes:
        statement = outcome.statement
        part = statement.part or "*"
        short = any(results.is_shorter(folder, part) for folder in statement.experiments)
        ours = outcome.ours + (SHORT if short else "") if outcome.ours else NOTHING
        paper = statement.paper or NOTHING
        cells = statement.gist, statement.place, paper, ours, outcome.verdict, outcome.why
        rows.append([Cell(text) for text in cells])
    header = ("claim", "place", "paper", "ours", "holds?", "why")
    return as_markdown(Table(header, rows, len(header)))


def _nothing(outcomes: Sequence[Outcome]) -> str:
    return "\n".join(
        f"* {outcome.statement.gist} {_said(outcome.statement.paper)}{outcome.why}"
        for outcome in outcomes
        if outcome.verdict is Verdict.NOTHING
    )


def _said(paper: str) -> str:
    return f"Paper: {paper}. " if paper else ""


_AVERAGES = """\
The paper does not say what 13.3 and 1.14 points are the average of. Here: BiTTA above the best row
with a star and above the mean of all seven, and what the six without SimATTA gain by answers; first
as the tables of the paper have it, then ours with equal conditions for all (fair) and with the
handicaps of the published code, which not every row is the worse for. Rows without answers have no
handicaps: what answers add "with the handicaps" is answers and handicaps together. The paper has
methods lose 1.14 points without answers; by its tables they gain about as much without them on the
three corrupted sets, and lose on average over all five."""
_NO_AVERAGE = [Cell(NOTHING)] * 3
_TABLES = """\
Means over the stream, each domain counting once; ± over seeds. A difference is ours minus the
paper's, and there is none where our streams are shorter."""


def _averages(found: Sequence[Stream]) -> str:
    ways = ("paper", "fair", "handicaps")
    header = [
        "stream",
        *(f"{way}, {what}" for way in ways for what in ("over best", "over mean", "answers")),
    ]
    lines = [(stream.name, (stream.paper, stream.fair, stream.handicapped)) for stream in found]
    rows = [[Cell(name), *(cell for one in of for cell in _average(one))] for name, of in lines]
    ours = [way for way in (1, 2) if any(of[way] for _, of in lines)]
    run = [of for _, of in lines if ours and all(of[way] for way in ours)]
    means = [[Cell("mean"), *_average(_mean([of[0] for _, of in lines])), *_NO_AVERAGE * 2]]
    if run:
        last = [Cell("mean of the streams run")]
        for way in range(len(ways)):
            there = [average for of in run if (average := of[way]) is not None]
            last += _average(_mean(there) if there else None)
        means.append(last)
    fell = [note for stream in found for note in _fell(stream)]
    notes = f"\n\nRows that collapsed are in these means. {' '.join(fell)}" if fell else ""
    table = as_markdown(Table(header, [*rows, *means], 1))
    return table + notes + _higher(found) + _at_best(found)


def _higher(found: Sequence[Stream]) -> str:
    """Which rows the handicaps do no harm."""
    told = [
        f"{stream.name} {len(stream.raised)} of {stream.n_both}"
        + (f" ({_listed(stream.raised)})".replace("*", "\\*") if stream.raised else "")
        for stream in found
        if stream.n_both
    ]
    return f"\n\nRows that are higher with the handicaps: {'; '.join(told)}." if told else ""


def _at_best(found: Sequence[Stream]) -> str:
    """What is left of the lead where rivals have their best settings."""
    told = [
        f"{stream.name} " + ", ".join(f"{star} {row.domain_mean.mean:.2f} (`{row.name}`)"
                                      for star, row in stream.better.items())
        for stream in found if stream.better
    ]  # fmt: skip
    leads = [stream.at_best for stream in found if stream.at_best]
    if not told or not leads:
        return ""
    mean = _mean(leads)
    return (
        "\n\nRows with other settings that are better than the fair ones, chosen by this very "
        f"accuracy: {'; '.join(told)}. With these in their place BiTTA's lead is "
        f"{mean.over_best:+.1f} over the best and {mean.over_mean:+.1f} over the mean."
    ).replace("*", "\\*")


def _fell(stream: Stream) -> list[str]:
    """What is left of a lead without the rows that collapsed."""
    ways = {"fair": stream.fair, "with handicaps": stream.handicapped}
    return [
        f"{stream.name}, {way}: {number(average.over_standing, '+.1f')} over the mean without "
        f"{_listed(average.fell)}.".replace("*", "\\*")
        for way, average in ways.items()
        if average is not None and average.fell
    ]


def _mean(averages: Sequence[Average]) -> Average:
    known = [one.gains for one in averages if one.gains]
    return Average(
        fmean(one.over_best for one in averages),
        fmean(one.over_mean for one in averages),
        {method: fmean(gains[method] for gains in known) for method in (known[0] if known else ())},
    )


def _average(average: Average | None) -> list[Cell]:
    if average is None:
        return _NO_AVERAGE
    values = average.over_best, average.over_mean, average.from_answers
    return [Cell(number(value, "+.1f")) for value in values]


def _table(of: Measured, outcome: Outcome, handicaps: Outcome | None) -> list[str]:
    """Heading, what it holds, our rows beside the paper's, and the order."""
    parts = [f"### {of.table.place}", of.table.caption, _rows(of)]
    parts += [_order(one, of.shorter) for one in (outcome, handicaps) if one is not None]
    if led := domains_led(of):
        there, here = led
        n = len(of.domains)
        parts.append(f"BiTTA is best in {here} of {n} domains here, in {there} in the paper.")
    return parts


def _rows(of: Measured) -> str:
    several, handicaps = len(of.columns) > 1, bool(of.handicapped)
    header = ["row", *(["stream"] if several else []), "paper", "ours", "difference"]
    header += ["with handicaps", "difference"] if handicaps else []
    rows = []
    for column in of.shown:
        if of.ours(column) or of.ours(column, handicaps=True):
            rows += [_row(of, printed, column, handicaps) for printed in of.table.rows]
    return as_markdown(Table(header, rows, 2 if several else 1))


def _row(of: Measured, printed: PaperRow, column: str, handicaps: bool) -> list[Cell]:
    told = of.printed(printed, column)
    cells = [Cell(printed.name), *([Cell(column)] if len(of.columns) > 1 else [])]
    cells.append(Cell(number(told, f".{of.table.decimals}f")))
    for handicapped in (False, True) if handicaps else (False,):
        cells += _ours(of, of.found(printed, column, handicaps=handicapped), column, told)
    return cells


def _ours(of: Measured, row: Row | None, column: str, told: float | None) -> list[Cell]:
    if row is None:
        return [Cell(NOTHING)] * 2
    spread = of.spread(row, column)
    form = ".3f" if of.table.unit == "s" else f".{of.table.decimals}f"
    apart = None if told is None or of.shorter else spread.mean - told
    fell = f", {fallen(row)}" if row.collapsed and of.table.unit == "%" else ""
    return [Cell(spread_text(spread, form) + fell), Cell(number(apart, f"+z{form}"))]


def _order(outcome: Outcome, shorter: bool) -> str:
    gist, ours = (text.replace("*", "\\*") for text in (outcome.statement.gist, outcome.ours))
    told = f": {ours}{SHORT if shorter else ''}" if ours else ""
    return f"{gist} **{outcome.verdict.capitalize()}**{told}. {outcome.why}".strip()


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
