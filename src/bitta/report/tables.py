"""Tables of accuracy, of other measures, and of single runs, as text and as Markdown."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bitta.report.comparison import Comparison
from bitta.report.paper_numbers import match_costs
from bitta.report.rows import Row, format_value
from bitta.report.seed_statistics import Spread
from bitta.results import RunResult

DASH = "–"
"""Text of a cell without a value."""

DomainColumns = Literal["spreads", "means", "short", "none"]
"""Columns of domains: mean and deviation, means, means under short names, or none."""

_MAX_TITLE_LETTERS = 24
"""Maximum length of a column title that is not shortened."""
_SHORT_DOMAIN_NAMES: Mapping[str, str] = {
    "gaussian_noise": "gaus", "shot_noise": "shot", "impulse_noise": "impu",
    "defocus_blur": "defo", "glass_blur": "glas", "motion_blur": "moti", "zoom_blur": "zoom",
    "snow": "snow", "frost": "fros", "fog": "fog", "brightness": "brig", "contrast": "cont",
    "elastic_transform": "elas", "pixelate": "pixe", "jpeg_compression": "jpeg",
}  # fmt: skip
_QUARTERS = ["1st", "2nd", "3rd", "4th quarter"]
_BOLD, _NOT_BOLD = "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of a table."""

    text: str
    is_best: bool = False
    """True if the cell has the best value of its column and is printed bold."""
    mark: str = ""
    """Mark after the text. The digits of the column stay aligned."""


@dataclass(frozen=True, slots=True)
class Table:
    """Header, rows and notes."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    n_text_columns: int
    """Number of columns at the left that hold text. The others hold numbers."""
    notes: Sequence[str] = ()

    def as_text(self, *, bold: bool) -> str:
        """Return aligned columns. `bold` allows escape codes of a terminal."""
        columns = range(len(self.header))
        mark_widths = [max(len(row[column].mark) for row in self.rows) for column in columns]
        rows = [list(self.header)]
        rows += [
            [
                cell.text + cell.mark.ljust(width)
                for cell, width in zip(row, mark_widths, strict=True)
            ]
            for row in self.rows
        ]
        bold_cells = {
            (index, column)
            for index, row in enumerate(self.rows, start=1)
            for column, cell in enumerate(row)
            if bold and cell.is_best
        }
        return text_table(rows, n_text_columns=self.n_text_columns, bold=bold_cells)

    def as_markdown(self) -> str:
        """Return a GitHub table. The best values are bold."""
        columns = range(len(self.header))
        rule = ["---" if column < self.n_text_columns else "---:" for column in columns]
        rows = [[_markdown_cell(cell) for cell in row] for row in self.rows]
        lines = [[_escape_markdown(title) for title in self.header], rule, *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def text_table(
    rows: Sequence[Sequence[str]],
    *,
    n_text_columns: int = 1,
    bold: Collection[tuple[int, int]] = (),
) -> str:
    """Return aligned columns. Text is aligned left, numbers right; `bold` holds (row, column)."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for index, row in enumerate(rows):
        cells = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padded = cell.rjust(width) if column >= n_text_columns else cell.ljust(width)
            cells.append(f"{_BOLD}{padded}{_NOT_BOLD}" if (index, column) in bold else padded)
        lines.append("  ".join(cells).rstrip())
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def _markdown_cell(cell: Cell) -> str:
    text = _escape_markdown(cell.text)
    return (f"**{text}**" if cell.is_best else text) + cell.mark


def _escape_markdown(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def format_number(value: float | None, spec: str) -> str:
    """Return the number, or a dash for None.

    >>> format_number(1.25, "+.1f"), format_number(None, ".1f")
    ('+1.2', '–')
    """
    return DASH if value is None else f"{value:{spec}}"


def format_spread(spread: Spread | None, spec: str, *, with_deviation: bool = True) -> str:
    """Return mean and deviation, such as "87.20 ± 0.31"; the mean for one seed; a dash for None.

    >>> format_spread(Spread(87.2, 0.31, 3), ".2f"), format_spread(None, ".2f")
    ('87.20 ± 0.31', '–')
    """
    if spread is None:
        return DASH
    mean = f"{spread.mean:{spec}}"
    if spread.deviation is None or not with_deviation:
        return mean
    return f"{mean} ± {spread.deviation:{spec}}"


class _TableBuilder:
    """Table that is built column by column."""

    def __init__(self, n_rows: int) -> None:
        self.header: list[str] = []
        self.rows: list[list[Cell]] = [[] for _ in range(n_rows)]

    def add_column(self, title: str, cells: Iterable[Cell]) -> None:
        self.header.append(title)
        for row, cell in zip(self.rows, cells, strict=True):
            row.append(cell)

    def add_texts(self, title: str, texts: Iterable[str]) -> None:
        self.add_column(title, map(Cell, texts))

    def add_numbers(self, title: str, values: Iterable[float | None], spec: str) -> None:
        self.add_texts(title, (format_number(value, spec) for value in values))

    def add_spreads(
        self,
        title: str,
        spreads: Sequence[Spread | None],
        spec: str,
        *,
        best: Literal["highest", "lowest", "none"],
        with_deviation: bool = True,
    ) -> None:
        best_rows = _best_rows(spreads, best)
        self.add_column(
            title,
            (
                Cell(format_spread(spread, spec, with_deviation=with_deviation), row in best_rows)
                for row, spread in enumerate(spreads)
            ),
        )


def _best_rows(
    spreads: Sequence[Spread | None], best: Literal["highest", "lowest", "none"]
) -> set[int]:
    """Return the rows with the best mean. Ties are all best; a single value is not."""
    means = [spread.mean for spread in spreads if spread is not None]
    if len(means) < 2 or best == "none":
        return set()
    best_mean = min(means) if best == "lowest" else max(means)
    return {row for row, s in enumerate(spreads) if s is not None and s.mean == best_mean}


def seeds_note(comparison: Comparison) -> str:
    """Return a note on the seeds of the standard deviations, and on rows with fewer seeds."""
    section = comparison.section
    seeds = section.seeds
    if len(seeds) == 1:
        return f"One seed ({seeds[0]}), so there is no standard deviation."
    note = f"Mean ± standard deviation over seeds {', '.join(map(str, seeds))}."
    fewer = [
        f"{row.title}: {', '.join(map(str, row.runs))}"
        for row in section.rows
        if tuple(row.runs) != seeds
    ]
    return note + (f" Fewer seeds: {'; '.join(fewer)}." if fewer else "")


def accuracy_table(comparison: Comparison, domain_columns: DomainColumns = "spreads") -> Table:
    """Return accuracy by domain and its mean, the paper's mean, and the test of each row."""
    section, rows = comparison.section, comparison.section.rows
    table = _TableBuilder(len(rows))
    for key in section.swept_settings:
        table.add_texts(key.rpartition(".")[2], (_setting_text(row, key) for row in rows))
    table.add_texts("method", (row.title_without(section.swept_settings) for row in rows))
    _add_domain_columns(table, comparison, domain_columns)
    title = "mean" if len(section.domain_sizes) > 1 else "accuracy"
    table.add_spreads(title, [row.accuracy for row in rows], ".2f", best="highest")
    for cells, row in zip(table.rows, rows, strict=True):
        if row.collapsed_domains:
            cells[-1] = replace(cells[-1], mark=" †")
    if matches := comparison.paper_matches:
        paper = (matches[row.name].mean if row.name in matches else None for row in rows)
        table.add_numbers("paper", paper, ".2f")
        table.add_numbers("difference", map(comparison.difference_to_paper, rows), "+z.2f")
    if comparison.tests:
        tests = [comparison.tests.get(row.name) for row in rows]
        table.add_numbers(
            f"vs {_shorten_title(comparison.baseline.title)}",
            (test.median_difference if test else None for test in tests),
            "+z.1f",
        )
        table.add_texts("p", (_format_p(test.p) if test else DASH for test in tests))
    notes = _accuracy_notes(comparison, domain_columns)
    return Table(table.header, table.rows, len(section.swept_settings) + 1, notes)


def fit_accuracy_table(comparison: Comparison, width: int) -> Table:
    """Return the accuracy table with as much about domains as fits into `width` characters."""
    choices: tuple[DomainColumns, ...] = ("spreads", "means", "short", "none")
    for domain_columns in choices:
        table = accuracy_table(comparison, domain_columns)
        if max(map(len, table.as_text(bold=False).splitlines())) <= width:
            break
    return table


def _add_domain_columns(
    table: _TableBuilder, comparison: Comparison, domain_columns: DomainColumns
) -> None:
    """Add a column per domain, or per point of a mixed stream."""
    section, rows = comparison.section, comparison.section.rows
    if domain_columns == "none":
        return
    domains = list(section.domain_sizes)
    for domain in domains if len(domains) > 1 else []:
        short = _SHORT_DOMAIN_NAMES.get(domain, domain[:6])
        table.add_spreads(
            short if domain_columns == "short" else domain,
            [row.accuracy_by_domain[domain] for row in rows],
            ".1f",
            best="highest",
            with_deviation=domain_columns == "spreads",
        )
    for name, fraction in section.mixed_stream_points.items():
        title = f"first {name.removeprefix('mixed-')} %"
        spreads = [row.accuracy_after(fraction) for row in rows]
        table.add_spreads(title, spreads, ".1f", best="highest")


def _accuracy_notes(comparison: Comparison, domain_columns: DomainColumns) -> list[str]:
    has_stars = any("*" in row.title for row in comparison.section.rows)
    stars = ["* learns from verdicts (correct or incorrect), as BiTTA does."] if has_stars else []
    return [
        *comparison.collapse_notes,
        *stars,
        seeds_note(comparison),
        *_omission_note(comparison, domain_columns),
        *comparison.paper_notes,
        *comparison.test_notes,
    ]


def _omission_note(comparison: Comparison, domain_columns: DomainColumns) -> list[str]:
    """Return a note on parts of the table that did not fit."""
    has_deviations = len(comparison.section.seeds) > 1
    if len(comparison.section.domain_sizes) == 1 or domain_columns == "spreads":
        return []
    if domain_columns == "none":
        return ["Domains do not fit: widen the window, or use --format csv."]
    if domain_columns == "short":
        missing = ", and deviations of the domains do not fit" if has_deviations else ""
        return [f"Names of the domains are shortened to fit{missing}."]
    return ["Deviations of the domains do not fit."] if has_deviations else []


def _setting_text(row: Row, key: str) -> str:
    """Return the value of a setting. A row without answers has no errors or delays of answers."""
    has_no_effect = key.startswith("feedback.") and key != "feedback.n_queries"
    if has_no_effect and row.answer_kind == "none":
        return DASH
    return format_value(row.effective_settings.get(key))


def _shorten_title(title: str) -> str:
    """Shorten the brackets of a long title. The note below the table has the whole title."""
    name, bracket, _ = title.partition(" (")
    return f"{name} (…)" if bracket and len(title) > _MAX_TITLE_LETTERS else title


def _format_p(p: float) -> str:
    return "<.001" if p < 0.001 else f"{p:.3f}"


@dataclass(frozen=True, slots=True)
class Measure:
    """Number of a run other than accuracy."""

    key: str
    """Name in CSV files."""
    title: str
    value_of: Callable[[RunResult], float | None]
    spec: str
    """Format specification."""
    is_lowest_best: bool = False
    """True if the lowest value is printed bold."""
    paper_unit: str = ""
    """Unit of the paper's table of this measure; empty if there is none."""
    units_per_paper_unit: float = 1.0
    """Factor from the paper's unit to ours."""


def _benefit_points(run: RunResult) -> float | None:
    return None if run.benefit is None else 100 * run.benefit.estimate


MEASURES: Mapping[str, Sequence[Measure]] = {
    "ece": (
        Measure("ece", "ECE %", lambda run: run.ece, ".1f", is_lowest_best=True),
        Measure(
            "policy_ece", "policy's ECE %", lambda run: run.policy_ece, ".1f", is_lowest_best=True
        ),
    ),
    "brier": (Measure("brier", "Brier", lambda run: run.brier, ".3f", is_lowest_best=True),),
    "agreement": (Measure("agreement", "agreement %", lambda run: run.agreement.rate, ".1f"),),
    "benefit": (Measure("benefit", "benefit", _benefit_points, "+.1f"),),
    "questions": (
        Measure("questions", "questions", lambda run: run.total("n_asked"), ".0f"),
        Measure("answers", "answers", lambda run: run.total("n_answered"), ".0f"),
    ),
    "ms": (
        Measure(
            "ms", "ms/batch", lambda run: 1000 * run.seconds_per_batch, ".1f",
            paper_unit="s", units_per_paper_unit=1000.0,
        ),
        Measure("forwards", "forwards", lambda run: run.forwards / run.total("n"), ".1f"),
    ),
    "memory": (
        Measure("peak_mb", "peak MB", lambda run: run.peak_memory / 1e6, ".0f", paper_unit="MB"),
    ),
}  # fmt: skip
"""Measures by their name in `--measure`."""
CALIBRATION_MEASURES = ("ece", "brier", "agreement", "benefit")
"""Names of the measures that are not about questions or cost."""
_PAPER_MEASURE_NOTE = (
    "Paper: its table of this measure, on other hardware; difference: ours minus the paper's."
)


def measures_table(
    comparison: Comparison,
    names: Sequence[str] = tuple(MEASURES),
    *,
    with_deviations: bool = True,
) -> Table:
    """Return a table with a column per measure that some row has, and the paper's numbers."""
    rows, notes = comparison.section.rows, list[str]()
    table = _TableBuilder(len(rows))
    table.add_texts("method", (row.title for row in rows))
    if len(comparison.section.seeds) > 1:
        notes.append(seeds_note(comparison) if with_deviations else "Means over seeds.")
    for measure in (measure for name in names for measure in MEASURES[name]):
        spreads = [row.spread_of(measure.value_of) for row in rows]
        if not any(spreads):
            continue
        table.add_spreads(
            measure.title,
            [_without_zero_deviation(spread) for spread in spreads],
            measure.spec,
            best="lowest" if measure.is_lowest_best else "none",
            with_deviation=with_deviations,
        )
        if paper_values := paper_values_of(measure, comparison):
            paper = [paper_values.get(row.name) for row in rows]
            table.add_numbers("paper", paper, measure.spec)
            table.add_numbers("difference", map(_difference, spreads, paper), f"+z{measure.spec}")
            notes.append(_PAPER_MEASURE_NOTE)
    return Table(table.header, table.rows, 1, notes)


def paper_values_of(measure: Measure, comparison: Comparison) -> dict[str, float]:
    """Return the paper's numbers in our unit by row name. Few measures have them."""
    if not measure.paper_unit:
        return {}
    matches = match_costs(comparison.section, comparison.paper, measure.paper_unit)
    return {name: match.mean * measure.units_per_paper_unit for name, match in matches.items()}


def _without_zero_deviation(spread: Spread | None) -> Spread | None:
    """Remove a deviation of 0: counts that all seeds share are exact."""
    return None if spread is None else replace(spread, deviation=spread.deviation or None)


def _difference(spread: Spread | None, paper: float | None) -> float | None:
    return None if spread is None or paper is None else spread.mean - paper


def summary_rows(results: Mapping[str, RunResult]) -> list[list[str]]:
    """Return a header and a row per run: accuracy, calibration, questions and time.

    Accuracy is by domain, or by quarter of the stream if there is one domain. The Brier score has
    a column if a run recorded it.
    """
    has_domains = len({step.domain for result in results.values() for step in result.steps}) > 1
    first = next(iter(results.values()))
    parts = list(first.accuracy_by_domain) if has_domains else _QUARTERS[: len(first.steps)]
    has_brier = any(result.brier is not None for result in results.values())
    measures = ["mean", "ECE", *(["Brier"] if has_brier else [])]
    header = ["method", *parts, *measures, "questions", "answers", '"correct"', "s/batch"]
    rows = (
        [name, *_summary_cells(result, has_domains=has_domains, has_brier=has_brier)]
        for name, result in results.items()
    )
    return [header, *rows]


def _summary_cells(result: RunResult, *, has_domains: bool, has_brier: bool) -> list[str]:
    quarters = result.accuracy_by_part(min(len(_QUARTERS), len(result.steps)))
    parts = list(result.accuracy_by_domain.values()) if has_domains else quarters
    ece = "-" if result.ece is None else f"{result.ece:.1f}"
    brier = "-" if result.brier is None else f"{result.brier:.3f}"
    return [
        *(f"{part:.1f}" for part in parts),
        f"{result.accuracy:.1f}",
        ece,
        *([brier] if has_brier else []),
        str(result.total("n_asked")),
        str(result.total("n_answered")),
        str(result.total("n_answered_correct")),
        f"{result.seconds_per_batch:.3f}",
    ]


def agreement_line(result: RunResult) -> str:
    """Return a sentence on agreement of policy and served labels; empty if it was not measured."""
    agreement = result.agreement
    if agreement.rate is None:
        return ""
    accuracies = {
        "if they agree": agreement.accuracy_agreeing,
        "if they differ": agreement.accuracy_disagreeing,
    }
    parts = [
        f"{accuracy:.1f} % {condition}"
        for condition, accuracy in accuracies.items()
        if accuracy is not None
    ]
    return f"policy and served label agree on {agreement.rate:.1f} %; accuracy {', '.join(parts)}"


def benefit_line(result: RunResult) -> str:
    """Return a sentence on the benefit of learning; empty if it was not measured."""
    if (benefit := result.benefit) is None:
        return ""
    return f"difference in accuracy to the source model: {benefit}"


def collapse_line(result: RunResult) -> str:
    """Return a warning about a collapsed run; empty if it has not collapsed."""
    if batch := result.first_nan_batch:
        return (
            f"batch {batch} of {len(result.steps)} is the first whose predictions are all NaN: the "
            "weights have diverged; try a smaller method.lr."
        )
    domains = result.looks_collapsed
    if not domains:
        return ""
    return (
        f"this run looks collapsed in {', '.join(domains)}: the labels served there are nearly "
        "all of a few classes."
    )
