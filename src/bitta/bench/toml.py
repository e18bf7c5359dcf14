"""TOML into frozen dataclasses, with errors that name the key."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitta.errors import InputError, SettingError


def read_toml(path: str | Path) -> dict[str, Any]:
    """Parse a file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{str(path)!r} is not valid TOML: {error}.") from None


def override(table: dict[str, Any], assignment: str) -> None:
    """Apply `a.b=c` in place; the value is read as TOML, or as a string if it is none."""
    path, equals, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise SettingError(f"--set {assignment!r} is not of the form a.b=value.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = _number(text.strip())
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise SettingError(f"--set {assignment!r}: {key!r} is a value, not a table.")
    table[keys[-1]] = value


def _number(text: str) -> float | str:
    """TOML wants 0.1 where people write .1; what is no number stays text."""
    try:
        return float(text)
    except ValueError:
        return text


def section(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A sub-table, empty if absent."""
    value = table.get(name, {})
    if not isinstance(value, dict):
        raise SettingError(f"{name} is {value!r}; a table [{name}] is needed.")
    return value
