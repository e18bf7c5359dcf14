"""One look for all plots."""

from bitta.methods import METHODS
from bitta.report.style import literal, look_of, looks_of


def test_no_two_methods_look_the_same_in_grey():
    looks = [(look.dash, look.marker) for look in map(look_of, METHODS)]
    assert len(set(looks)) == len(METHODS)


def test_bitta_is_the_strongest():
    widths = {method: look_of(method).width for method in METHODS}
    assert max(widths, key=widths.get) == "bitta"
    assert sorted(widths.values())[-2] < widths["bitta"]


def test_an_unknown_method_always_gets_the_same_look():
    assert look_of("another") == look_of("another")
    assert look_of("another").colour not in (look_of("bitta").colour, look_of("source").colour)


def test_a_second_row_of_a_method_is_told_apart_by_dash_shade_and_width():
    first, other, second = looks_of(["bitta", "tent", "bitta"])
    assert (first, other) == (look_of("bitta"), look_of("tent"))
    # Vermilion D5 5E 00, 40 % of the way to black: 213 -> 128 = 80, 94 -> 56 = 38.
    assert (second.dash, second.colour, second.marker) == ("dashed", "#803800", first.marker)
    assert second.width < first.width


def test_a_dollar_in_a_name_is_no_mathematics():
    assert literal("a$b$") == r"a\$b\$"
