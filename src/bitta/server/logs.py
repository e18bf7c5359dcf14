"""JSON logs, one object per line."""

import logging
import sys
from contextlib import suppress
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.processors import ExceptionRenderer
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import FilteringBoundLogger

Level = Literal["debug", "info", "warning", "error"]


def make_logger(level: Level = "info", stream: TextIO | None = None) -> FilteringBoundLogger:
    """Return a new logger. The global configuration of structlog does not change."""
    logger: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(cast("TextIO", _ErrorIgnoringStream(stream or sys.stderr))),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Local variables could contain keys and images.
            ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(default=str),
        ],
    ).bind()
    return logger


class _ErrorIgnoringStream:
    """Stream that drops lines if the disk is full, so that requests still succeed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class LogForwarder(logging.Handler):
    """Handler that forwards the logs of libraries to our logger, so that all logs are JSON."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        """Forward a record with its traceback."""
        extra: dict[str, Any] = {"exc_info": record.exc_info} if record.exc_info else {}
        self._logger.log(record.levelno, record.getMessage(), logger=record.name, **extra)
