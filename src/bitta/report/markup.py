"""HTML and SVG as text; whatever comes from a file is escaped here."""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any

from bitta.report.style import FONTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LARGE = 150_000
"""Characters; a larger SVG is weighed against a PNG."""
_PNG_DPI = 160


def element(name: str, *content: str, **attributes: str | None) -> str:
    """An element around markup; attributes are escaped, and left out where they are None.

    >>> element("th", "mean", scope="col", class_=None)
    '<th scope="col">mean</th>'
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    told = "".join(f' {key}="{escape(value)}"' for key, value in given.items() if value is not None)
    return f"<{name}{told}>{''.join(content)}</{name}>"


def text(value: object) -> str:
    """Anything, as text that is no markup."""
    return escape(str(value))


def pairs(table: Mapping[str, str], *, class_: str) -> str:
    """Names and values."""
    parts = (
        element("div", element("dt", text(name)), element("dd", text(value)))
        for name, value in table.items()
    )
    return element("dl", *parts, class_=class_)


def bullets(items: Iterable[str]) -> str:
    """A list of markup."""
    return element("ul", *(element("li", item) for item in items))


def scrolling(content: str, *, label: str, class_: str) -> str:
    """A box that scrolls sideways by itself, with keys as well."""
    return element("div", content, class_=class_, role="region", aria_label=label, tabindex="0")


def drawing(figure: "Figure", *, name: str, shows: str) -> str:
    """A figure as SVG inside the page, or as PNG where that is smaller; `shows` says what."""
    svg = _svg(figure, name, shows)
    if len(svg) <= _LARGE:
        return svg
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=_PNG_DPI)
    source = f"data:image/png;base64,{b64encode(buffer.getvalue()).decode()}"
    png = f'<img src="{source}" alt="{escape(shows)}" {_width(figure)}>'
    return min(svg, png, key=len)


def _svg(figure: "Figure", name: str, shows: str) -> str:
    import matplotlib  # noqa: PLC0415 (an extra, loaded when needed)

    buffer = StringIO()
    # Text stays text, and nothing depends on the day or on chance.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.sans-serif": FONTS[:-1]}
    silent = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(settings):
        figure.savefig(buffer, format="svg", metadata=silent)
    return _inlined(buffer.getvalue(), name, f'aria-label="{escape(shows)}" {_width(figure)}')


def _inlined(svg: str, name: str, attributes: str) -> str:
    """Fit to stand in a page: no prologue, no ids that another drawing has, short numbers."""
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    _, _, inside = svg[svg.index("<svg") :].partition(">")
    found = re.search(r'viewBox="([^"]*)"', svg)
    assert found, "matplotlib gives every drawing a viewBox"
    inside = inside.replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', inside))
    inside = re.sub(
        r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", inside
    )
    inside = re.sub(r'(href="|url\()#', rf"\g<1>#{name}-", inside)
    # Coordinates stand in tags; what stands between them are words and the numbers on axes.
    inside = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), inside)
    inside = re.sub(r"\s*\n\s*", "\n", inside)
    return f'<svg viewBox="{found[1]}" role="img" {attributes}>{inside.strip()}'


def _width(figure: "Figure") -> str:
    """How wide it was made, so that letters are as large in all drawings."""
    return f'style="--inches: {figure.get_size_inches()[0]:.2f}"'
