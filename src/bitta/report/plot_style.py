"""Parts that all plots share: method styles, labels, legends, captions, and the choice of rows."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import TYPE_CHECKING
from zlib import crc32

from bitta.errors import InputError
from bitta.report.rows import Row, format_range
from bitta.report.sections import Section
from bitta.report.seed_statistics import Spread

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito, 2008, without their yellow, which is too pale for a line.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
# More colours. Colour-blind readers can tell them from those above and from their shades.
SAND, VIOLET, BROWN, MID_GREY = "#C0A860", "#4818A8", "#603018", "#696969"
GREY, DARK_GREY, LIGHT_GREY = "#999999", "#595959", "#D9D9D9"

DASHES = ("solid", "dashed", "dashdot", "dotted")
FIGURE_WIDTH = 6.2
"""Width of most plots in inches. Text stays legible on a phone."""
SMALL, NORMAL = 9.0, 10.0
"""Font sizes in points."""
FONTS = ["DejaVu Sans", "Verdana", "sans-serif"]
"""Fonts of an SVG. Verdana is as wide as DejaVu Sans, so text keeps its position in a browser."""
COLLAPSE_MARK = "†"
"""Mark of a collapsed row."""

_THIN = 1.5
_SHADES = (0.0, -0.4, 0.4, -0.65, 0.6)
"""Shades of a method's lines; negative values mix with black, positive ones with white."""
_ALWAYS_DRAWN = ("source", "bn_stats", "bitta")
"""Methods that are drawn first if only some rows fit."""
_MAX_LABEL_LETTERS = 44
_MAX_OMITTED_NAMES = 8


@dataclass(frozen=True, slots=True)
class Plot:
    """Figure with a heading and a caption."""

    name: str
    """Name for a file, without suffix."""
    heading: str
    caption: str
    figure: "Figure"


@dataclass(frozen=True, slots=True)
class LineStyle:
    """Colour, dash pattern, marker and width of a line."""

    colour: str
    dash: str
    marker: str
    width: float = _THIN


_METHOD_STYLES = {
    "source": LineStyle(MID_GREY, "dotted", "x"),
    "bn_stats": LineStyle(SKY, "dashdot", "v"),
    "tent": LineStyle(ORANGE, "dashed", "s"),
    "deyo": LineStyle(ORANGE, "dashdot", "d"),
    "eata": LineStyle(GREEN, "dashed", "^"),
    "eta": LineStyle(GREEN, "dashdot", "<"),
    "sar": LineStyle(BLUE, "dashed", "D"),
    "sotta": LineStyle(VIOLET, "dashdot", ">"),
    "cotta": LineStyle(PURPLE, "dashed", "P"),
    "rotta": LineStyle(SAND, "dashdot", "X"),
    "tast": LineStyle(BROWN, "dashed", "p"),
    "owttt": LineStyle(BROWN, "dashdot", "h"),
    "simatta": LineStyle(BLACK, "solid", "*"),
    "bitta": LineStyle(VERMILION, "solid", "o", width=2.4),
    "self_tuning": LineStyle(VERMILION, "dashed", "o"),
}
"""Style of each method in all plots. Methods of the paper's Table 1 have different colours."""


def method_style(method: str) -> LineStyle:
    """Return the style of a method. An unknown method gets one that depends on its name only."""
    if method in _METHOD_STYLES:
        return _METHOD_STYLES[method]
    others = [style for name, style in _METHOD_STYLES.items() if name not in ("source", "bitta")]
    return others[crc32(method.encode()) % len(others)]


def line_styles(methods: Sequence[str]) -> list[LineStyle]:
    """Return a style for each line of a plot.

    Further lines of a method are thin and have another dash pattern and shade.
    """
    n_lines: Counter[str] = Counter()
    styles = []
    for method in methods:
        style, n_earlier = method_style(method), n_lines[method]
        if n_earlier:
            dash = DASHES[(DASHES.index(style.dash) + n_earlier) % len(DASHES)]
            colour = _mix_with_black_or_white(style.colour, _SHADES[n_earlier % len(_SHADES)])
            style = replace(style, dash=dash, colour=colour, width=_THIN)
        styles.append(style)
        n_lines[method] += 1
    return styles


def _mix_with_black_or_white(colour: str, shade: float) -> str:
    target = 255 if shade > 0 else 0
    channels = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return "#" + "".join(f"{round(c + abs(shade) * (target - c)):02X}" for c in channels)


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure. Width and height are in inches."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 (an extra, loaded when needed)
    except ImportError:
        raise InputError(
            'plots need matplotlib; install it with pip install "bitta[report]".'
        ) from None
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def style_axes(axes: "Axes", *, grid: str = "both") -> None:
    """Set frame, font sizes and grid lines. `grid` is "x", "y" or "both"."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=SMALL, color=GREY)
    axes.xaxis.label.set_fontsize(NORMAL)
    axes.yaxis.label.set_fontsize(NORMAL)
    axes.title.set_fontsize(NORMAL)
    axes.grid(visible=True, axis=grid, color=LIGHT_GREY, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def add_legend_below(figure: "Figure", *panels: "Axes", columns: int) -> None:
    """Add one legend for all panels under the plot. Each label appears once."""
    handles: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    # A character is about 0.55 of the font size wide, and a handle as wide as seven characters.
    n_letters = 72 * figure.get_size_inches()[0] / (0.55 * SMALL)
    n_fitting = max(1, int(n_letters / (7 + max(map(len, handles)))))
    figure.legend(
        handles.values(), handles, loc="outside lower center",
        ncols=min(columns, n_fitting, len(handles)), fontsize=SMALL, frameon=False,
        handlelength=2.8,
    )  # fmt: skip


def escape_dollars(text: str) -> str:
    """Escape dollar signs, which matplotlib would read as mathematics."""
    return text.replace("$", r"\$")


def row_label(row: Row, *, max_letters: int = _MAX_LABEL_LETTERS) -> str:
    """Return the title of a row, shortened, with a mark if the row has collapsed."""
    title = escape_dollars(shorten(row.title, max_letters, placeholder=" …"))
    return f"{title} {COLLAPSE_MARK}" if row.collapsed_domains else title


def error_bars(spreads: Sequence[Spread]) -> list[float] | None:
    """Return the standard deviations, or None if every mean is of one seed."""
    deviations = [spread.deviation or 0.0 for spread in spreads]
    return deviations if any(spread.n_seeds > 1 for spread in spreads) else None


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Rows that a plot shows and rows that it omits, most accurate first."""

    drawn: tuple[Row, ...]
    omitted: tuple[Row, ...]

    @property
    def note(self) -> str:
        """Sentences about omitted and collapsed rows; empty if there are none."""
        return join_sentences(self._omission_note, collapse_note(self.drawn))

    @property
    def _omission_note(self) -> str:
        if not self.omitted:
            return ""
        names = join_names([row.title for row in self.omitted], max_names=_MAX_OMITTED_NAMES)
        return f"Not drawn for lack of space: {names}."


def select_rows(
    rows: Sequence[Row], max_rows: int, *, max_per_method: int | None = None
) -> RowSelection:
    """Select the source model, BN-Stats and BiTTA, then other methods, then further rows.

    A method is represented by its best row. A row that learned from full labels represents it only
    if the method has no other row.
    """
    by_accuracy = sorted(rows, key=lambda row: -row.accuracy.mean)
    best: dict[str, Row] = {}
    for row in sorted(by_accuracy, key=lambda row: row.answer_kind == "full"):
        best.setdefault(row.method, row)
    rows_of_method: dict[str, list[Row]] = {}
    for row in by_accuracy:
        rows_of_method.setdefault(row.method, []).append(row)
    candidates = [best[method] for method in _ALWAYS_DRAWN if method in best]
    candidates += best.values()
    candidates += [r for r in by_accuracy if r in rows_of_method[r.method][:max_per_method]]
    names = list(dict.fromkeys(row.name for row in candidates))[:max_rows]
    return RowSelection(
        tuple(row for row in by_accuracy if row.name in names),
        tuple(row for row in by_accuracy if row.name not in names),
    )


def join_names(names: Sequence[str], *, max_names: int) -> str:
    """Join names with commas and "and".

    >>> join_names(["a", "b", "c"], max_names=3), join_names(["a", "b", "c"], max_names=2)
    ('a, b and c', 'a, b and 1 more')
    """
    if len(names) > max_names:
        return f"{', '.join(names[:max_names])} and {len(names) - max_names} more"
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def join_sentences(*sentences: str) -> str:
    """Join the sentences that are not empty."""
    return " ".join(sentence for sentence in sentences if sentence)


def collapse_note(rows: Iterable[Row]) -> str:
    """Explain the mark of collapsed rows; empty if no row has collapsed."""
    has_collapsed = any(row.collapsed_domains for row in rows)
    return f"{COLLAPSE_MARK} collapsed, see the table." if has_collapsed else ""


def seeds_phrase(rows: Sequence[Row]) -> str:
    """Return the number of seeds per row, such as "mean of 1 to 3 seeds"."""
    counts = [len(row.runs) for row in rows]
    if max(counts) > 1:
        return f"mean of {format_range(counts)} seeds"
    seeds = {seed for row in rows for seed in row.runs}
    return f"seed {seeds.pop()}" if len(seeds) == 1 else "one seed per row"


def deviation_phrase(section: Section) -> str:
    """Return the end of a caption that explains error bars; empty for one seed."""
    return ", with the standard deviation over seeds" if len(section.seeds) > 1 else ""
