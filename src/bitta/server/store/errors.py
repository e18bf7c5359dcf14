"""What the store refuses, and what the database beneath it cannot do."""

# ruff: noqa: N818 (each is named after what happened)

from bitta.errors import BittaError


class StoreError(BittaError):
    """Root of everything the store refuses."""


class IdempotencyConflict(StoreError):
    """An idempotency key came again with another body."""


class UnknownPrediction(StoreError, LookupError):
    """No prediction has this id."""


class UnknownFeedback(StoreError, LookupError):
    """No feedback has this id."""


class UnknownSnapshot(StoreError, LookupError):
    """No snapshot has this id."""


class QuestionExpired(StoreError):
    """The question is over: its time has passed, or it went to another annotator."""


class StoreInUse(StoreError):
    """The data folder or the database belongs to another process that runs."""


class NewerSchema(StoreError):
    """The database was written by a version of bitta that is newer than this one."""


class StoreClosed(StoreError):
    """The store was closed."""


class StoreUnavailable(StoreError):
    """The database cannot be written at the moment; nothing was stored."""


class StoreBusy(StoreUnavailable):
    """Another program holds the database, or too much waits to be written."""


class StoreFull(StoreUnavailable):
    """There is no room left to write."""
