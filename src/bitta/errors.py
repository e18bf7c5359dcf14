"""Errors a user can cause. Messages say what was given, what is allowed and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class BittaError(Exception):
    """Base class of every error that a user can cause and fix."""


class SettingError(BittaError, ValueError):
    """Raised when a setting has an unknown name or a value that is not allowed."""


class InputError(BittaError, ValueError):
    """Raised when images, labels or files do not have the required form."""


class UnreadableFileError(InputError):
    """Raised when a file is damaged or has another format than expected."""


class ModelError(BittaError, TypeError):
    """Raised when a model, or its weights, cannot be used."""


class FeedbackError(BittaError, LookupError):
    """Raised when a feedback source refuses a question or an answer."""


class DeviceMemoryError(BittaError, MemoryError):
    """Raised when a step does not fit into the memory of its device."""


class FallbackWarning(UserWarning):
    """Issued when a fast path cannot be used and a slower one takes its place."""


class FeedbackWarning(UserWarning):
    """Issued when answers are so alike that something is probably wrong with them."""


class BenefitWarning(UserWarning):
    """Issued when paired audits show that learning lowers the accuracy."""


def unknown_name_error(
    kind: str, given: str, allowed: Iterable[str], *, of: str = "", hint: str = ""
) -> SettingError:
    """Build the error for a name that is not in a table. It suggests the nearest allowed name."""
    names = sorted(allowed)
    near = get_close_matches(given, names, n=1)
    guess = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(names)}."
    owner = f" of {of}" if of else ""
    return SettingError(f"unknown {kind} {given!r}{owner}; {guess}{' ' + hint if hint else ''}")
