"""The stub on a port of its own."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import uvicorn

from server.pages.stub import create
from server.pages.stub_state import State


class Site:
    """A running stub: its address, and the state tests look into."""

    def __init__(self) -> None:
        self.state = State()
        config = uvicorn.Config(
            create(self.state), port=0, log_level="error", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self.url = ""

    def __enter__(self) -> "Site":
        self._thread.start()
        until(lambda: self._server.started)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    @contextmanager
    def without_streams(self) -> Iterator[None]:
        """End every open event stream and take no other, as while the server restarts."""
        self.state.streaming = False
        yield
        self.state.streaming = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.state.stopping = True
        self._server.should_exit = True
        self._thread.join(30)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something to become true, or fail."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass in time"
        time.sleep(0.02)
