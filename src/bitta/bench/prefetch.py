"""Read batches ahead in background threads, so that a GPU does not wait for images."""

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
"""Number of batches that are kept ready."""

LoadedBatch: TypeAlias = tuple[Batch, torch.cuda.Event | None]
"""A batch on its device. The copy to a GPU is complete after the event."""


class Prefetch:
    """The batches of a stream on one device. They equal `stream.batches(start)`.

    One thread keeps a few batches ready. While it reads one visit (consecutive samples of a
    domain), another thread makes the images of the next. Images are released when no later visit
    needs them.

    `ahead` turns the threads on. By default they run for GPUs only, because on a CPU they would
    take cores from the model. Pinning and copying happen in the reading thread, so CUDA graphs that
    are captured meanwhile need `capture_error_mode="thread_local"`.
    """

    def __init__(
        self, stream: Stream, device: torch.device, *, start: int = 0, ahead: bool | None = None
    ) -> None:
        self._stream, self._device, self._start = stream, device, start
        self._ahead = device.type == "cuda" if ahead is None else ahead
        self._copy_stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._next_visit: Future[None] | None = None
        self._reading_seconds = self._preparing_seconds = 0.0
        self.waiting_seconds = 0.0
        """Time for which the consumer waited for batches."""

    @property
    def making_seconds(self) -> float:
        """Time for reading, decoding and corrupting images, in all threads."""
        return self._reading_seconds + self._preparing_seconds

    def batches(self) -> Generator[Batch]:
        """Yield batches from `start` on. Close the generator to stop the threads early."""
        with closing(self._read_ahead() if self._ahead else self._read(self._prepare)) as batches:
            while True:
                requested = perf_counter()
                loaded = next(batches, None)
                self.waiting_seconds += perf_counter() - requested
                if loaded is None:
                    return
                yield self._wait_for_copy(*loaded)

    def _read_ahead(self) -> Generator[LoadedBatch]:
        reader = ThreadPoolExecutor(1, "bitta-reader")
        maker = ThreadPoolExecutor(1, "bitta-maker")
        batches = self._read(lambda visit: self._prepare_ahead(visit, maker))

        def submit() -> Future[LoadedBatch | None]:
            return reader.submit(next, batches, None)

        try:
            ready = deque(submit() for _ in range(_N_READY))
            while (loaded := ready.popleft().result()) is not None:
                ready.append(submit())
                yield loaded
        finally:
            maker.shutdown(wait=False, cancel_futures=True)
            reader.shutdown(cancel_futures=True)
            maker.shutdown()

    def _read(self, prepare: Callable[[int], None]) -> Generator[LoadedBatch]:
        """Yield batch after batch. `prepare` makes the images of a visit."""
        current_visit = -1
        for number in range(self._start, len(self._stream)):
            visit = self._stream.find_visit(number)
            if visit != current_visit:
                self._stream.release(before=visit)
                prepare(visit)
                current_visit = visit
            started = perf_counter()
            loaded = self._load(self._stream.read(number))
            self._reading_seconds += perf_counter() - started
            yield loaded

    def _prepare_ahead(self, visit: int, maker: ThreadPoolExecutor) -> None:
        if self._next_visit is not None:
            self._next_visit.result()
        self._prepare(visit)  # no work if the background thread has prepared this visit
        if visit + 1 < len(self._stream.visits):
            self._next_visit = maker.submit(self._prepare, visit + 1)

    def _prepare(self, visit: int) -> None:
        started = perf_counter()
        self._stream.prepare(visit)
        self._preparing_seconds += perf_counter() - started

    def _load(self, batch: Batch) -> LoadedBatch:
        if self._copy_stream is None:
            return replace(batch, inputs=as_floats(batch.inputs)), None
        with torch.cuda.stream(self._copy_stream):
            raw = batch.inputs.pin_memory().to(self._device, non_blocking=True)
            inputs = as_floats(raw)
            return replace(batch, inputs=inputs), self._copy_stream.record_event()

    def _wait_for_copy(self, batch: Batch, copied: torch.cuda.Event | None) -> Batch:
        """Return the batch. GPU work that is queued from now on waits for the copy."""
        if copied is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(copied)
            # The copy stream owns the memory and must not reuse it before this stream is done.
            batch.inputs.record_stream(current)
        return batch
