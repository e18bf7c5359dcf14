"""Report as one HTML page that needs no other file."""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any

from bitta.errors import InputError
from bitta.report.comparison import Comparison
from bitta.report.plot_style import FONTS, Plot
from bitta.report.plots import section_plots
from bitta.report.rows import Row, format_value
from bitta.report.sections import Section, differing_keys
from bitta.report.tables import Table, accuracy_table, measures_table
from bitta.report.text_report import SECTIONS_NOTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HASH_DIGITS = 12
_LARGE_SVG = 150_000
"""Length above which an SVG is compared with a PNG. The shorter one is used."""
_PNG_DPI = 160


@dataclass(frozen=True, slots=True)
class Drawing:
    """Image inside the page: an SVG or a PNG."""

    width: str
    """Width in inches, so that text has the same size in all drawings."""
    view_box: str = ""
    svg: str = ""
    """Content of the SVG element as markup."""
    png: str = ""
    """PNG file in base64; empty for an SVG."""


@dataclass(frozen=True, slots=True)
class PageFigure:
    """Figure of a page."""

    heading: str
    caption: str
    drawing: Drawing


@dataclass(frozen=True, slots=True)
class PageSection:
    """Content of one section of the page, as the template takes it."""

    heading: str
    protocol: str
    facts: Mapping[str, str]
    collapse_notes: Sequence[str]
    accuracy: Table
    collapsed_rows: Sequence[int]
    measures: Table
    figures: Sequence[PageFigure]
    shared_settings: Mapping[str, str]
    own_settings: Sequence[tuple[str, Mapping[str, str]]]
    """Title and settings of each row."""


def report_page(comparisons: Sequence[Comparison], *, title: str) -> str:
    """Return the report as HTML. The template escapes all text that comes from files."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 (an extra)
    except ImportError:
        raise InputError(
            'the page needs Jinja2; install it with pip install "bitta[report]".'
        ) from None
    environment = Environment(
        loader=PackageLoader("bitta.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    headings = _headings([comparison.section for comparison in comparisons])
    sections = [
        _page_section(comparison, heading, number)
        for number, (comparison, heading) in enumerate(
            zip(comparisons, headings, strict=True), start=1
        )
    ]
    template = environment.get_template("report.html")
    page = template.render(title=title, sections=sections, sections_note=SECTIONS_NOTE)
    return page.strip() + "\n"


def _headings(sections: Sequence[Section]) -> list[str]:
    """Return a heading per section. Equal headings get the hash of the code."""
    plain = [f"{section.title}, {section.model}" for section in sections]
    return [
        heading if plain.count(heading) == 1 else f"{heading}, code {_hashes(section, 'code')}"
        for heading, section in zip(plain, sections, strict=True)
    ]


def _page_section(comparison: Comparison, heading: str, number: int) -> PageSection:
    section = comparison.section
    collapse_notes, accuracy = comparison.collapse_notes, accuracy_table(comparison)
    shared, own = _split_settings(section.rows)
    return PageSection(
        heading=heading,
        protocol=section.protocol,
        facts=_facts(section),
        collapse_notes=collapse_notes,
        accuracy=_means_first(accuracy, section, without_notes=collapse_notes),
        collapsed_rows=[index for index, row in enumerate(section.rows) if row.collapsed_domains],
        measures=measures_table(comparison),
        figures=[
            _page_figure(plot, id_prefix=f"s{number}-{plot.name}")
            for plot in section_plots(section)
        ],
        shared_settings=shared,
        own_settings=own,
    )


def _facts(section: Section) -> dict[str, str]:
    """Return the conditions of the runs: results of different conditions are not comparable."""
    facts = {
        "Model": section.model,
        "Source weights": _hashes(section, "source_weights"),
        "Device": ", ".join(section.environment_values("device")),
        "CPU threads": ", ".join(section.environment_values("threads")),
        "Seeds": ", ".join(map(str, section.seeds)),
        "bitta": ", ".join(section.environment_values("bitta")),
        "torch": ", ".join(section.environment_values("torch")),
        "Python": ", ".join(section.environment_values("python")),
        "Code": _hashes(section, "code"),
    }
    return {name: value or "not recorded" for name, value in facts.items()}


def _hashes(section: Section, key: str) -> str:
    return ", ".join(value[:_HASH_DIGITS] for value in section.environment_values(key))


def _means_first(table: Table, section: Section, *, without_notes: Sequence[str]) -> Table:
    """Move the columns of domains to the end, so that a narrow screen shows the mean first."""
    n_domains = len(section.domain_sizes)
    if n_domains == 1:
        n_domains = len(section.mixed_stream_points)
    start = table.n_text_columns
    stop = start + n_domains
    order = [start - 1, *range(start - 1), *range(stop, len(table.header)), *range(start, stop)]
    return Table(
        [table.header[column] for column in order],
        [[row[column] for column in order] for row in table.rows],
        start,
        [note for note in table.notes if note not in without_notes],
    )


def _split_settings(
    rows: Sequence[Row],
) -> tuple[dict[str, str], list[tuple[str, dict[str, str]]]]:
    """Return the settings that all rows share, and each row's title with its own settings."""
    tables = [
        {
            f"{group}.{key}": format_value(value)
            for group, values in row.settings.items()
            for key, value in values.items()
        }
        for row in rows
    ]
    own_keys = set(differing_keys(tables))
    shared = {key: value for key, value in tables[0].items() if key not in own_keys}
    own = [
        (row.title, {key: value for key, value in table.items() if key in own_keys})
        for row, table in zip(rows, tables, strict=True)
    ]
    return shared, own


def _page_figure(plot: Plot, *, id_prefix: str) -> PageFigure:
    return PageFigure(plot.heading, plot.caption, _draw(plot.figure, id_prefix))


def _draw(figure: "Figure", id_prefix: str) -> Drawing:
    """Return the figure as SVG, or as PNG if the SVG is large and the PNG is smaller."""
    width = f"{figure.get_size_inches()[0]:.2f}"
    view_box, svg = _svg_content(_save_svg(figure, id_prefix), id_prefix)
    if len(svg) > _LARGE_SVG:
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=_PNG_DPI)
        png = b64encode(buffer.getvalue()).decode()
        if len(png) < len(svg):
            return Drawing(width, png=png)
    return Drawing(width, view_box, svg)


def _save_svg(figure: "Figure", salt: str) -> str:
    """Return the SVG file of a figure. Text stays text, and no date or random id is in it."""
    import matplotlib  # noqa: PLC0415 (an extra, loaded when needed)

    buffer = StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": salt, "font.sans-serif": FONTS[:-1]}
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(settings):
        figure.savefig(buffer, format="svg", metadata=no_metadata)
    return buffer.getvalue()


def _svg_content(svg: str, id_prefix: str) -> tuple[str, str]:
    """Return view box and inner markup of an SVG file, ready to be embedded in a page.

    Metadata and unused ids are removed, ids get a prefix that is unique in the page, and
    coordinates are cut to two decimals.
    """
    from markupsafe import Markup  # noqa: PLC0415 (comes with Jinja2)

    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    view_box = re.search(r'viewBox="([^"]*)"', svg)
    assert view_box, "matplotlib gives every SVG a viewBox"
    _, _, content = svg[svg.index("<svg") :].partition(">")
    content = content.rpartition("</svg>")[0].replace("xlink:href", "href")
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', content))
    content = re.sub(
        r' id="([^"]*)"', lambda m: f' id="{id_prefix}-{m[1]}"' if m[1] in used else "", content
    )
    content = re.sub(r'(href="|url\()#', rf"\g<1>#{id_prefix}-", content)
    # Coordinates are inside tags. Text between tags, such as axis labels, keeps its digits.
    content = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), content)
    content = re.sub(r"\s*\n\s*", "\n", content)
    return view_box[1], Markup(content.strip())
