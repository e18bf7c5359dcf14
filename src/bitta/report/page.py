"""Everything about some results on one page, which needs nothing but itself."""

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from bitta.report.accuracy import accuracy_table
from bitta.report.beside import beside_table
from bitta.report.cells import Cell, Table
from bitta.report.comparison import Comparison, compare
from bitta.report.document import APART
from bitta.report.figures import Plot, captioned
from bitta.report.markup import bullets, drawing, element, pairs, scrolling, text
from bitta.report.names import shown
from bitta.report.reference_numbers import NO_PAPER, PaperTables
from bitta.report.row import Row
from bitta.report.rows import Section, differing
from bitta.statefile import write_atomically

_SHORT_HASH = 12
_BESIDE = "How far confidence can be trusted, and what a row took; the best calibration in bold."


def write_page(
    sections: Sequence[Section],
    path: Path,
    *,
    title: str,
    paper: PaperTables = NO_PAPER,
    against: str | None = None,
) -> None:
    """Write one HTML file; `paper` and `against` as in `compare`."""
    compared = [compare(section, paper=paper, against=against) for section in sections]
    write_atomically(path, page(compared, title=title).encode())


def page(compared: Sequence[Comparison], *, title: str) -> str:
    """The same as text."""
    headings = _headings([comparison.section for comparison in compared])
    style = (files("bitta") / "assets" / "report.css").read_text(encoding="utf-8")
    head = (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{element('title', text(title))}{element('style', style)}"
    )
    body = [
        element("header", element("h1", text(title)), _contents(headings)),
        element("main", *map(_section, compared, headings, range(1, len(compared) + 1))),
    ]
    whole = element("html", element("head", head), "\n", element("body", *body), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _headings(sections: Sequence[Section]) -> list[str]:
    """What each is about; its code where others are about the same."""
    plain = [f"{section.title}, {section.model}" for section in sections]
    return [
        heading if plain.count(heading) == 1 else f"{heading}, code {_hashes(section, 'code')}"
        for heading, section in zip(plain, sections, strict=True)
    ]


def _contents(headings: Sequence[str]) -> str:
    if len(headings) == 1:
        return ""
    links = (
        element("a", text(heading), href=f"#section-{number}")
        for number, heading in enumerate(headings, start=1)
    )
    nav = element("nav", element("h2", "Contents"), bullets(links), aria_label="Contents")
    return nav + element("p", text(APART))


def _section(comparison: Comparison, heading: str, number: int) -> str:
    section = comparison.section
    plots = (_figure(plot, f"s{number}-{plot.name}") for plot in captioned(section))
    return element(
        "section",
        element("h2", text(heading), id=f"section-{number}-heading"),
        element("p", text(section.protocol), class_="protocol"),
        pairs(_circumstances(section), class_="facts"),
        element("h3", "Accuracy"),
        _accuracy(comparison),
        element("h3", "Calibration, questions and cost"),
        _table(beside_table(comparison), [], caption=_BESIDE),
        *plots,
        element("h3", "Settings"),
        _settings(section.rows),
        id=f"section-{number}",
        aria_labelledby=f"section-{number}-heading",
    )


def _circumstances(section: Section) -> dict[str, str]:
    """What a result must not be compared without."""
    told = {
        "Model": section.model,
        "Source weights": _hashes(section, "source_weights"),
        "Device": ", ".join(section.environment("device")),
        "CPU threads": ", ".join(section.environment("threads")),
        "Seeds": ", ".join(map(str, section.seeds)),
        "bitta": ", ".join(section.environment("bitta")),
        "torch": ", ".join(section.environment("torch")),
        "Python": ", ".join(section.environment("python")),
        "Code": _hashes(section, "code"),
    }
    return {name: value or "not told" for name, value in told.items()}


def _hashes(section: Section, key: str) -> str:
    return ", ".join(value[:_SHORT_HASH] for value in section.environment(key))


def _accuracy(comparison: Comparison) -> str:
    section, table = comparison.section, accuracy_table(comparison)
    collapsed = [bool(row.collapsed) for row in section.rows]
    warning = ""
    if notes := comparison.collapse_notes:
        warned = bullets(text(line.strip()) for line in notes[1:])
        warning = element("div", element("p", text(notes[0])), warned, class_="warning")
    n_domains = len(section.domains) if len(section.domains) > 1 else len(section.points)
    rest = bullets(text(note) for note in table.notes if note not in notes)
    caption = "Accuracy in percent, the whole stream first, then its domains; the best in bold."
    return (
        warning
        + _table(_means_first(table, n_domains), collapsed, caption=caption)
        + element("div", rest, class_="notes")
    )


def _means_first(table: Table, n_domains: int) -> Table:
    """The method, then what varies, the means, and the domains last: as read on a phone."""
    left, stop = table.left, table.left + n_domains
    order = [left - 1, *range(left - 1), *range(stop, len(table.header)), *range(left, stop)]
    return Table(
        [table.header[place] for place in order],
        [[row[place] for place in order] for row in table.rows],
        left,
        table.notes,
    )


def _table(table: Table, collapsed: Sequence[bool], *, caption: str) -> str:
    header = (element("th", text(_spaced(name)), scope="col") for name in table.header)
    rows = (
        _line(row, collapsed=bool(collapsed) and collapsed[place])
        for place, row in enumerate(table.rows)
    )
    markup = element(
        "table",
        element("caption", element("span", text(caption))),
        element("thead", element("tr", *header)),
        element("tbody", *rows),
    )
    return scrolling(markup, label=caption, class_="table")


def _line(cells: Sequence[Cell], *, collapsed: bool) -> str:
    flag = element("span", "† collapsed", class_="flag") if collapsed else ""
    first = element("th", text(cells[0].text), flag, scope="row")
    rest = (element("td", _cell(cell)) for cell in cells[1:])
    return "\n" + element("tr", first, *rest, class_="collapsed" if collapsed else None)


def _cell(cell: Cell) -> str:
    mean, sign, deviation = cell.text.partition(" ± ")
    shown_ = element("strong", text(mean)) if cell.best else text(mean)
    around = f" {element('small', f'± {text(deviation)}')}" if sign else ""
    return shown_ + around + text(cell.mark)


def _figure(plot: Plot, name: str) -> str:
    drawn = drawing(plot.figure, name=name, shows=plot.caption)
    return "\n" + element(
        "figure",
        element("h3", text(plot.heading)),
        scrolling(drawn, label=plot.heading, class_="plot"),
        element("figcaption", text(plot.caption)),
    )


def _settings(rows: Sequence[Row]) -> str:
    """Every setting: what all rows share once, then what each has of its own."""
    tables = [_flat(row) for row in rows]
    apart = set(differing(tables))
    shared = {key: value for key, value in tables[0].items() if key not in apart}
    own = (
        _folded(row.title, {key: value for key, value in table.items() if key in apart})
        for row, table in zip(rows, tables, strict=True)
    )
    return element(
        "details",
        element("summary", "Every setting of every row"),
        _folded("Shared by all rows", shared),
        *own,
    )


def _folded(title: str, settings: dict[str, str]) -> str:
    return "\n" + element(
        "details",
        element("summary", text(title)),
        pairs(settings or {"nothing": "of its own"}, class_="settings"),
    )


def _flat(row: Row) -> dict[str, str]:
    return {
        f"{place}.{key}": shown(value)
        for place, values in row.settings.items()
        for key, value in values.items()
    }


def _spaced(name: str) -> str:
    """A domain's name, which may then break."""
    return name.replace("_", " ")
