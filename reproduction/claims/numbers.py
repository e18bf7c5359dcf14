"""Claims about the numbers that the paper states in sentences."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from bitta.report.rows import Row
from reproduction.claims.averages import check_gain_from_answers, check_lead
from reproduction.claims.claim import Claim, Finding, seeds_text
from reproduction.claims.directions import check_largest_lead_at_equal_cost, component_rows
from reproduction.claims.results import ResultFolders
from reproduction.claims.tables import compare_table, paper_table
from reproduction.paths import STATED_NUMBERS

_MAIN_FOLDERS = (
    "main-cifar10-c", "main-cifar100-c", "main-tiny-imagenet-c", "pacs-domains", "pacs-mixed",
)  # fmt: skip


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
    text: str
    """The statement in our words."""
    experiments: tuple[str, ...] = ()
    """Folders of experiments that measure the same; empty if nothing can be measured."""

    @property
    def plain_text(self) -> str:
        """The number with its unit, without LaTeX commands."""
        number = f"{self.value:g}" if "\\" in self.printed else self.printed
        sign = "-" if self.value < 0 else ""
        return f"{sign}{number} {self.unit}".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class _NumberCheck:
    """The check of a stated number."""

    criterion: str
    """The condition under which the claim holds."""
    check: Callable[[float, ResultFolders], Finding | None]
    """Function that checks our results. Its first argument is the paper's number."""
    experiments: tuple[str, ...] = ()
    """Folders to read; empty for those of the stated number."""
    runs: str = "*"


def stated_numbers() -> tuple[StatedNumber, ...]:
    """Read all numbers that only sentences of the paper state."""
    entries: list[dict[str, Any]] = tomllib.loads(STATED_NUMBERS.read_text())["numbers"]
    return tuple(
        StatedNumber(**{**entry, "experiments": tuple(entry.get("experiments", ()))})
        for entry in entries
    )


def number_claims() -> list[Claim]:
    """Return a claim for each stated number, in the paper's order."""
    return [_claim(number) for number in stated_numbers()]


def _claim(number: StatedNumber) -> Claim:
    location, paper = number.heading.removesuffix("."), number.plain_text
    if number.id in _NOT_MEASURABLE:
        return Claim(
            id=number.id,
            location=location,
            text=number.text,
            paper=paper,
            not_measurable=_NOT_MEASURABLE[number.id],
        )
    check = _CHECKS[number.id]
    return Claim(
        id=number.id,
        location=location,
        text=f"{number.text} Holds if {check.criterion}.",
        paper=paper,
        experiments=check.experiments or number.experiments,
        runs=check.runs,
        check=partial(check.check, number.value),
    )


def _check_share_asked(claimed: float, results: ResultFolders) -> Finding | None:
    row = _bitta_on_cifar10(results)
    if row is None:
        return None
    run = row.first_run
    percent = 100 * run.total("n_asked") / run.total("n")
    return Finding(f"{percent:.2f} %", percent < claimed)


def _check_component(name: str, _: float, results: ResultFolders) -> Finding | None:
    rows = component_rows(results)
    better = {"BFA only": "ABA only", "ABA only": "both"}[name]
    if not {name, better} <= set(rows):
        return None
    ours, other = rows[name].domain_mean.mean, rows[better].domain_mean.mean
    seeds = seeds_text([rows[name], rows[better]])
    return Finding(f"{ours:.2f} %; {better} {other:.2f} ({seeds})", ours < other)


def _check_calibration_error(which: str, claimed: float, results: ResultFolders) -> Finding | None:
    row = _bitta_on_cifar10(results)
    if row is None or row.policy_ece is None or row.ece is None:
        return None
    dropout, served = row.policy_ece.mean / 100, row.ece.mean / 100
    reduction = 100 * (1 - dropout / served)
    summary, holds = {
        "dropout": (f"{dropout:.3f}", dropout <= claimed),
        "softmax": (f"{served:.3f}", served > dropout),
        "reduction": (f"{reduction:.0f} %", reduction >= claimed),
    }[which]
    return Finding(f"{summary} ({seeds_text([row])})", holds)


def _check_memory_saved(claimed: float, results: ResultFolders) -> Finding | None:
    comparison = compare_table(paper_table("tab:gpu_memory"), results)
    rows = comparison.our_rows("cifar10-c")
    if "BiTTA" not in rows or "+GA" not in rows:
        return None
    whole, accumulated = (comparison.our_value(rows[name]).mean for name in ("BiTTA", "+GA"))
    percent = 100 * (1 - accumulated / whole)
    seeds = seeds_text([rows["BiTTA"], rows["+GA"]])
    return Finding(f"{percent:.0f} % ({seeds})", percent >= claimed)


def _check_loss_without_dropout(_: float, results: ResultFolders) -> Finding | None:
    rows = results.rows_by_setting("no-dropout", "method.dropout")
    if len(rows) < 2:
        return None
    without, usual = rows[min(rows)], rows[max(rows)]
    change = without.domain_mean.mean - usual.domain_mean.mean
    return Finding(f"{change:+.2f} points ({seeds_text([without, usual])})", change < 0)


def _check_calibration_by_passes(shown: int, _: float, results: ResultFolders) -> Finding | None:
    rows = results.rows_by_setting("dropouts", "method.passes")
    if not {1, 4} <= set(rows):
        return None
    errors = {n: ece.mean / 100 for n in (1, 4) if (ece := rows[n].policy_ece) is not None}
    if len(errors) < 2:
        return None
    return Finding(f"{errors[shown]:.3f} ({seeds_text([rows[shown]])})", errors[1] > errors[4])


def _bitta_on_cifar10(results: ResultFolders) -> Row | None:
    """Return BiTTA's fair row on the whole stream of CIFAR-10-C."""
    comparison = compare_table(paper_table("tab:tinyimagenetc/cifar10-c"), results)
    return comparison.fair.get((comparison.bitta, "mean"))


_OTHER_STUDY = "The number comes from another study, which was made with people."
_SETTING = (
    'This is a setting. Both weights are 1 in our runs. A claim under "Directions in figures and '
    'text" shows the effect of weight 2 for answers.'
)
_NOT_MEASURABLE: Mapping[str, str] = {
    "label-seconds": _OTHER_STUDY,
    "label-errors": _OTHER_STUDY,
    "verdict-seconds": _OTHER_STUDY,
    "verdict-errors": _OTHER_STUDY,
    "alpha-in-section-3": _SETTING,
    "alpha-in-section-4": _SETTING,
    "gpt-4o-errors": "We did not ask GPT-4o. Our runs use the error rate that the paper gives.",
}
_on_cifar10 = partial(_NumberCheck, experiments=("main-cifar10-c",), runs="bitta-seed*")
_CHECKS: Mapping[str, _NumberCheck] = {
    "gain": _NumberCheck(
        criterion="the lead over the mean of the fair rows with a star is at least as large, "
        "averaged over five streams",
        check=check_lead, experiments=_MAIN_FOLDERS, runs="",
    ),
    "share-asked": _on_cifar10(criterion="our share is smaller", check=_check_share_asked),
    "equal-cost": _NumberCheck(
        criterion="our largest lead at equal cost in bits, on three data sets and in percent of "
        "SimATTA's accuracy, is at least as large",
        check=check_largest_lead_at_equal_cost,
    ),
    "bfa-only": _NumberCheck(
        criterion="ours is lower than with ABA only", check=partial(_check_component, "BFA only")
    ),
    "aba-only": _NumberCheck(
        criterion="ours is lower than with both together",
        check=partial(_check_component, "ABA only"),
    ),
    "ece-mc-dropout": _on_cifar10(
        criterion="ours is not larger", check=partial(_check_calibration_error, "dropout")
    ),
    "ece-softmax": _on_cifar10(
        criterion="our served predictions have a larger error than MC-dropout",
        check=partial(_check_calibration_error, "softmax"),
    ),
    "ece-reduction": _on_cifar10(
        criterion="ours is at least as large", check=partial(_check_calibration_error, "reduction")
    ),
    "memory-saved": _NumberCheck(
        criterion="ours is at least as large", check=_check_memory_saved
    ),
    "no-dropout": _NumberCheck(criterion="ours is negative", check=_check_loss_without_dropout),
    "ece-one-pass": _NumberCheck(
        criterion="ours is larger than with four passes",
        check=partial(_check_calibration_by_passes, 1),
    ),
    "ece-four-passes": _NumberCheck(
        criterion="ours is smaller than with one pass",
        check=partial(_check_calibration_by_passes, 4),
    ),
    "cost-of-no-answers": _NumberCheck(
        criterion="the mean gain of six methods from answers, in fair rows averaged over five "
        "streams, is at least as large",
        check=check_gain_from_answers, experiments=(*_MAIN_FOLDERS, "original"), runs="",
    ),
}  # fmt: skip
