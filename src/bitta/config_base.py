"""Settings as frozen dataclasses, built from keywords, checked, documented by docstrings."""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from math import isfinite
from numbers import Integral, Real
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from bitta.errors import SettingError, unknown_name_error


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base class of settings. `presets` are named sets of values for some of them."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __post_init__(self) -> None:
        """Check the values. Subclasses call this first."""


C = TypeVar("C", bound=Config)


_SYNONYMS = {
    "learning_rate": "lr", "n_epochs": "epochs", "dropout_rate": "dropout", "n_passes": "passes",
    "k": "n_queries", "n_questions": "n_queries",
}  # fmt: skip
"""Names of settings in other libraries and in the paper."""


@dataclass(frozen=True)
class Setting:
    """Name, default and meaning of one field."""

    name: str
    default: Any
    meaning: str


def build_config(kind: type[C], given: Mapping[str, Any], *, preset: str | None, of: str) -> C:
    """Build a config from a preset and keywords. `of` names its owner in error messages."""
    known = {field.name for field in fields(kind)}
    for name in given:
        if name not in known:
            meant = _SYNONYMS.get(name)
            if meant is not None and (meant in known or meant == "n_queries"):
                raise SettingError(f"unknown setting {name!r} of {of}; it is called {meant!r}.")
            raise unknown_name_error("setting", name, known, of=of)
    if preset is not None and preset not in list(kind.presets):
        if not kind.presets:
            raise SettingError(f"{of} has no presets, but {preset!r} was given; leave preset out.")
        raise unknown_name_error("preset", str(preset), kind.presets, of=of)
    values = dict(kind.presets[preset]) if preset else {}
    values.update(given)
    hints = get_type_hints(kind)
    return kind(**{name: _check_type(name, value, hints[name]) for name, value in values.items()})


def describe_settings(kind: type[Config]) -> list[Setting]:
    """Return every field with its default and the docstring under it."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, Config):
            meanings.update(_field_docstrings(base))
    return [
        Setting(field.name, _default_of(field), meanings.get(field.name, ""))
        for field in fields(kind)
    ]


def _default_of(field: Field[Any]) -> Any:
    """Return the default; None if the field must be given."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def check_integer(name: str, value: Any) -> int:
    """Return an integer of any type as an int. Raise an error for any other value."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SettingError(f"{name} is {value!r}; allowed: a whole number.")
    return int(value)


def require(condition: bool, name: str, value: Any, allowed: str) -> None:
    """Raise an error if the condition on a value does not hold."""
    if not condition:
        raise SettingError(f"{name} is {value!r}; allowed: {allowed}.")


def _check_type(name: str, value: Any, hint: Any) -> Any:
    if hint is float and not isinstance(value, bool) and isinstance(value, Real):
        require(isfinite(value), name, value, "a finite number")
        return float(value)
    if hint is int:
        return check_integer(name, value)
    if get_origin(hint) is not None and any(isinstance(arg, str) for arg in get_args(hint)):
        require(value in get_args(hint), name, value, ", ".join(map(repr, get_args(hint))))
        return value
    if hint in (float, bool, str) and not isinstance(value, hint):
        raise SettingError(f"{name} is {value!r}; allowed: a value of type {hint.__name__}.")
    return value


def _field_docstrings(kind: type) -> dict[str, str]:
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found
