"""What `bitta speed` can time: a case, or cases along one axis, by name."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from bitta.config import check_integer, require
from bitta.errors import SettingError, unknown_name_error
from bitta.methods import get_method
from bitta.methods.base import GradientConfig
from bitta.metrics import SpeedCase
from bitta.models import ARCHITECTURES

_DEFAULT: Mapping[str, Any] = {
    "model": "resnet18", "n_classes": 10, "batch": 64, "n_queries": 3, "memory": 64, "passes": 4,
}  # fmt: skip
_ALL_METHODS = ("source", "bn_stats", "tent", "bitta")
_OPTIONS = {"n_classes": "--classes", "memory": "--capacity"}
"""What the command line calls a field of a case, where the name is not the same."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Some cases, described."""

    summary: str
    methods: Sequence[str] = ("bitta",)
    axis: str = ""
    """The field of a case that takes each of `values`; none if empty."""
    values: Sequence[int | str] = ()
    common: Mapping[str, Any] = field(default_factory=dict)
    """What is other than in the default case."""
    of_method: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What is other for one method."""


GRIDS: Mapping[str, Grid] = {
    "default": Grid(summary="every method on a ResNet-18 for small images", methods=_ALL_METHODS),
    "headline": Grid(summary="BiTTA on a ResNet-18 for small images, batch 64"),
    "batch": Grid(summary="images per batch", axis="batch", values=(1, 16, 64, 256)),
    "memory": Grid(
        summary="capacity of each memory", axis="memory", values=(64, 128, 256, 512, 1024)
    ),
    "classes": Grid(summary="number of classes", axis="n_classes", values=(10, 100, 1000)),
    "passes": Grid(summary="MC-dropout passes N", axis="passes", values=(1, 2, 4, 8)),
    "models": Grid(
        summary="models of 224-pixel images, 1,000 classes",
        axis="model",
        values=("imagenet_resnet18", "imagenet_resnet50", "vit_b_16"),
        common={"n_classes": 1000},
    ),
    "tiny-imagenet": Grid(
        summary="shapes of the paper's runtime table: torchvision's ResNet-18, 224 px, 200 classes",
        methods=_ALL_METHODS,
        common={"model": "imagenet_resnet18", "n_classes": 200},
        of_method={"bitta": {"epochs": 5, "settings": {"dropout": 0.1, "restore": 0.01}}},
    ),
}


def grid_named(name: str) -> Grid:
    """Look a grid up."""
    if name not in GRIDS:
        raise unknown_name_error("grid", name, [*GRIDS, "all"])
    return GRIDS[name]


def cases_of(
    names: Sequence[str], *, methods: Sequence[str] = (), changes: Mapping[str, Any]
) -> list[SpeedCase]:
    """The cases of some grids, each once; `changes` are to fields that a grid leaves fixed."""
    wanted = list(GRIDS) if "all" in names else names
    cases: list[SpeedCase] = []
    for name in wanted:
        grid = grid_named(name)
        if grid.axis in changes:
            option = _OPTIONS.get(grid.axis, f"--{grid.axis}")
            raise SettingError(f"{option} is given, but grid {name!r} varies it; leave one out.")
        for method in methods or grid.methods:
            along = _cases(grid, method, changes)
            cases += [case for case in along if case not in cases]
    return cases


def _cases(grid: Grid, method: str, changes: Mapping[str, Any]) -> Iterator[SpeedCase]:
    fixed = {**_DEFAULT, **grid.common, **grid.of_method.get(method, {}), **changes}
    places = [{grid.axis: value} for value in grid.values] if grid.axis else [{}]
    for place in places:
        yield _case(method, {**fixed, **place})


def _case(method: str, values: Mapping[str, Any]) -> SpeedCase:
    """Fill in what follows from the method and the model, and check the rest."""
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
    _check(case, trains=isinstance(config, GradientConfig))
    return case


def _check(case: SpeedCase, *, trains: bool) -> None:
    for name in (item.name for item in fields(case) if item.type is int):
        least = 0 if name == "n_queries" or (not trains and name in ("epochs", "memory")) else 1
        value = check_integer(name, getattr(case, name))
        require(value >= least, name, value, f"{least} or more")
    require(case.n_classes >= 2, "n_classes", case.n_classes, "2 or more")
