"""A claim of the paper, and its outcome according to our results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bitta.report.rows import Row, format_range
from reproduction.claims.results import ResultFolders
from reproduction.paths import EXPERIMENTS, RESULTS, relative

NO_CAUSE = "The cause is unknown."


class ClaimStatus(StrEnum):
    """The outcome of a claim, as the page prints it."""

    HOLDS = "holds"
    FAILS = "does not hold"
    PARTLY_RUN = "partly run"
    NOT_RUN = "not run"
    NOT_MEASURABLE = "not measurable"


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of our results to a claim."""

    summary: str
    """Our numbers, as the page prints them."""
    holds: bool | None
    """None if the results so far do not decide the claim."""
    is_complete: bool = True
    """False if rows that the claim is about were not run."""


ClaimCheck = Callable[[ResultFolders], Finding | None]
"""Checks a claim against the results. Returns None if there are no results for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A statement of the paper, and the check of it."""

    id: str
    location: str
    """The section, figure or table of the paper."""
    text: str
    """The statement in our words, with our criterion if the paper gives none."""
    paper: str = ""
    """The paper's number, if it prints one."""
    experiments: tuple[str, ...] = ()
    """Folders of experiments that the check reads."""
    runs: str = "*"
    """Pattern of the run names that the check needs. Empty if the check tests for missing rows."""
    check: ClaimCheck | None = None
    """None if nothing can be measured."""
    not_measurable: str = ""
    """The reason why nothing can be measured."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A claim with its status."""

    claim: Claim
    status: ClaimStatus
    summary: str
    """Our numbers."""
    reason: str
    """The reason for a failure, or the commands that produce the missing results."""


def evaluate_claim(claim: Claim, results: ResultFolders, reasons: Mapping[str, str]) -> Outcome:
    """Check a claim. `reasons` has the reasons for failures by claim id."""
    if claim.check is None:
        return Outcome(claim, ClaimStatus.NOT_MEASURABLE, "", claim.not_measurable)
    finding = claim.check(results)
    if finding is None:
        return Outcome(claim, ClaimStatus.NOT_RUN, "", sweep_commands(claim.experiments))
    if finding.holds is False:
        reason = reasons.get(claim.id, NO_CAUSE)
        return Outcome(claim, ClaimStatus.FAILS, finding.summary, reason)
    unfinished = [f for f in claim.experiments if results.is_unfinished(f, claim.runs)]
    if finding.holds is None or not finding.is_complete or unfinished:
        missing = [f for f in claim.experiments if f in unfinished or not results.has_results(f)]
        commands = sweep_commands(missing or claim.experiments)
        return Outcome(claim, ClaimStatus.PARTLY_RUN, finding.summary, commands)
    return Outcome(claim, ClaimStatus.HOLDS, finding.summary, "")


def sweep_commands(folders: Sequence[str]) -> str:
    """Return the commands that produce the results of some folders, as Markdown.

    >>> sweep_commands(["beta", "skip"]).partition(", and ")[2]
    'the same for `skip`'
    """
    first, *others = folders
    experiments, results = relative(EXPERIMENTS / first), relative(RESULTS / first)
    command = f"`bitta sweep {experiments} --device cuda --out {results}`"
    same_for = ", ".join(f"`{name}`" for name in others)
    return f"{command}, and the same for {same_for}" if others else command


def seeds_text(rows: Sequence[Row]) -> str:
    """Return the number of seeds of some rows: "3 seeds", or "1 to 3 seeds" if rows differ."""
    counts = [len(row.runs) for row in rows]
    return f"{format_range(counts)} seed{'s' if max(counts) > 1 else ''}"
