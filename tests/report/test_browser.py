"""Test of the page of a report in a real browser."""

import pytest

from bitta.corruptions import CORRUPTIONS
from bitta.report.comparison import compare
from bitta.report.html_report import report_page
from made_results import made_run, made_sections

pytestmark = pytest.mark.full


@pytest.fixture
def report(tmp_path):
    """Page with many rows, a sweep, a collapse, two protocols and long names."""
    names = ("source", "bn_stats", "tent", "eata", "sar", "cotta", "rotta", "sotta", "simatta")
    runs = [
        made_run(name, name, [5] * 15, domains=tuple(CORRUPTIONS), seed=seed)
        for name in names for seed in (0, 1)
    ]  # fmt: skip
    runs += [
        made_run(f"bitta-{flip}", "bitta", [right] * 15, domains=tuple(CORRUPTIONS), flip=flip)
        for flip, right in ((0.0, 9), (0.1, 8), (0.3, 1))
    ]
    runs.append(made_run("another-protocol-with-a-name-that-goes-on", "bitta", [5, 5]))
    path = tmp_path / "report.html"
    comparisons = [compare(section) for section in made_sections(tmp_path, runs)]
    path.write_text(report_page(comparisons, title="A report"), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1280, 390])
def test_page_loads_no_other_file_and_fits_the_screen(browser, report, width):
    messages = []
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("console", lambda line: messages.append(line.text))
    page.on("request", lambda request: messages.append(request.url))
    page.goto(f"file://{report}")
    assert [line for line in messages if not line.startswith(("data:", f"file://{report}"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plots = page.locator("figure svg").all()
    assert len(plots) >= 4
    assert all(plot.bounding_box()["height"] > 100 for plot in plots)
    page.close()
