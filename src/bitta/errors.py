"""What can go wrong on the user's side: what was given, what is allowed, what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class BittaError(Exception):
    """Root of every error a user can cause and mend."""


class SettingError(BittaError, ValueError):
    """A setting has an unknown name or a value that is not allowed."""


class InputError(BittaError, ValueError):
    """Images, labels or files do not have the form that is needed."""


class UnreadableError(InputError):
    """A file is damaged, or is not what its name says."""


class ModelError(BittaError, TypeError):
    """The model cannot be used the way a method needs it."""


class FeedbackError(BittaError, LookupError):
    """An answer does not belong to an open question."""


class SpaceError(BittaError, MemoryError):
    """A step does not fit into the memory of its device."""


class FallbackWarning(UserWarning):
    """A slower way is taken because the model does not allow the fast one."""


def unknown(
    kind: str, given: str, allowed: Iterable[str], *, of: str = "", hint: str = ""
) -> SettingError:
    """Build the error for a name that is not in a table, with the nearest name that is."""
    names = sorted(allowed)
    near = get_close_matches(given, names, n=1)
    guess = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(names)}."
    whose = f" of {of}" if of else ""
    return SettingError(f"unknown {kind} {given!r}{whose}; {guess}{' ' + hint if hint else ''}")
