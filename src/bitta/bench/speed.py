"""Time methods on random tensors: whole batches with full memories, and serving alone."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median, quantiles
from typing import Any, Literal

import torch
from torch import Tensor

from bitta.bench.filled import filled_session, random_batches
from bitta.bench.flops import flops_per_batch
from bitta.config import check_integer, require
from bitta.errors import BittaError, DeviceMemoryError, SettingError
from bitta.metrics import (
    DOES_NOT_FIT,
    DeviceTimer,
    SpeedCase,
    SpeedMeasurement,
    peak_memory,
    reset_peak_memory,
)
from bitta.nn import Execution, Precision
from bitta.nn.fast.execution import is_out_of_memory
from bitta.session import Session

_WINDOW = 64
"""Smaller batches are served amid so many of the newest samples."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under which a case is timed."""

    device: torch.device
    eager: bool = False
    precision: Precision = "auto"
    memory: Literal["full", "low"] = "full"
    """Of the methods that train: what is kept for the gradient."""
    batches: int = 20
    """How many are timed."""
    warm_up: int = 5
    """How many go before; a graph is captured once shapes have repeated."""

    def __post_init__(self) -> None:
        require(check_integer("batches", self.batches) >= 1, "batches", self.batches, "1 or more")
        require(check_integer("warm_up", self.warm_up) >= 0, "warm_up", self.warm_up, "0 or more")

    def as_table(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "device": str(self.device)}

    def session(self, case: SpeedCase, **changes: Any) -> Session:
        """A session for a case, its memories full."""
        # Only a method that trains has the setting, and "full" is its default.
        saving = {"memory": self.memory} if case.epochs and self.memory != "full" else {}
        return filled_session(
            case, self.device, eager=self.eager, precision=self.precision, **saving, **changes
        )


def measure(
    case: SpeedCase, conditions: Conditions, *, rate: Callable[[Execution], float]
) -> SpeedMeasurement:
    """Time a case; one that does not fit, or that its model cannot do, is reported as such.

    `rate` gives the machine's own matmul rate in the arithmetic of a path.
    """
    try:
        return _measured(case, conditions, rate)
    except (RuntimeError, BittaError) as error:
        if isinstance(error, DeviceMemoryError) or is_out_of_memory(error):
            failure = DOES_NOT_FIT
        elif isinstance(error, BittaError) and not isinstance(error, SettingError):
            failure = str(error)
        else:
            raise
    # Out of the handler, whose traceback holds on to tensors.
    _forget(conditions.device)
    return SpeedMeasurement(case=case, failure=failure)


def _measured(
    case: SpeedCase, conditions: Conditions, rate: Callable[[Execution], float]
) -> SpeedMeasurement:
    plain = replace(conditions, eager=True, memory="full")
    flops = flops_per_batch(case, lambda few: _plain_step(few, plain))
    inputs = random_batches(case, conditions.device)
    batches, execution = _batches(case, conditions, inputs)
    _forget(conditions.device)
    return replace(
        batches,
        serve_ms=_serving_ms(case, conditions, inputs),
        flops=flops,
        matmul_share=flops / (batches.ms / 1000) / rate(execution),
    )


def _batches(
    case: SpeedCase, conditions: Conditions, inputs: Sequence[Tensor]
) -> tuple[SpeedMeasurement, Execution]:
    """Time and memory of whole batches: serve, select, learn."""
    device, low = conditions.device, conditions.memory == "low"
    _forget(device)
    reset_peak_memory(device)
    with conditions.session(case) as session:
        for place in range(conditions.warm_up):
            session.step(inputs[place % 2])
        peak_before = peak_memory(device)
        counts = session.adapter.wrapped.counts
        forwards, backwards = counts.forwards, counts.backwards
        reset_peak_memory(device)
        watch, ms = DeviceTimer(device), []
        for place in range(conditions.batches):
            watch.start()
            session.step(inputs[place % 2])
            ms.append(1000 * watch.stop())
        peak = peak_memory(device)
        first, middle, third = quantiles(ms, n=4, method="inclusive") if len(ms) > 1 else 3 * ms
        measured = SpeedMeasurement(
            case=case,
            execution=str(session.execution) + (", low memory" if case.epochs and low else ""),
            n_timed=len(ms),
            ms=middle,
            ms_p25=first,
            ms_p75=third,
            peak_memory=max(peak_before, peak),
            timed_peak_memory=peak,
            reserved_memory=torch.cuda.memory_reserved(device) if device.type == "cuda" else 0,
            forwards=(counts.forwards - forwards) // len(ms),
            backwards=(counts.backwards - backwards) // len(ms),
        )
        return measured, session.execution


def _serving_ms(case: SpeedCase, conditions: Conditions, inputs: Sequence[Tensor]) -> float:
    """Median time of a request while no question and no learning is due.

    Batches smaller than the window count as long as they leave it unfilled; larger ones come
    without a window, and nobody is asked.
    """
    window = _WINDOW if case.batch < _WINDOW else 0
    # A window's worth of requests first, so that each is served amid a full one.
    warm_up = conditions.warm_up + -(-window // case.batch)
    watch, served = DeviceTimer(conditions.device), 0
    ms: list[float] = []
    with conditions.session(case, n_queries=0, window=window) as session:
        while len(ms) < conditions.batches:
            windows = session.n_steps
            watch.start()
            session.predict(inputs[served % 2])
            took = 1000 * watch.stop()
            served += 1
            if served > warm_up and not (window and session.n_steps > windows):
                ms.append(took)
    return median(ms)


def _plain_step(case: SpeedCase, conditions: Conditions) -> Callable[[], object]:
    """A batch that is not the first: that one also probes the model."""
    inputs = random_batches(case, conditions.device)
    session = conditions.session(case)
    session.step(inputs[0])
    return lambda: session.step(inputs[1])


def _forget(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
