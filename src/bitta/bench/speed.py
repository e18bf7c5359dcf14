"""Measure the speed of methods on random tensors, with full memories."""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bitta.config_base import check_integer, require
from bitta.errors import BittaError, DeviceMemoryError, SettingError, unknown_name_error
from bitta.methods import get_method
from bitta.methods.base import GradientAdapter, GradientConfig
from bitta.metrics import DeviceTimer, peak_memory, reset_peak_memory
from bitta.models import ARCHITECTURES, build_model, initialise
from bitta.nn import Execution, Precision
from bitta.nn.fast.execution import is_out_of_memory
from bitta.results import read_table, write_table
from bitta.seeding import generator
from bitta.session import Session
from bitta.speed_records import DOES_NOT_FIT, SpeedCase, SpeedMeasurement
from bitta.types import Answer, Feedback, Query, State

_FORMAT = 1
_WINDOW = 64
"""Samples per window when single requests are timed."""
_SMALL_CASE_SIZE = 4
"""Batch size and memory capacity of the small cases on which operations are counted."""
_PIXEL_STATISTICS = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
_MATMUL_SIDES = {"cuda": 8192, "cpu": 1024}
"""Sides of the timed matrices, large enough to occupy the whole device."""
_N_MATMUL_WARM_UP, _N_MATMUL = 3, 10
_DEFAULT: Mapping[str, Any] = {
    "model": "resnet18", "n_classes": 10, "batch": 64, "n_queries": 3, "memory": 64, "passes": 4,
}  # fmt: skip
_DEFAULT_METHODS = ("source", "bn_stats", "tent", "bitta")
_OPTIONS = {"n_classes": "--classes", "memory": "--capacity"}
"""Command line options whose name differs from the field of a case."""


@dataclass(frozen=True, kw_only=True)
class SpeedGrid:
    """A named set of cases, along one axis or of several methods."""

    summary: str
    methods: Sequence[str] = ("bitta",)
    axis: str = ""
    """Field of a case that takes each of `values`; empty for none."""
    values: Sequence[int | str] = ()
    common: Mapping[str, Any] = field(default_factory=dict)
    """Fields that differ from the default case."""
    by_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields that differ for one method."""


SPEED_GRIDS: Mapping[str, SpeedGrid] = {
    "default": SpeedGrid(
        summary="four methods on a ResNet-18 for small images", methods=_DEFAULT_METHODS
    ),
    "headline": SpeedGrid(summary="BiTTA on a ResNet-18 for small images, batch 64"),
    "batch": SpeedGrid(summary="images per batch", axis="batch", values=(1, 16, 64, 256)),
    "memory": SpeedGrid(
        summary="capacity of each memory", axis="memory", values=(64, 128, 256, 512, 1024)
    ),
    "classes": SpeedGrid(summary="number of classes", axis="n_classes", values=(10, 100, 1000)),
    "passes": SpeedGrid(summary="MC-dropout passes N", axis="passes", values=(1, 2, 4, 8)),
    "models": SpeedGrid(
        summary="models of 224-pixel images, 1,000 classes",
        axis="model",
        values=("imagenet_resnet18", "imagenet_resnet50", "vit_b_16"),
        common={"n_classes": 1000},
    ),
    "tiny-imagenet": SpeedGrid(
        summary="shapes of the paper's runtime table: torchvision's ResNet-18, 224 px, 200 classes",
        methods=_DEFAULT_METHODS,
        common={"model": "imagenet_resnet18", "n_classes": 200},
        by_method={"bitta": {"epochs": 5, "settings": {"dropout": 0.1, "restore": 0.01}}},
    ),
}


def grid_named(name: str) -> SpeedGrid:
    """Return the grid with this name."""
    if name not in SPEED_GRIDS:
        raise unknown_name_error("grid", name, [*SPEED_GRIDS, "all"])
    return SPEED_GRIDS[name]


def speed_cases(
    names: Sequence[str], *, methods: Sequence[str] = (), changes: Mapping[str, Any]
) -> list[SpeedCase]:
    """Return the cases of some grids, each once. `changes` apply to fields that no grid varies."""
    wanted = list(SPEED_GRIDS) if "all" in names else names
    cases: list[SpeedCase] = []
    for name in wanted:
        grid = grid_named(name)
        if grid.axis in changes:
            option = _OPTIONS.get(grid.axis, f"--{grid.axis}")
            raise SettingError(f"{option} is given, but grid {name!r} varies it; leave one out.")
        for method in methods or grid.methods:
            new = _grid_cases(grid, method, changes)
            cases += [case for case in new if case not in cases]
    return cases


def _grid_cases(grid: SpeedGrid, method: str, changes: Mapping[str, Any]) -> Iterator[SpeedCase]:
    fixed = {**_DEFAULT, **grid.common, **grid.by_method.get(method, {}), **changes}
    variations = [{grid.axis: value} for value in grid.values] if grid.axis else [{}]
    for variation in variations:
        yield _build_case(method, {**fixed, **variation})


def _build_case(method: str, values: Mapping[str, Any]) -> SpeedCase:
    """Add the fields that follow from the method and the model, and check the others."""
    kind = get_method(method)
    model = values["model"]
    if model not in ARCHITECTURES:
        raise unknown_name_error("architecture", model, ARCHITECTURES)
    filled = {"method": method, "size": ARCHITECTURES[model].size, **values}
    config = kind.Config()
    if isinstance(config, GradientConfig):
        filled.setdefault("epochs", config.epochs)
    else:
        filled |= {"epochs": 0, "memory": 0}
    if not kind.learns_from_feedback:
        filled["n_queries"] = 0
    case = SpeedCase(**filled)
    _check_case(case, has_gradient=isinstance(config, GradientConfig))
    return case


def _check_case(case: SpeedCase, *, has_gradient: bool) -> None:
    for name in (item.name for item in fields(case) if item.type is int):
        minimum = (
            0 if name == "n_queries" or (not has_gradient and name in ("epochs", "memory")) else 1
        )
        value = check_integer(name, getattr(case, name))
        require(value >= minimum, name, value, f"{minimum} or more")
    require(case.n_classes >= 2, "n_classes", case.n_classes, "2 or more")


class AlternatingAnnotator:
    """Annotator that alternates correct and incorrect, so that both memories change."""

    def __init__(self) -> None:
        self._open: list[Query] = []

    def ask(self, queries: Sequence[Query]) -> None:
        """Accept questions."""
        self._open += queries

    def collect(self) -> list[Answer]:
        """Answer "correct" to questions with an even id, and "incorrect" to the others."""
        answers = [Answer(query, query.id % 2 == 0) for query in self._open]
        self._open = []
        return answers

    def state_dict(self) -> State:
        """Return an empty state: no question is open between batches."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Do nothing, because the state is empty."""


def session_with_full_memories(case: SpeedCase, device: torch.device, **changes: Any) -> Session:
    """Build a session on a model with random weights. `changes` override settings of the case."""
    sized = {"image_size": case.size} if "image_size" in ARCHITECTURES[case.model].arguments else {}
    model = build_model(case.model, n_classes=case.n_classes, **_PIXEL_STATISTICS, **sized)
    initialise(model, seed=0)
    settings: dict[str, Any] = {"n_queries": case.n_queries, "passes": case.passes}
    if case.epochs:
        settings |= {
            "epochs": case.epochs,
            "correct_memory": case.memory,
            "incorrect_memory": case.memory,
        }
    session = Session(
        model.to(device),
        case.method,
        feedback=AlternatingAnnotator(),
        **{**settings, **case.settings, **changes},
    )
    if case.n_queries:
        fill_memories(session, random_batches(case, device)[0], case.n_classes)
    return session


def fill_memories(session: Session, inputs: Tensor, n_classes: int) -> None:
    """Fill the memories of answers with these inputs, if the method has memories."""
    adapter = session.adapter
    if isinstance(adapter, GradientAdapter):
        inputs = adapter.wrapped.prepare_inputs(inputs)
        capacity = max(adapter.memory.correct.capacity, adapter.memory.incorrect.capacity)
        adapter.memory.add(
            Feedback.from_answers(_make_answers(inputs, capacity, n_classes), like=inputs)
        )


def random_batches(case: SpeedCase, device: torch.device) -> list[Tensor]:
    """Return two batches, so that consecutive batches differ."""
    shape = (case.batch, 3, case.size, case.size)
    random = generator(0, "speed", device=device)
    return [torch.rand(shape, generator=random, device=device) for _ in range(2)]


def _make_answers(inputs: Tensor, capacity: int, n_classes: int) -> list[Answer]:
    """Make as many answers as both memories hold, half of them correct."""
    questions = [
        Query(
            id=index, index=index, served_label=index % n_classes, shown_label=index % n_classes,
            uncertainty=0.0,
            input=inputs[index % len(inputs)], step=0, version=0, position=index,
        )
        for index in range(2 * capacity)
    ]  # fmt: skip
    return [Answer(question, question.id % 2 == 0) for question in questions]


@dataclass(frozen=True, kw_only=True)
class SpeedConditions:
    """Device and options with which a case is timed."""

    device: torch.device
    eager: bool = False
    precision: Precision = "auto"
    memory: Literal["full", "low"] = "full"
    """Activations that training methods keep for the gradient."""
    batches: int = 20
    """Number of timed batches."""
    warm_up: int = 5
    """Number of batches before the timed ones. CUDA graphs are captured in them."""

    def __post_init__(self) -> None:
        require(check_integer("batches", self.batches) >= 1, "batches", self.batches, "1 or more")
        require(check_integer("warm_up", self.warm_up) >= 0, "warm_up", self.warm_up, "0 or more")

    def as_table(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "device": str(self.device)}

    def start_session(self, case: SpeedCase, **changes: Any) -> Session:
        """Start a session for a case, with full memories."""
        # Only methods that train have this setting. Its default is "full".
        setting = {"memory": self.memory} if case.epochs and self.memory != "full" else {}
        return session_with_full_memories(
            case, self.device, eager=self.eager, precision=self.precision, **setting, **changes
        )


def measure_speed(
    case: SpeedCase, conditions: SpeedConditions, *, rate: Callable[[Execution], float]
) -> SpeedMeasurement:
    """Time a case. If it does not fit into memory or is refused, return the reason as `failure`.

    `rate` returns the matmul rate of the device in the arithmetic of an execution path.
    """
    try:
        return _measure_case(case, conditions, rate)
    except (RuntimeError, BittaError) as error:
        if isinstance(error, DeviceMemoryError) or is_out_of_memory(error):
            failure = DOES_NOT_FIT
        elif isinstance(error, BittaError) and not isinstance(error, SettingError):
            failure = str(error)
        else:
            raise
    # Free memory outside of the handler: inside, the traceback still refers to tensors.
    _free_memory(conditions.device)
    return SpeedMeasurement(case=case, failure=failure)


def _measure_case(
    case: SpeedCase, conditions: SpeedConditions, rate: Callable[[Execution], float]
) -> SpeedMeasurement:
    eager = replace(conditions, eager=True, memory="full")
    flops = flops_per_batch(case, lambda small: _second_step(small, eager))
    inputs = random_batches(case, conditions.device)
    measurement, execution = _time_batches(case, conditions, inputs)
    _free_memory(conditions.device)
    return replace(
        measurement,
        serve_ms=_serving_ms(case, conditions, inputs),
        flops=flops,
        matmul_share=flops / (measurement.ms / 1000) / rate(execution),
    )


def _time_batches(
    case: SpeedCase, conditions: SpeedConditions, inputs: Sequence[Tensor]
) -> tuple[SpeedMeasurement, Execution]:
    """Measure time and memory of whole batches: serve, select, learn."""
    device, is_low = conditions.device, conditions.memory == "low"
    _free_memory(device)
    reset_peak_memory(device)
    with conditions.start_session(case) as session:
        for index in range(conditions.warm_up):
            session.step(inputs[index % 2])
        warm_up_peak = peak_memory(device)
        counts = session.adapter.wrapped.counts
        forwards, backwards = counts.forwards, counts.backwards
        reset_peak_memory(device)
        timer, ms = DeviceTimer(device), []
        for index in range(conditions.batches):
            timer.start()
            session.step(inputs[index % 2])
            ms.append(1000 * timer.stop())
        peak = peak_memory(device)
        first, middle, third = quantiles(ms, n=4, method="inclusive") if len(ms) > 1 else 3 * ms
        measured = SpeedMeasurement(
            case=case,
            execution=str(session.execution) + (", low memory" if case.epochs and is_low else ""),
            n_timed=len(ms),
            ms=middle,
            ms_p25=first,
            ms_p75=third,
            peak_memory=max(warm_up_peak, peak),
            timed_peak_memory=peak,
            reserved_memory=torch.cuda.memory_reserved(device) if device.type == "cuda" else 0,
            forwards=(counts.forwards - forwards) // len(ms),
            backwards=(counts.backwards - backwards) // len(ms),
        )
        return measured, session.execution


def _serving_ms(case: SpeedCase, conditions: SpeedConditions, inputs: Sequence[Tensor]) -> float:
    """Return the median time of a request without questions and learning.

    A batch that is smaller than a window is served with a window. A request that completes the
    window is not timed. Larger batches are served without a window.
    """
    window = _WINDOW if case.batch < _WINDOW else 0
    # Fill a window first, so that every timed request is served with a full one.
    warm_up = conditions.warm_up + -(-window // case.batch)
    timer, n_served = DeviceTimer(conditions.device), 0
    ms: list[float] = []
    with conditions.start_session(case, n_queries=0, window=window) as session:
        while len(ms) < conditions.batches:
            n_windows = session.n_steps
            timer.start()
            session.predict(inputs[n_served % 2])
            duration = 1000 * timer.stop()
            n_served += 1
            if n_served > warm_up and not (window and session.n_steps > n_windows):
                ms.append(duration)
    return median(ms)


def _second_step(case: SpeedCase, conditions: SpeedConditions) -> Callable[[], object]:
    """Run the first batch, which also probes the model. Return a function for the second one."""
    inputs = random_batches(case, conditions.device)
    session = conditions.start_session(case)
    session.step(inputs[0])
    return lambda: session.step(inputs[1])


def _free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def flops_per_batch(case: SpeedCase, step: Callable[[SpeedCase], Callable[[], object]]) -> int:
    """Return the operations of convolutions and matrix products in one batch.

    `step` prepares a case on the eager path with full memories and returns a function that runs one
    batch. The cost is linear in the batch size and in the memories. It is measured on small cases
    with the same number of questions, because the case itself may not fit into memory.
    """
    batch = min(case.batch, max(_SMALL_CASE_SIZE, case.n_queries))
    small = replace(case, batch=batch, memory=_SMALL_CASE_SIZE)
    count = _count_flops(step(small))
    per_image = _count_flops(step(replace(small, batch=batch + 1))) - count
    per_memory_entry = (
        _count_flops(step(replace(small, memory=2 * _SMALL_CASE_SIZE))) - count
    ) / _SMALL_CASE_SIZE
    more_images, more_entries = case.batch - batch, case.memory - _SMALL_CASE_SIZE
    return round(count + per_image * more_images + per_memory_entry * more_entries)


def _count_flops(step: Callable[[], object]) -> int:
    # Run attention as matrix products: the counter does not know the fused kernels of a CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def matmul_rate(device: torch.device, execution: Execution) -> float:
    """Return the operations per second of a large matrix product, the best of several runs."""
    side = _MATMUL_SIDES[device.type]
    dtype = torch.bfloat16 if execution.precision == "bfloat16" else torch.float32
    random = torch.Generator(device).manual_seed(0)
    left, right = (
        torch.rand((side, side), generator=random, device=device).to(dtype) for _ in range(2)
    )
    timer = DeviceTimer(device)
    seconds = []
    with execution.tf32_mode(), torch.no_grad():
        for _ in range(_N_MATMUL_WARM_UP + _N_MATMUL):
            timer.start()
            torch.mm(left, right)
            seconds.append(timer.stop())
    return float(2 * side**3 / min(seconds[_N_MATMUL_WARM_UP:]))


@dataclass(frozen=True, kw_only=True)
class SpeedResult:
    """Measurements of one machine under one set of conditions, stored as JSON."""

    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    """All arguments of the command."""
    matmul: Mapping[str, float]
    """Operations per second of one large matrix product, by precision."""
    measurements: Sequence[SpeedMeasurement]

    def save(self, path: str | Path) -> None:
        """Write as JSON, atomically."""
        table = {
            "format": _FORMAT,
            "environment": dict(self.environment),
            "settings": dict(self.settings),
            "matmul": dict(self.matmul),
            "measurements": [measurement.as_table() for measurement in self.measurements],
        }
        write_table(path, table)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result back."""
        table = read_table(path, format_number=_FORMAT, kind="speed result")
        table["measurements"] = [
            SpeedMeasurement.from_table(each) for each in table["measurements"]
        ]
        return cls(**table)
