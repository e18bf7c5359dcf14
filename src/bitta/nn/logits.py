"""Logits out of whatever a model returns."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from bitta.errors import ModelError

LogitsOf: TypeAlias = str | int | Callable[[Any], Tensor] | None
"""Which part of a model's output holds the logits: a name, a place, a function; None for all."""


def logits_of(output: Any, part: LogitsOf, *, rows: int) -> Tensor:
    """The part that is said to hold the logits, (rows, classes)."""
    found = _part(output, part)
    if not isinstance(found, Tensor):
        raise ModelError(
            f"the model returned {type(found).__name__} where logits are needed; say which "
            'part holds them: logits="name" for a dict or an object, logits=0 for a tuple, or '
            "a function of the output."
        )
    if found.dim() != 2 or len(found) != rows or found.shape[1] < 2:
        raise ModelError(
            f"logits have shape {tuple(found.shape)}; ({rows}, classes) is needed, with two "
            "classes or more."
        )
    return found


def _part(output: Any, part: LogitsOf) -> Any:
    if part is None:
        return output
    if callable(part):
        return part(output)
    try:
        if isinstance(output, Mapping) or isinstance(part, int):
            return output[part]
        return getattr(output, part)
    except (LookupError, AttributeError, TypeError):
        parts = f"; it has {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        raise ModelError(
            f"the model's {type(output).__name__} has no part {part!r} for logits{parts}."
        ) from None
