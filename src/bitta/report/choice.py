"""Which rows a plot has room for, and what they are called in it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import shorten

from bitta.report.row import Row, Spread
from bitta.report.style import literal

ALWAYS = ("source", "bn_stats", "bitta")
"""Methods that every plot of some rows has."""
_MOST_LETTERS = 44
"""Of a title in a plot; the table has it all."""
MARK = "†"
"""A collapsed row, in plots."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Rows in a plot, best first, and the rest."""

    shown: tuple[Row, ...]
    left_out: tuple[Row, ...]

    @property
    def told(self) -> str:
        """A sentence about the rest; empty if all are there."""
        if not self.left_out:
            return ""
        others = listed([row.title for row in self.left_out], most=8)
        return f"Without {others}, for want of room."


def choose(rows: Sequence[Row], most: int, *, of_one: int | None = None) -> Choice:
    """The source model, BN-Stats and BiTTA, then the best; of each method its best row first.

    Of one method there are at most `of_one` rows.
    """
    by_accuracy = sorted(rows, key=lambda row: -row.accuracy.mean)
    best: dict[str, Row] = {}
    # BiTTA is what learns from verdicts; its row with labels is another method's rival.
    for row in sorted(by_accuracy, key=lambda row: row.answers == "full"):
        best.setdefault(row.method, row)
    firsts = [best[method] for method in ALWAYS if method in best]
    kept: dict[str, list[Row]] = {}
    for row in by_accuracy:
        kept.setdefault(row.method, []).append(row)
    wanted = [*firsts, *best.values()]
    wanted += [row for row in by_accuracy if row in kept[row.method][:of_one]]
    names = list(dict.fromkeys(row.name for row in wanted))[:most]
    return Choice(
        tuple(row for row in by_accuracy if row.name in names),
        tuple(row for row in by_accuracy if row.name not in names),
    )


def label_of(row: Row, *, most: int = _MOST_LETTERS) -> str:
    """Its title, of so many letters at most, with a mark if it collapsed."""
    title = literal(shorten(row.title, most, placeholder=" …"))
    return f"{title} {MARK}" if row.collapsed else title


def collapse_note(rows: Iterable[Row]) -> str:
    """What the mark means, where a plot has one."""
    there = any(row.collapsed for row in rows)
    return f"{MARK} collapsed, see the table." if there else ""


def deviations(spreads: Sequence[Spread]) -> list[float] | None:
    """Error bars; None for one seed."""
    known = [spread.deviation or 0.0 for spread in spreads]
    return known if any(spread.n > 1 for spread in spreads) else None


def listed(names: Sequence[str], *, most: int) -> str:
    """A list as one writes it, cut short where it is long.

    >>> listed(["a", "b", "c"], most=3), listed(["a", "b", "c"], most=2)
    ('a, b and c', 'a, b and 1 more')
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
