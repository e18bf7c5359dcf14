"""What the paper claims, and whether our results bear it out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bitta.report.names import between
from bitta.report.row import Row
from reproduction.claims.results import Results

NO_CAUSE = "no cause found yet"


class Verdict(StrEnum):
    """What came out."""

    HOLDS = "holds"
    FAILS = "does not hold"
    PARTLY = "partly run"
    NOT_RUN = "not run"
    NOTHING = "nothing to measure"


@dataclass(frozen=True, slots=True)
class Finding:
    """What our results say about a claim."""

    ours: str
    holds: bool | None
    """None where what was run does not decide it."""
    whole: bool = True
    """Whether all of it was run."""


Check = Callable[[Results], Finding | None]
"""None where there is no result to look at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """Something that the paper says, and how it is checked."""

    id: str
    place: str
    gist: str
    """In our words, with the rule by which it holds where the paper gives none."""
    paper: str = ""
    """Its number, where it prints one."""
    experiments: tuple[str, ...] = ()
    part: str = "*"
    """Which of their runs it needs, as a pattern of names; empty where the check knows."""
    check: Check | None = None
    """None where nothing can be measured."""
    nothing: str = ""
    """Why nothing can."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A statement and what came out."""

    statement: Statement
    verdict: Verdict
    ours: str
    why: str


def judged(statement: Statement, results: Results, reasons: Mapping[str, str]) -> Outcome:
    """Look at the results; a failure has the reason on file, or says that there is none."""
    if statement.check is None:
        return Outcome(statement, Verdict.NOTHING, "", statement.nothing)
    finding = statement.check(results)
    if finding is None:
        return Outcome(statement, Verdict.NOT_RUN, "", commands(statement.experiments))
    if finding.holds is False:
        why = reasons.get(statement.id, NO_CAUSE)
        return Outcome(statement, Verdict.FAILS, finding.ours, why)
    unfinished = [f for f in statement.experiments if results.unfinished(f, statement.part)]
    if finding.holds is None or not finding.whole or unfinished:
        missing = [f for f in statement.experiments if f in unfinished or not results.has(f)]
        why = commands(missing or statement.experiments)
        return Outcome(statement, Verdict.PARTLY, finding.ours, why)
    return Outcome(statement, Verdict.HOLDS, finding.ours, "")


def commands(folders: Sequence[str]) -> str:
    """What makes the results of some folders.

    >>> commands(["beta", "skip"])
    '`bitta sweep reproduction/experiments/beta --device cuda --out results/beta`, likewise `skip`'
    """
    first, *others = folders
    told = f"`bitta sweep reproduction/experiments/{first} --device cuda --out results/{first}`"
    return f"{told}, likewise {', '.join(f'`{name}`' for name in others)}" if others else told


def seeds_of(rows: Sequence[Row]) -> str:
    """How many stand behind a number: "3 seeds", or "1 to 3 seeds" where rows differ."""
    counts = [len(row.runs) for row in rows]
    return f"{between(counts)} seed{'s' if max(counts) > 1 else ''}"
