"""Capture repeated work as CUDA graphs and replay it."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

import torch
from torch import Tensor

from bitta.errors import FallbackWarning
from bitta.nn.fast.execution import is_out_of_memory
from bitta.seeding import Key, RandomKey, derive_seed

Tensors: TypeAlias = dict[str, Tensor]
Work: TypeAlias = Callable[..., Tensors]
"""Function of tensors and of `random_key` that runs on a GPU. It may change weights in place."""

_MIN_STABLE_STEPS = 3


@dataclass(slots=True)
class PassCounts:
    """Counts of passes. A pass of a batch adds the number of its samples."""

    forwards: int = 0
    """Forward passes."""
    forwards_with_gradient: int = 0
    """Forward passes with gradients enabled."""
    backwards: int = 0
    """Backward passes."""

    def values(self) -> tuple[int, int, int]:
        """Return all counters."""
        return self.forwards, self.forwards_with_gradient, self.backwards

    def set(self, values: tuple[int, int, int]) -> None:
        """Set all counters."""
        self.forwards, self.forwards_with_gradient, self.backwards = values

    def add(self, more: tuple[int, int, int]) -> None:
        """Add to all counters."""
        self.forwards += more[0]
        self.forwards_with_gradient += more[1]
        self.backwards += more[2]


class CudaGraphs:
    """Runs work eagerly until its shapes have been stable for a few steps, then replays a graph.

    There is one graph per name, in memory of its own. Work runs eagerly while its shapes change, as
    an update does while the memories of answers fill. After each capture, new shapes must be stable
    for twice as many steps before the next capture, so that few captured graphs go unused.
    """

    def __init__(self, counts: PassCounts, *, enabled: bool) -> None:
        self.enabled = enabled
        self.seconds = 0.0
        """Time spent on capturing."""
        self._counts = counts
        self._graphs: dict[Hashable, _CapturedGraph] = {}
        self._histories: dict[Hashable, _ShapeHistory] = {}
        self._is_running = False

    def run(
        self,
        name: Hashable,
        work: Work,
        inputs: Sequence[Tensor],
        random_key: RandomKey,
        *,
        weights: Sequence[Tensor],
        step: int | None = None,
    ) -> Tensors:
        """Return the result of `work` for these inputs and random numbers.

        Args:
            name: Name of the work. Work of the same name may differ only in the values of its
                inputs and in the addresses of the weights.
            work: The work.
            inputs: Its inputs.
            random_key: Key of its random numbers.
            weights: Weights that the work reads or changes.
            step: Number of the step. Several calls in one step count as one. With None every call
                counts.
        """
        if not self.enabled or self._is_running:
            return work(*inputs, random_key=random_key)
        signature = (
            *((x.shape, x.stride(), x.dtype) for x in inputs),
            *(weight.data_ptr() for weight in weights),
        )
        history = self._histories.setdefault(name, _ShapeHistory())
        if name in self._graphs and history.captured == signature:
            history.note_replay()
            return self._graphs[name].replay(inputs, random_key.key)
        history.add(signature, step)
        if history.is_stable and self._capture(name, work, inputs, history.addresses):
            history.note_capture()
            # Capturing counts the passes without running them. Do not count them twice.
            return self._graphs[name].replay_uncounted(inputs, random_key.key)
        recording_key = _RecordingKey(random_key.key)
        with self._running():
            outputs = work(*inputs, random_key=recording_key)
        history.addresses = recording_key.addresses
        return outputs

    def clear(self) -> None:
        """Free all graphs."""
        self._graphs.clear()
        self._histories.clear()

    def _capture(
        self, name: Hashable, work: Work, inputs: Sequence[Tensor], addresses: "RandomAddresses"
    ) -> bool:
        started, counts = perf_counter(), self._counts.values()
        self._graphs.pop(name, None)  # Frees its memory before the next graph takes more.
        # Free the matmul workspaces of eager runs. Capturing allocates its own.
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with self._running():
                graph = _CapturedGraph(work, inputs, addresses, self._counts)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            self.enabled = False
            self._counts.set(counts)
            warnings.warn(
                f"the model cannot be captured as a CUDA graph ({str(error).splitlines()[0]}); "
                "running it eagerly.",
                FallbackWarning,
                stacklevel=2,
            )
            return False
        self._graphs[name] = graph
        self.seconds += perf_counter() - started
        return True

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Mark that work is running. Work that it calls runs eagerly, as a part of it."""
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False


RandomAddresses: TypeAlias = list[tuple[Key, torch.device | str]]
"""Keys and devices of the generators that some work requests, in order."""


class _ShapeHistory:
    """Number of consecutive steps in which some work had the same signature.

    A signature is the shapes, strides and types of the inputs, and the addresses of the weights.
    """

    def __init__(self) -> None:
        self.captured: Hashable = None
        self.addresses: RandomAddresses = []
        self._signature: Hashable = None
        self._n_steps = 0
        self._n_required = _MIN_STABLE_STEPS
        self._step: int | None = None

    @property
    def is_stable(self) -> bool:
        """True if the signature has been the same for long enough."""
        return self._n_steps > self._n_required

    def add(self, signature: Hashable, step: int | None) -> None:
        """Add a signature that was not captured."""
        if signature != self._signature:
            self._signature, self._n_steps = signature, 1
        elif step is None or step != self._step:
            self._n_steps += 1
        self._step = step

    def note_replay(self) -> None:
        """Restart the count of stable steps, because the captured signature was used again."""
        self._signature, self._n_steps = self.captured, 0

    def note_capture(self) -> None:
        """Register the signature as captured. The next one must be stable for twice as long."""
        self.captured = self._signature
        self._n_required *= 2


class _CapturedGraph:
    """CUDA graph with static inputs and outputs, and generators that are seeded per replay."""

    def __init__(
        self,
        work: Work,
        inputs: Sequence[Tensor],
        addresses: RandomAddresses,
        counts: PassCounts,
    ) -> None:
        self._inputs = [x.clone() for x in inputs]
        self._generators = [(key, torch.Generator(device)) for key, device in addresses]
        self._graph = torch.cuda.CUDAGraph()
        for _, generator in self._generators:
            self._graph.register_generator_state(generator)
        self._counts, before = counts, counts.values()
        # Use a stream of this device: by default torch uses a stream of the first device it saw.
        # With "thread_local", copies of batches by other threads do not make the capture fail.
        stream = torch.cuda.Stream(inputs[0].device)
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._outputs = work(*self._inputs, random_key=_ReplayingKey(self._generators))
        # Capturing writes the seeds of the generators on that stream. Wait for it: otherwise it
        # could overwrite the seeds of the first replay.
        stream.synchronize()
        after = counts.values()
        self._counted = (after[0] - before[0], after[1] - before[1], after[2] - before[2])

    def replay(self, inputs: Sequence[Tensor], key: Key) -> Tensors:
        """Replay the work with other values and count its passes."""
        self._counts.add(self._counted)
        return self.replay_uncounted(inputs, key)

    def replay_uncounted(self, inputs: Sequence[Tensor], key: Key) -> Tensors:
        """Replay the work with other values."""
        for static, given in zip(self._inputs, inputs, strict=True):
            static.copy_(given)
        for address, generator in self._generators:
            generator.manual_seed(derive_seed(*key, *address))
        self._graph.replay()
        # Clone: the next replay of this or another graph overwrites the static outputs.
        return {name: output.clone() for name, output in self._outputs.items()}


class _RecordingKey(RandomKey):
    """Records the addresses of the generators that it returns."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.addresses: RandomAddresses = []

    def at(self, *place: str | int, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a new generator for one address."""
        self.addresses.append((place, device))
        return super().at(*place, device=device)


class _ReplayingKey(RandomKey):
    """Returns the generators of a graph, in the order of the recorded addresses."""

    def __init__(self, generators: list[tuple[Key, torch.Generator]]) -> None:
        super().__init__(())
        self._generators = iter(generators)

    def at(self, *place: str | int, device: torch.device | str = "cpu") -> torch.Generator:  # noqa: ARG002
        """Return the generator of this address."""
        recorded, generator = next(self._generators, (None, None))
        if generator is None or recorded != place:
            raise RuntimeError(
                f"it draws random numbers for {place}, but for {recorded} in the eager run"
            )
        return generator
