"""Logs as JSON, one line each, with what a machine can search for."""

import logging
import sys
from contextlib import suppress
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import FilteringBoundLogger

Level = Literal["debug", "info", "warning", "error"]


def make_log(level: Level = "info", stream: TextIO | None = None) -> FilteringBoundLogger:
    """A log of its own: nothing is set up for the whole process."""
    made: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(cast("TextIO", _Patient(stream or sys.stderr))),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Without local variables: they hold keys and pictures.
            ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(default=str),
        ],
    ).bind()
    return made


class _Patient:
    """A stream on a disk that may be full: a line is lost then, not the request it is about."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class Forward(logging.Handler):
    """Hands what libraries log on to ours, so that one format comes out."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One line, with the traceback where there is one."""
        more: dict[str, Any] = {"exc_info": record.exc_info} if record.exc_info else {}
        self._log.log(record.levelno, record.getMessage(), logger=record.name, **more)
