"""Tests of the style that all plots share."""

import json
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

from bitta.methods import METHODS
from bitta.report import plot_style
from bitta.report.plot_style import (
    escape_dollars,
    join_names,
    line_styles,
    method_style,
    select_rows,
)
from bitta.report.rows import METHOD_TITLES
from made_results import made_run, made_section
from reproduction.claims.tables import paper_table

EYES = {
    "usual": np.eye(3),
    "no red cones": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green cones": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue cones": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}  # fmt: skip
"""Matrices for linear RGB, by Machado et al., 2009, at full severity."""


TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def linear(colour):
    parts = np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab_coordinates(colour, eye):
    """Return the CIELAB coordinates. A distance of about 2.3 is just noticeable."""
    xyz = TO_XYZ @ np.clip(EYES[eye] @ linear(colour), 0, 1) / [0.9505, 1.0, 1.089]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_white_is_white_to_every_kind_of_colour_vision():
    for eye in EYES:
        np.testing.assert_allclose(lab_coordinates("#FFFFFF", eye), [100, 0, 0], atol=0.1)


@pytest.mark.parametrize("eye", EYES)
def test_methods_of_the_main_table_differ_in_colour_to_every_kind_of_colour_vision(eye):
    table = paper_table("tab:tinyimagenetc/cifar10-c")
    methods = sorted({row.method for row in table.rows})
    assert len(methods) == 10
    for one, two in combinations(methods, 2):
        first, second = (lab_coordinates(method_style(m).colour, eye) for m in (one, two))
        assert np.linalg.norm(first - second) > 14, (one, two)


def test_colours_contrast_with_white():
    """Contrast with white as in WCAG. Black has 21; Okabe and Ito's orange has 2.2."""
    for method in METHODS:
        luminance = TO_XYZ[1] @ linear(method_style(method).colour)
        assert 1.05 / (luminance + 0.05) > 2.1


def test_every_method_has_a_title_a_style_and_counted_passes():
    counted = json.loads((files("bitta") / "assets" / "passes.json").read_text())["passes"]
    for table in (METHOD_TITLES, plot_style._METHOD_STYLES, counted):
        assert set(table) == set(METHODS)


def test_methods_differ_in_dash_or_marker():
    styles = [(style.dash, style.marker) for style in map(method_style, METHODS)]
    assert len(set(styles)) == len(METHODS)


def test_line_of_bitta_is_the_widest():
    widths = {method: method_style(method).width for method in METHODS}
    assert max(widths, key=widths.get) == "bitta"
    assert sorted(widths.values())[-2] < widths["bitta"]


def test_unknown_method_always_gets_the_same_style():
    assert method_style("another") == method_style("another")
    assert method_style("another").colour not in (
        method_style("bitta").colour,
        method_style("source").colour,
    )


def test_second_row_of_a_method_has_another_dash_shade_and_width():
    first, other, second = line_styles(["bitta", "tent", "bitta"])
    assert (first, other) == (method_style("bitta"), method_style("tent"))
    # Vermilion D5 5E 00, 40 % of the way to black: 213 -> 128 = 80, 94 -> 56 = 38.
    assert (second.dash, second.colour, second.marker) == ("dashed", "#803800", first.marker)
    assert second.width < first.width


def test_dollar_sign_is_escaped():
    assert escape_dollars("a$b$") == r"a\$b\$"


def test_source_bn_stats_and_bitta_are_selected_and_omitted_rows_are_named(tmp_path):
    runs = [made_run("source", "source", [1, 1]), made_run("bn_stats", "bn_stats", [2, 2])]
    runs += [
        made_run(name, name, [right] * 2, n_queries=0)
        for name, right in (("tent", 9), ("sar", 8), ("eata", 7))
    ]
    runs += [
        made_run("bitta", "bitta", [3, 3]),
        made_run("bitta-labels", "bitta", [9, 9], labels="full"),
    ]
    selection = select_rows(made_section(tmp_path, runs).rows, 4)
    assert [row.title for row in selection.drawn] == ["TENT", "BiTTA", "BN-Stats", "Source"]
    assert "BiTTA (full labels), SAR and EATA" in selection.note


def test_selection_is_limited_per_method(tmp_path):
    runs = [made_run("source", "source", [1, 1])]
    runs += [made_run(f"bitta-{n}", "bitta", [n, n], n_queries=n) for n in range(1, 8)]
    selection = select_rows(made_section(tmp_path, runs).rows, 14, max_per_method=2)
    assert [row.accuracy.mean for row in selection.drawn] == [70, 60, 10]


def test_long_list_of_names_is_shortened():
    assert join_names(["a"], max_names=2) == "a"
    assert join_names(["a", "b", "c", "d"], max_names=2) == "a, b and 2 more"
