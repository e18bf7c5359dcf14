"""Batches that are ready before they are asked for."""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import TypeAlias

import torch

from bitta.streams import Stream, as_floats
from bitta.types import Batch

_N_READY = 4

Copied: TypeAlias = tuple[Batch, torch.cuda.Event | None]
"""A batch on its device; a GPU has it once the event has come."""


class Prefetch:
    """The batches of a stream on one device, the same as `stream.batches(start)`.

    One thread keeps a few batches ready; another makes the domains of the next visit while this one
    is taken. What was made is let go once no later visit needs it.

    `ahead` is for GPUs unless said otherwise: on a CPU the threads would only take cores from the
    model. Pinning and copying happen in the reading thread, so CUDA graphs that are captured
    meanwhile need `capture_error_mode="thread_local"`.
    """

    def __init__(
        self, stream: Stream, device: torch.device, *, start: int = 0, ahead: bool | None = None
    ) -> None:
        self._stream, self._device, self._start = stream, device, start
        self._ahead = device.type == "cuda" if ahead is None else ahead
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._coming: Future[None] | None = None
        self._reading = self._making = 0.0
        self.waiting = 0.0
        """Seconds for which whoever takes the batches had to wait for them."""

    @property
    def making(self) -> float:
        """Seconds spent on reading, decoding and corrupting, in whichever thread."""
        return self._reading + self._making

    def batches(self) -> Generator[Batch]:
        """From `start` on; close it to stop the threads early."""
        with closing(self._in_background() if self._ahead else self._walk(self._prepare)) as source:
            while True:
                asked = perf_counter()
                taken = next(source, None)
                self.waiting += perf_counter() - asked
                if taken is None:
                    return
                yield self._arrived(*taken)

    def _in_background(self) -> Generator[Copied]:
        reader = ThreadPoolExecutor(1, "bitta-reader")
        maker = ThreadPoolExecutor(1, "bitta-maker")
        walk = self._walk(lambda visit: self._make_ahead(visit, maker))

        def one() -> Future[Copied | None]:
            return reader.submit(next, walk, None)

        try:
            ready = deque(one() for _ in range(_N_READY))
            while (taken := ready.popleft().result()) is not None:
                ready.append(one())
                yield taken
        finally:
            maker.shutdown(wait=False, cancel_futures=True)
            reader.shutdown(cancel_futures=True)
            maker.shutdown()

    def _walk(self, enter: Callable[[int], None]) -> Generator[Copied]:
        """Batch by batch; `enter` sees to it that the images of a visit are there."""
        entered = -1
        for number in range(self._start, len(self._stream)):
            visit = self._stream.visit_of(number)
            if visit != entered:
                self._stream.release(before=visit)
                enter(visit)
                entered = visit
            started = perf_counter()
            copied = self._copied(self._stream.read(number))
            self._reading += perf_counter() - started
            yield copied

    def _make_ahead(self, visit: int, maker: ThreadPoolExecutor) -> None:
        if self._coming is not None:
            self._coming.result()
        self._prepare(visit)  # nothing is left to do where it was the one that came
        if visit + 1 < len(self._stream.visits):
            self._coming = maker.submit(self._prepare, visit + 1)

    def _prepare(self, visit: int) -> None:
        started = perf_counter()
        self._stream.prepare(visit)
        self._making += perf_counter() - started

    def _copied(self, batch: Batch) -> Copied:
        if self._side is None:
            return replace(batch, inputs=as_floats(batch.inputs)), None
        with torch.cuda.stream(self._side):
            there = batch.inputs.pin_memory().to(self._device, non_blocking=True)
            inputs = as_floats(there)
            return replace(batch, inputs=inputs), self._side.record_event()

    def _arrived(self, batch: Batch, copied: torch.cuda.Event | None) -> Batch:
        """The batch, for work that is queued from here on."""
        if copied is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(copied)
            # Its memory belongs to the side stream, and must not be reused before this one is done.
            batch.inputs.record_stream(current)
        return batch
