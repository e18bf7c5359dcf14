"""The plots of a section, each with a sentence about what it shows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bitta.report.calibration_plot import FEWEST_SAMPLES, has_reliability, reliability_figure
from bitta.report.choice import Choice, choose, collapse_note, label_of
from bitta.report.cost_plot import compared, cost_figure, prices_of
from bitta.report.domain_plot import MOST_BARS, bars_figure, map_figure
from bitta.report.ece_plot import ece_figure, has_policies
from bitta.report.memory_plot import memory_figure, tells_apart
from bitta.report.names import between
from bitta.report.over_time import (
    Line,
    accuracy_figure,
    agreement_figure,
    confidence_figure,
    has_confidence,
    window_of,
)
from bitta.report.row import Row
from bitta.report.rows import Section
from bitta.report.style import looks_of
from bitta.report.sweep_plot import sweep_figure
from bitta.report.sweeps import Sweep, sweeps_of
from bitta.report.time_plot import MOST_MARKS, MOST_OF_ONE, has_times, time_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_LINES = 8
_MOST_DIAGRAMS = 6
_MOST_PANELS = 3
_MOST_SWEEPS = 8


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure to be shown or saved."""

    name: str
    """Fit for a file name."""
    heading: str
    caption: str
    """What it shows, in sentences."""
    figure: "Figure"


def plots_of(section: Section) -> Iterable[tuple[str, "Figure"]]:
    """The figures that make sense for a section, by name."""
    return ((plot.name, plot.figure) for plot in captioned(section))


def captioned(section: Section) -> Iterator[Plot]:
    """The same with words."""
    yield from _sweeps(section)
    if prices := prices_of(section):
        yield _cost(section, prices)
    yield _over_time(section)
    if len(section.domains) > 1 and len(section.rows) > 1:
        yield _by_domain(section)
    if sound := [row for row in section.rows if has_reliability(row)]:
        yield _reliability(sound)
    if measured := [row for row in section.rows if row.first.agreement.n_measured]:
        yield _agreement(measured)
    if sure := [row for row in section.rows if all(map(has_confidence, row.runs.values()))]:
        yield _confidence(sure)
    if has_times(section):
        yield _time(section)
    if tells_apart(section):
        yield _memory(section)


def _over_time(section: Section) -> Plot:
    choice = choose(section.rows, _MOST_LINES)
    looks = looks_of([row.method for row in choice.shown])
    lines = [
        Line(f"{label_of(row)} ({row.accuracy.mean:.1f})", look, list(row.runs.values()))
        for row, look in zip(choice.shown, looks, strict=True)
    ]
    window = window_of(section.rows[0].first)
    told = (
        f"Accuracy along the stream: percent right of the last {window} batches, "
        f"{_seeds(choice.shown)}; in brackets that of the whole stream."
    )
    caption = _sentences(told, _left_out(choice))
    return Plot("accuracy-over-time", "Accuracy over time", caption, accuracy_figure(lines))


def _by_domain(section: Section) -> Plot:
    heading = "Accuracy by domain"
    if len(section.rows) > MOST_BARS:
        against = "points won or lost against the source model" if section.source else "accuracy"
        told = f"Every row in every domain, {against}, {_seeds(section.rows)}."
        told = _sentences(told, collapse_note(section.rows))
        return Plot("accuracy-by-domain", heading, told, map_figure(section))
    told = f"Accuracy in each domain, {_seeds(section.rows)}."
    told = _sentences(told, collapse_note(section.rows))
    return Plot("accuracy-by-domain", heading, told, bars_figure(section, section.rows))


def _sweeps(section: Section) -> Iterator[Plot]:
    for sweep in sweeps_of(section)[:_MOST_SWEEPS]:
        name = sweep.key.replace(".", "-").replace("_", "-")
        told = f"Accuracy over the whole stream against {sweep.title}{_bars(section)}."
        drawn = [row for series in sweep.series for row in series.rows]
        drawn += [level.row for level in sweep.levels]
        caption = _sentences(told, _levels(sweep), collapse_note(drawn))
        figure = sweep_figure(section, sweep)
        yield Plot(f"accuracy-against-{name}", f"Accuracy and {sweep.title}", caption, figure)
        if has_policies(sweep):
            told = f"Calibration error of the policy π against {sweep.title}{_bars(section)}."
            caption = _sentences(told, collapse_note(drawn))
            heading = f"Calibration and {sweep.title}"
            yield Plot(f"calibration-against-{name}", heading, caption, ece_figure(sweep))


def _bars(section: Section) -> str:
    return ", with the standard deviation over seeds" if len(section.seeds) > 1 else ""


def _levels(sweep: Sweep) -> str:
    names = " and ".join(level.label for level in sweep.levels)
    return f"Level, as this setting has no effect there: {names}." if names else ""


def _reliability(sound: Sequence[Row]) -> Plot:
    choice = choose(sound, _MOST_DIAGRAMS)
    told = (
        "How often predictions of each confidence are right; bars on the dashed line would be "
        "ideal, hatching is the gap, and ECE its mean. "
        f"Bins of fewer than {FEWEST_SAMPLES} samples are not drawn."
    )
    if any(row.policy_ece for row in choice.shown):
        told += " The line with dots is the policy π, where it was computed."
    caption = _sentences(told, _left_out(choice))
    figure = reliability_figure(choice.shown)
    return Plot("reliability", "Reliability", caption, figure)


def _agreement(measured: Sequence[Row]) -> Plot:
    choice = choose(measured, _MOST_PANELS)
    told = (
        "How often the policy's first choice is what was served, and how much of it is right "
        f"where they agree and where they do not, {_seeds(choice.shown)}."
    )
    caption = _sentences(told, _left_out(choice))
    rows = {label_of(row): list(row.runs.values()) for row in choice.shown}
    return Plot("agreement-over-time", "Agreement over time", caption, agreement_figure(rows))


def _confidence(measured: Sequence[Row]) -> Plot:
    choice = choose(measured, _MOST_PANELS)
    told = (
        "How sure the model is of the labels it serves: the mean over samples, right or wrong, "
        f"{_seeds(choice.shown)}."
    )
    if any(row.policy_ece for row in choice.shown):
        told += " Dashed is the policy π, where it was computed, and what it would serve."
    caption = _sentences(told, _left_out(choice))
    rows = {label_of(row): list(row.runs.values()) for row in choice.shown}
    return Plot("confidence-over-time", "Confidence over time", caption, confidence_figure(rows))


def _cost(section: Section, prices: Mapping[str, float]) -> Plot:
    choice = compared(section)
    told = (
        "Accuracy against what answers cost per batch, in verdicts, of rows that learned from some"
        f"{_bars(section)}; a panel for each way to count what a full label is worth. Hollow marks "
        "learned from full labels."
    )
    caption = _sentences(told, _left_out(choice))
    figure = cost_figure(section, choice.shown, prices)
    return Plot("accuracy-against-cost", "Accuracy and cost of answers", caption, figure)


def _time(section: Section) -> Plot:
    device = ", ".join(section.environment("device"))
    choice = choose(section.rows, MOST_MARKS, of_one=MOST_OF_ONE)
    told = f"Accuracy against time per batch on {device}; filled marks learned from answers."
    figure = time_figure(choice.shown)
    return Plot(
        "accuracy-against-time", "Accuracy and time", _sentences(told, _left_out(choice)), figure
    )


def _memory(section: Section) -> Plot:
    device = ", ".join(section.environment("device"))
    told = f"The most memory that tensors took on {device}{_bars(section)}."
    caption = _sentences(told, collapse_note(section.rows))
    return Plot("memory", "Memory", caption, memory_figure(section))


def _seeds(rows: Sequence[Row]) -> str:
    """What each row is a mean of; some may have fewer seeds than others."""
    counts = [len(row.runs) for row in rows]
    if max(counts) > 1:
        return f"mean of {between(counts)} seeds"
    seeds = {seed for row in rows for seed in row.runs}
    return f"seed {seeds.pop()}" if len(seeds) == 1 else "one seed each"


def _left_out(choice: Choice) -> str:
    return _sentences(choice.told, collapse_note(choice.shown))


def _sentences(*parts: str) -> str:
    return " ".join(part for part in parts if part)
