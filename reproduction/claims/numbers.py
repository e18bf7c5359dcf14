"""Numbers that the paper states in sentences, beside ours."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bitta.report.row import Row
from reproduction.claims.averages import from_answers, gain
from reproduction.claims.claim import Finding, Statement, seeds_of
from reproduction.claims.cost import most_at_equal_cost
from reproduction.claims.results import Results
from reproduction.claims.tables import measured, paper_table
from reproduction.paths import STATED_NUMBERS

_MAIN = ("main-cifar10-c", "main-cifar100-c", "main-tiny-imagenet-c", "pacs-domains", "pacs-mixed")

NumberCheck = Callable[[float, Results], Finding | None]
"""Given the paper's number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedNumber:
    """A number that the paper states in a sentence."""

    id: str
    value: float
    printed: str
    """The number as it is written in the source."""
    unit: str
    heading: str
    """The heading of the paragraph that states it."""
    gist: str
    """The statement in our words."""
    experiments: tuple[str, ...] = ()
    """Folders of experiments that measure the same; empty if nothing can be measured."""


def stated_numbers() -> tuple[StatedNumber, ...]:
    """Read all numbers that only sentences of the paper state."""
    entries: list[dict[str, Any]] = tomllib.loads(STATED_NUMBERS.read_text())["claims"]
    return tuple(
        StatedNumber(**{**entry, "experiments": tuple(entry.get("experiments", ()))})
        for entry in entries
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Way:
    rule: str
    """When it holds."""
    check: NumberCheck
    experiments: tuple[str, ...] = ()
    """Instead of those that the claim names."""
    part: str = "*"


def number_statements() -> list[Statement]:
    """Every claim, in the paper's order."""
    return [_statement(claim) for claim in stated_numbers()]


def _statement(claim: StatedNumber) -> Statement:
    place = claim.heading.removesuffix(".")
    paper = _printed(claim)
    if claim.id in _NOTHING:
        return Statement(
            id=claim.id, place=place, gist=claim.gist, paper=paper, nothing=_NOTHING[claim.id]
        )
    way = _WAYS[claim.id]
    return Statement(
        id=claim.id,
        place=place,
        gist=f"{claim.gist} Holds if {way.rule}.",
        paper=paper,
        experiments=way.experiments or claim.experiments,
        part=way.part,
        check=partial(way.check, claim.value),
    )


def _printed(claim: StatedNumber) -> str:
    """As it is written, but for formulas."""
    number = f"{claim.value:g}" if "\\" in claim.printed else claim.printed
    sign = "-" if claim.value < 0 else ""
    return f"{sign}{number} {claim.unit}".strip()


def _share(most: float, results: Results) -> Finding | None:
    row = _bitta(results)
    if row is None:
        return None
    run = row.first
    share = 100 * run.total("n_asked") / run.total("n")
    return Finding(f"{share:.2f} %", share < most)


def _component(which: str, _: float, results: Results) -> Finding | None:
    found = components(results)
    above = {"BFA only": "ABA only", "ABA only": "both"}[which]
    if not {which, above} <= set(found):
        return None
    ours, more = found[which].domain_mean.mean, found[above].domain_mean.mean
    told = f"{ours:.2f} %; {above} {more:.2f} ({seeds_of([found[which], found[above]])})"
    return Finding(told, ours < more)


def components(results: Results) -> dict[str, Row]:
    """The rows of BFA only, ABA only and both, as far as they were run."""
    rows = results.rows("components", "bitta")
    weights = {(row.varying["method.alpha"] > 0, row.varying["method.beta"] > 0): row
               for row in rows}  # fmt: skip
    names = {(True, False): "BFA only", (False, True): "ABA only", (True, True): "both"}
    return {name: weights[which] for which, name in names.items() if which in weights}


def _ece(shown: str, claimed: float, results: Results) -> Finding | None:
    row = _bitta(results)
    if row is None or row.policy_ece is None or row.ece is None:
        return None
    dropout, served = row.policy_ece.mean / 100, row.ece.mean / 100
    less = 100 * (1 - dropout / served)
    told, holds = {
        "dropout": (f"{dropout:.3f}", dropout <= claimed),
        "softmax": (f"{served:.3f}", served > dropout),
        "reduction": (f"{less:.0f} %", less >= claimed),
    }[shown]
    return Finding(f"{told} ({seeds_of([row])})", holds)


def _memory_saved(claimed: float, results: Results) -> Finding | None:
    of = measured(paper_table("tab:gpu_memory"), results)
    rows = of.ours("cifar10-c")
    if "BiTTA" not in rows or "+GA" not in rows:
        return None
    ours = 100 * (1 - of.spread(rows["+GA"]).mean / of.spread(rows["BiTTA"]).mean)
    return Finding(f"{ours:.0f} % ({seeds_of([rows['BiTTA'], rows['+GA']])})", ours >= claimed)


def _no_dropout(_: float, results: Results) -> Finding | None:
    rows = results.sweep("no-dropout", "method.dropout")
    if len(rows) < 2:
        return None
    without, usual = rows[min(rows)], rows[max(rows)]
    ours = without.domain_mean.mean - usual.domain_mean.mean
    return Finding(f"{ours:+.2f} points ({seeds_of([without, usual])})", ours < 0)


def _ece_passes(shown: int, _: float, results: Results) -> Finding | None:
    rows = results.sweep("dropouts", "method.passes")
    if not {1, 4} <= set(rows):
        return None
    eces = {n: ece.mean / 100 for n in (1, 4) if (ece := rows[n].policy_ece) is not None}
    if len(eces) < 2:
        return None
    return Finding(f"{eces[shown]:.3f} ({seeds_of([rows[shown]])})", eces[1] > eces[4])


def _bitta(results: Results) -> Row | None:
    """On whole streams of CIFAR-10-C."""
    of = measured(paper_table("tab:tinyimagenetc/cifar10-c"), results)
    return of.fair.get((of.bitta, "mean"))


_JOSHI = "A number of another study, about people."
_SETTING = "A setting; ours are both 1. What answers of weight 2 do stands among the directions."
_NOTHING: Mapping[str, str] = {
    "label-seconds": _JOSHI,
    "label-errors": _JOSHI,
    "verdict-seconds": _JOSHI,
    "verdict-errors": _JOSHI,
    "alpha-in-section-3": _SETTING,
    "alpha-in-section-4": _SETTING,
    "gpt-4o-errors": "GPT-4o was not asked; our runs take its errors from the paper.",
}
_on_main = partial(_Way, experiments=("main-cifar10-c",), part="bitta-seed*")
_WAYS: Mapping[str, _Way] = {
    "gain": _Way(
        rule="BiTTA is so far above the mean of the rows with a star, all alike, on five streams",
        check=gain, experiments=_MAIN, part="",
    ),
    "share-asked": _on_main(rule="fewer were asked about", check=_share),
    "equal-cost": _Way(
        rule="the largest lead in bits, on three sets, is as large", check=most_at_equal_cost
    ),
    "bfa-only": _Way(rule="it is below ABA only", check=partial(_component, "BFA only")),
    "aba-only": _Way(rule="it is below both together", check=partial(_component, "ABA only")),
    "ece-mc-dropout": _on_main(rule="ours is not larger", check=partial(_ece, "dropout")),
    "ece-softmax": _on_main(
        rule="that of what is served is above MC-dropout's", check=partial(_ece, "softmax")
    ),
    "ece-reduction": _on_main(rule="ours is as large", check=partial(_ece, "reduction")),
    "memory-saved": _Way(rule="as much is saved", check=_memory_saved),
    "no-dropout": _Way(rule="something is lost", check=_no_dropout),
    "ece-one-pass": _Way(rule="four passes have less", check=partial(_ece_passes, 1)),
    "ece-four-passes": _Way(rule="one pass has more", check=partial(_ece_passes, 4)),
    "cost-of-no-answers": _Way(
        rule="six methods gain as much by answers, all alike, on five streams",
        check=from_answers, experiments=(*_MAIN, "original"), part="",
    ),
}  # fmt: skip
