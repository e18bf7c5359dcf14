"""Text as it comes from outside: bounded, printable where it must be, storable everywhere."""

from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

_DEPTH = 8
_ITEMS = 200


def storable(text: str) -> str:
    """PostgreSQL stores no NUL, UTF-8 no half of a surrogate pair."""
    if "\x00" in text:
        raise ValueError("text must not contain the character U+0000")
    return _paired(text)


def plain_tree(value: Any) -> Any:
    """JSON that can be stored and sent back: finite numbers, storable text, not deep, not large."""
    _check(value, _DEPTH, [_ITEMS])
    return value


def whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_NO_NUL = r"^[^\x00]*$"
Comment = Annotated[
    str, StringConstraints(max_length=2000, pattern=_NO_NUL), AfterValidator(storable)
]
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=_NO_NUL), AfterValidator(storable)
]
Metadata = Annotated[
    dict[str, Any],
    BeforeValidator(plain_tree),
    Field(description=f"At most {_ITEMS} values, nested at most {_DEPTH} deep."),
]


def _paired(text: str) -> str:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("text must not contain half of a surrogate pair")
    return text


def _check(value: Any, depth: int, left: list[int]) -> None:
    left[0] -= 1
    if depth < 0 or left[0] < 0:
        raise ValueError(f"at most {_ITEMS} values, nested at most {_DEPTH} deep, are kept")
    if isinstance(value, str):
        _paired(value)
        if len(value) > 2000:
            raise ValueError("text is kept up to 2000 characters")
    elif isinstance(value, float):
        if not isfinite(value):
            raise ValueError("numbers must be finite")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check(key, depth - 1, left)
            _check(inner, depth - 1, left)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, depth - 1, left)
