"""Tests of the HTML page of a report, a single file that loads nothing else."""

import re
import sys
from html.parser import HTMLParser

import pytest

from bitta.errors import InputError
from bitta.report.comparison import compare
from bitta.report.html_report import report_page
from made_results import made_run, made_section, made_sections

VOID = {"meta", "img", "br", "hr", "link"}
NAMES = ["gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"]


class Reader(HTMLParser):
    """Parser that refuses unbalanced tags and collects links, ids and text."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.words = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        self.ids += [given["id"]] if "id" in given else []
        self.links += [value for key, value in attrs if key in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def read(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def page_of(*sections):
    return report_page([compare(section) for section in sections], title="A report")


@pytest.fixture
def runs():
    return [
        made_run("source", "source", [4, 4, 6, 6]),
        made_run("tent", "tent", [8, 8, 1, 1], n_queries=0),
        made_run("bitta", "bitta", [6, 6, 8, 8]),
    ]


def test_page_has_every_row_the_protocol_and_the_conditions(tmp_path, runs):
    text = page_of(made_section(tmp_path, runs))
    for words in ("Source", "TENT", "BiTTA", "40 samples", "embedded:cifar10-resnet8", "2.11.0",
                  "aaaaaaaaaaaa", "bbbbbbbbbbbb"):  # fmt: skip
        assert words in text
    assert text.index("40 samples") < text.index("<table")


def test_page_links_to_nothing_outside_and_ids_are_unique(tmp_path, runs):
    text = page_of(made_section(tmp_path, runs))
    reader = read(text)
    assert all(link.startswith(("#", "data:")) for link in reader.links)
    assert not re.search(r"http|<script|@import|url\((?!#)", text)
    assert len(reader.ids) == len(set(reader.ids))
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)


def test_page_has_the_markup_that_screen_readers_need(tmp_path, runs):
    reader = read(page_of(made_section(tmp_path, runs)))
    by_tag = {}
    for tag, given in reader.tags:
        by_tag.setdefault(tag, []).append(given)
    assert by_tag["html"] == [{"lang": "en"}]
    assert all(given.get("scope") in ("col", "row") for given in by_tag["th"])
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in by_tag["meta"]
    assert len(by_tag["svg"]) == len(by_tag["figure"]) == len(by_tag["figcaption"])
    assert all(given["role"] == "img" and given["aria-label"] for given in by_tag["svg"])


def test_svg_has_short_coordinates_but_complete_labels(tmp_path):
    runs = [made_run(f"b{f}", "bitta", [5, 5], flip=f) for f in (0.008, 0.127, 0.4)]
    text = page_of(made_section(tmp_path, runs))
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.S))
    words = re.sub(r"<[^>]*>", "\n", drawn)
    assert {"0.008", "0.127", "BiTTA (flip 0.008) (50.0)"} <= set(words.splitlines())
    assert not re.search(r"<[^>]*\d\.\d{3}", drawn)


def test_collapsed_row_has_a_flag_and_a_note(tmp_path, runs):
    text = page_of(made_section(tmp_path, runs))
    [row] = re.findall(r'<tr class="collapsed">.*?</tr>', text)
    assert "TENT" in row
    assert "† collapsed" in row
    assert "TENT: in snow" in text


def test_best_values_are_bold_and_the_mean_precedes_the_domains(tmp_path, runs):
    text = page_of(made_section(tmp_path, runs))
    header = re.findall(r'<th scope="col">([^<]*)</th>', text.partition("</thead>")[0])
    assert header[:2] == ["method", "mean"]
    assert header[-2:] == ["fog", "snow"]
    bitta = re.search(r'<tr><th scope="row">BiTTA</th>(.*?)</tr>', text)[1]
    cells = re.findall(r"<td>(.*?)</td>", bitta)
    assert cells[0] == "<strong>70.00</strong>"
    assert cells[-2:] == ["60.0", "<strong>80.0</strong>"]


def test_deviation_follows_its_mean(tmp_path):
    runs = [made_run("bitta", "bitta", [right] * 4, seed=s) for s, right in enumerate((4, 6))]
    text = page_of(made_section(tmp_path, runs))
    assert "<td>50.00 <small>± 14.14</small></td>" in text


def test_names_and_settings_from_files_are_escaped(tmp_path):
    bad = "<script>alert('$x$')</script>"
    runs = [
        made_run(bad, bad, [5, 5], domains=(bad, "fog"), settings={"note": bad, "lr": lr})
        for lr in (1e-4, 1e-3, 1e-2)
    ]
    text = page_of(made_section(tmp_path, runs))
    assert "<script" not in text
    assert "&lt;script&gt;alert(" in text
    read(text)


def test_shared_settings_appear_once_and_own_settings_per_row(tmp_path):
    runs = [
        made_run(f"bitta-{lr}", "bitta", [5, 5], settings={"lr": lr, "momentum": 0.9})
        for lr in (1e-4, 1e-3)
    ]
    settings = page_of(made_section(tmp_path, runs)).partition("Every setting")[2]
    assert settings.count("<dt>method.momentum</dt><dd>0.9</dd>") == 1
    assert settings.count("<dt>method.lr</dt>") == 2


def test_several_sections_have_a_table_of_contents(tmp_path, runs):
    longer = made_run("bitta", "bitta", [6] * 8)
    sections = made_sections(tmp_path, [*runs, longer])
    assert len(sections) == 2
    reader = read(page_of(*sections))
    assert [link for link in reader.links if link.startswith("#section")] == [
        "#section-1", "#section-2",
    ]  # fmt: skip
    assert len(reader.ids) == len(set(reader.ids))


@pytest.mark.full
def test_page_of_sixty_rows_is_smaller_than_three_megabytes(tmp_path):
    wave = [20 + (batch * 7) % 40 for batch in range(2340)]
    step = {"n_measured": 64, "n_agreeing": 40, "n_agreeing_correct": 18}
    methods = ["tent", "sar", "eata", "bitta", "cotta", "rotta"]
    many = [
        made_run(
            f"{method}-{lr}", method, [right + lr % 5 for right in wave], n=64, domains=NAMES,
            settings={"lr": lr / 1000, **{f"setting_{k}": k for k in range(60)}}, step=step,
        )
        for method in methods
        for lr in range(1, 11)
    ]  # fmt: skip
    text = page_of(made_section(tmp_path, many))
    assert len(text.encode()) < 3_000_000
    assert text.count('<th scope="row">') == 2 * 60


def test_page_without_jinja2_is_refused_with_the_command_to_install_it(tmp_path, runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"Jinja2.*bitta\[report\]"):
        page_of(made_section(tmp_path, runs))


def test_same_results_give_the_same_page(tmp_path, runs):
    section = made_section(tmp_path, runs)
    assert page_of(section) == page_of(section)


def test_plot_has_a_minimum_width_and_scrolls_in_its_own_box(tmp_path, runs):
    """6.2 inches of 6.5 rem at 16 px are 645 px. Letters of 9 pt, 72 to an inch, have 13 px."""
    text = page_of(made_section(tmp_path, runs))
    assert re.search(
        r"\.plot svg, \.plot img {[^}]*min-width: calc\(var\(--inches\) \* 6.5rem\)", text
    )
    assert re.search(r"\.table, \.plot {[^}]*overflow-x: auto", text)
    inches = [float(found) for found in re.findall(r'style="--inches: ([\d.]+)"', text)]
    assert max(inches) * 6.5 * 16 == pytest.approx(645, abs=1)
    boxes = re.findall(
        r'<div class="plot" role="region" aria-label="[^"]+" tabindex="0"><svg', text
    )
    assert len(boxes) == len(inches) == text.count("<figure>")


def test_sticky_column_is_narrow_on_a_phone(tmp_path, runs):
    text = page_of(made_section(tmp_path, runs))
    [rule] = re.findall(r"@media \(max-width: 40rem\) {\s*tbody th {([^}]*)}", text)
    assert "white-space: normal" in rule
    assert "max-width: 45vw" in rule
