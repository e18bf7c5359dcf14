"""A run may take several lives: each goes on from the checkpoint that the one before left."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bitta.bench.prefetch import Prefetch
from bitta.bench.seconds import Clock, Seconds
from bitta.metrics import LabelHistograms, Reliability, peak_memory
from bitta.results import StepRecord, columns_to_steps, steps_to_columns
from bitta.session import Session
from bitta.statefile import save_state

_THEN = "; then "


@dataclass(slots=True)
class Progress:
    """What has been done, over all lives."""

    steps: list[StepRecord] = field(default_factory=list)
    reliability: Reliability = field(default_factory=Reliability)
    policy_reliability: Reliability = field(default_factory=Reliability)
    histograms: LabelHistograms = field(default_factory=LabelHistograms)
    before: Mapping[str, Any] = field(default_factory=dict)
    """What was done and measured before the first batch, for the result."""
    peak_memory: int = 0
    """Of the lives before this one."""
    seconds: Seconds = field(default_factory=Seconds)
    """Of the lives before this one."""
    execution: str = ""
    """The paths of the lives before this one, one after another."""


@dataclass(frozen=True, slots=True)
class Life:
    """What one process does for a run, from its start or its checkpoint on."""

    session: Session
    progress: Progress
    batches: Prefetch
    clock: Clock
    lived: int
    """Steps of the lives before this one."""

    @property
    def peak_memory(self) -> int:
        """Over all lives."""
        return max(self.progress.peak_memory, peak_memory(self.session.adapter.wrapped.device))

    @property
    def execution(self) -> str:
        """The path, or the paths of the lives one after another; a fallback shows, too."""
        before, now = self.progress.execution, str(self.session.execution)
        same = before.split(_THEN)[-1] == now
        return before if same else _THEN.join(filter(None, (before, now)))

    @property
    def seconds(self) -> Seconds:
        """So far, over all lives."""
        return self.progress.seconds + self.clock.read(
            self.batches,
            learning=sum(step.seconds for step in self.progress.steps[self.lived :]),
            capture=self.session.adapter.wrapped.graphs.seconds,
        )


def save_life(checkpoint: Path, identity: Mapping[str, Any], life: Life) -> None:
    """Write the checkpoint that the next life goes on from."""
    progress = life.progress
    save_state(
        checkpoint,
        {
            "identity": dict(identity),
            "session": life.session.state_dict(),
            "steps": _packed(progress.steps),
            "reliability": asdict(progress.reliability),
            "policy_reliability": asdict(progress.policy_reliability),
            "histograms": progress.histograms.state_dict(),
            "before": dict(progress.before),
            "peak_memory": life.peak_memory,
            "seconds": asdict(life.seconds),
            "execution": life.execution,
        },
    )


def saved_progress(state: Mapping[str, Any]) -> Progress:
    """What the lives before the checkpoint have done."""
    return Progress(
        steps=columns_to_steps(json.loads(bytes(state["steps"].tolist()))),
        reliability=Reliability(**state["reliability"]),
        policy_reliability=Reliability(**state["policy_reliability"]),
        histograms=LabelHistograms.from_state_dict(state["histograms"]),
        before=state["before"],
        peak_memory=state["peak_memory"],
        seconds=Seconds(**state.get("seconds", {})),
        execution=state.get("execution", ""),
    )


def _packed(steps: Sequence[StepRecord]) -> Tensor:
    """As bytes: there may be more of them than the header of a state file holds."""
    text = json.dumps(steps_to_columns(steps))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
