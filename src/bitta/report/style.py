"""One look for all plots: safe for the colour-blind, and told apart in grey by dash and marker."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from zlib import crc32

from bitta.errors import InputError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito, 2008, without their yellow, which is too pale for a line.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
# Theirs are too few; these are far from them, and from their shades, to every kind of eye.
SAND, VIOLET, BROWN, MID_GREY = "#C0A860", "#4818A8", "#603018", "#696969"
GREY, DARK_GREY, RULE = "#999999", "#595959", "#D9D9D9"

DASHES = ("solid", "dashed", "dashdot", "dotted")
WIDE = 6.2
"""Inches: most plots are as wide, which leaves letters legible on a phone."""
SMALL, NORMAL = 9.0, 10.0
"""Sizes of letters, in points."""
FONTS = ["DejaVu Sans", "Verdana", "sans-serif"]
"""The second is as wide as the first, so that text set by a browser keeps its place."""


_THIN = 1.5
_SHADES = (0.0, -0.4, 0.4, -0.65, 0.6)
"""Towards black, and towards white."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a method is drawn."""

    colour: str
    dash: str
    marker: str
    width: float = _THIN


_LOOKS = {
    "source": Look(MID_GREY, "dotted", "x"),
    "bn_stats": Look(SKY, "dashdot", "v"),
    "tent": Look(ORANGE, "dashed", "s"),
    "deyo": Look(ORANGE, "dashdot", "d"),
    "eata": Look(GREEN, "dashed", "^"),
    "eta": Look(GREEN, "dashdot", "<"),
    "sar": Look(BLUE, "dashed", "D"),
    "sotta": Look(VIOLET, "dashdot", ">"),
    "cotta": Look(PURPLE, "dashed", "P"),
    "rotta": Look(SAND, "dashdot", "X"),
    "tast": Look(BROWN, "dashed", "p"),
    "owttt": Look(BROWN, "dashdot", "h"),
    "simatta": Look(BLACK, "solid", "*"),
    "bitta": Look(VERMILION, "solid", "o", width=2.4),
}
"""A method looks the same in every plot; those of the paper's Table 1 share no colour."""


def look_of(method: str) -> Look:
    """A method's own look; one that is not known gets some look, always the same."""
    if method in _LOOKS:
        return _LOOKS[method]
    others = [look for name, look in _LOOKS.items() if name not in ("source", "bitta")]
    return others[crc32(method.encode()) % len(others)]


def looks_of(methods: Sequence[str]) -> list[Look]:
    """A look for each line of a plot; a method's second is in another dash and shade, and thin."""
    seen: Counter[str] = Counter()
    looks = []
    for method in methods:
        look, place = look_of(method), seen[method]
        if place:
            dash = DASHES[(DASHES.index(look.dash) + place) % len(DASHES)]
            colour = _shaded(look.colour, _SHADES[place % len(_SHADES)])
            look = replace(look, dash=dash, colour=colour, width=_THIN)
        looks.append(look)
        seen[method] += 1
    return looks


def literal(words: str) -> str:
    """A name from a file, in which a dollar is no mathematics."""
    return words.replace("$", r"\$")


def _shaded(colour: str, shade: float) -> str:
    """Mixed with white, or with black where `shade` is negative."""
    goal = 255 if shade > 0 else 0
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(part + abs(shade) * (goal - part)):02X}" for part in parts)


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 (an extra, loaded when needed)
    except ImportError:
        raise InputError(
            'plots need matplotlib; install it with pip install "bitta[report]".'
        ) from None
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def dress(axes: "Axes", *, grid: str = "both") -> None:
    """A quiet frame; `grid` is "x", "y" or "both"."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=SMALL, color=GREY)
    axes.xaxis.label.set_fontsize(NORMAL)
    axes.yaxis.label.set_fontsize(NORMAL)
    axes.title.set_fontsize(NORMAL)
    axes.grid(visible=True, axis=grid, color=RULE, linewidth=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def legend_below(figure: "Figure", *panels: "Axes", columns: int) -> None:
    """Under the plot, where it covers nothing; what several panels have is told once."""
    found: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    # A letter is about .55 of its size wide, and a handle takes the room of seven.
    room = 72 * figure.get_size_inches()[0] / (0.55 * SMALL)
    fitting = max(1, int(room / (7 + max(map(len, found)))))
    figure.legend(
        found.values(), found, loc="outside lower center", ncols=min(columns, fitting, len(found)),
        fontsize=SMALL, frameon=False, handlelength=2.8,
    )  # fmt: skip
