"""Work that repeats with the same shapes, captured as CUDA graphs and replayed."""

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
"""A function of tensors and, as `chance`, of what it draws; it may change weights in place."""

_STEADY_TURNS = 3


@dataclass(slots=True)
class PassCounts:
    """Samples times passes so far."""

    forwards: int = 0
    """That went through the model."""
    tracked: int = 0
    """As many of these as ran with gradients enabled."""
    backwards: int = 0
    """Whose gradient was taken."""

    def values(self) -> tuple[int, int, int]:
        """All three."""
        return self.forwards, self.tracked, self.backwards

    def set(self, values: tuple[int, int, int]) -> None:
        """Go back to an earlier count."""
        self.forwards, self.tracked, self.backwards = values

    def add(self, more: tuple[int, int, int]) -> None:
        """Count what was replayed."""
        self.forwards += more[0]
        self.tracked += more[1]
        self.backwards += more[2]


class CudaGraphs:
    """Runs work plainly until its shapes have been the same for a few turns, then replays it.

    One graph is kept for each name, in memory of its own: a memory that fills gives a step a new
    shape with every answer, and none of them comes again. Whenever the shapes of some work settle
    anew it has to be steady for twice as long, so that little is captured in vain.
    """

    def __init__(self, counts: PassCounts, *, enabled: bool) -> None:
        self.enabled = enabled
        self.seconds = 0.0
        """Spent on capturing so far."""
        self._counts = counts
        self._graphs: dict[Hashable, _Graph] = {}
        self._steady: dict[Hashable, _Steady] = {}
        self._busy = False

    def run(
        self,
        name: Hashable,
        work: Work,
        inputs: Sequence[Tensor],
        random_key: RandomKey,
        *,
        weights: Sequence[Tensor],
        turn: int | None = None,
    ) -> Tensors:
        """What `work` gives for these inputs, drawing from `chance`.

        Work called `name` that differs in more than its inputs' values, or in where the `weights`
        lie, must not share the name. Calls within one `turn` count once; None makes every call a
        turn.
        """
        if not self.enabled or self._busy:
            return work(*inputs, random_key=random_key)
        signature = (
            *((x.shape, x.stride(), x.dtype) for x in inputs),
            *(weight.data_ptr() for weight in weights),
        )
        steady = self._steady.setdefault(name, _Steady())
        if name in self._graphs and steady.captured == signature:
            steady.again()
            return self._graphs[name].replay(inputs, random_key.key)
        steady.see(signature, turn)
        if steady.turns > steady.patience and self._capture(name, work, inputs, steady.places):
            steady.caught()
            return self._graphs[name].first(inputs, random_key.key)
        noted = _Noted(random_key.key)
        with self._nothing_inside():
            outputs = work(*inputs, random_key=noted)
        steady.places = noted.places
        return outputs

    def clear(self) -> None:
        """Let go of everything captured."""
        self._graphs.clear()
        self._steady.clear()

    def _capture(
        self, name: Hashable, work: Work, inputs: Sequence[Tensor], places: "Places"
    ) -> bool:
        started, counted = perf_counter(), self._counts.values()
        self._graphs.pop(name, None)  # its memory is free before the next one's is taken
        # The plain runs' matmul workspaces are not needed any more; capturing takes its own.
        torch._C._cuda_clearCublasWorkspaces()
        try:
            with self._nothing_inside():
                graph = _Graph(work, inputs, places, self._counts)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            self.enabled = False
            self._counts.set(counted)
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
    def _nothing_inside(self) -> Iterator[None]:
        """Work that calls other work is one piece."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False


Places: TypeAlias = list[tuple[Key, torch.device | str]]


class _Steady:
    """For how many turns work had the same signature, and what it drew."""

    def __init__(self) -> None:
        self.turns = 0
        self.patience = _STEADY_TURNS
        self.captured: Hashable = None
        self.places: Places = []
        self._signature: Hashable = None
        self._turn: int | None = None

    def see(self, signature: Hashable, turn: int | None) -> None:
        if signature != self._signature:
            self._signature, self.turns = signature, 1
        elif turn is None or turn != self._turn:
            self.turns += 1
        self._turn = turn

    def again(self) -> None:
        """The one that was captured came again: another has to settle anew."""
        self._signature, self.turns = self.captured, 0

    def caught(self) -> None:
        """The signature has been captured."""
        self.captured = self._signature
        self.patience *= 2


class _Graph:
    """One piece of work: static inputs and outputs, and generators that are seeded per replay."""

    def __init__(
        self,
        work: Work,
        inputs: Sequence[Tensor],
        places: Places,
        counts: PassCounts,
    ) -> None:
        self._inputs = [x.clone() for x in inputs]
        self._draws = [(place, torch.Generator(device)) for place, device in places]
        self._graph = torch.cuda.CUDAGraph()
        for _, generator in self._draws:
            self._graph.register_generator_state(generator)
        self._counts, before = counts, counts.values()
        # A stream of this device: the class keeps one for all, of the device it first saw. Other
        # threads may copy batches meanwhile.
        stream = torch.cuda.Stream(inputs[0].device)
        with torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._outputs = work(*self._inputs, random_key=_Handed(self._draws))
        # Capturing writes the generators' seeds on that stream: late, after the first replay's own.
        stream.synchronize()
        after = counts.values()
        self._counted = (after[0] - before[0], after[1] - before[1], after[2] - before[2])

    def first(self, inputs: Sequence[Tensor], key: Key) -> Tensors:
        """Capturing has counted the work without doing it; this does it."""
        for held, given in zip(self._inputs, inputs, strict=True):
            held.copy_(given)
        for place, generator in self._draws:
            generator.manual_seed(derive_seed(*key, *place))
        self._graph.replay()
        # The next replay, of this or another graph, writes where these lie.
        return {name: output.clone() for name, output in self._outputs.items()}

    def replay(self, inputs: Sequence[Tensor], key: Key) -> Tensors:
        """Do the work again, with other values."""
        self._counts.add(self._counted)
        return self.first(inputs, key)


class _Noted(RandomKey):
    """Keeps a list of the places it was asked for."""

    def __init__(self, key: Key) -> None:
        super().__init__(key)
        self.places: Places = []

    def at(self, *place: str | int, device: torch.device | str = "cpu") -> torch.Generator:
        """A fresh generator for one place."""
        self.places.append((place, device))
        return super().at(*place, device=device)


class _Handed(RandomKey):
    """Hands out, in the order of the places noted, generators that a graph knows."""

    def __init__(self, draws: list[tuple[Key, torch.Generator]]) -> None:
        super().__init__(())
        self._draws = iter(draws)

    def at(self, *place: str | int, device: torch.device | str = "cpu") -> torch.Generator:  # noqa: ARG002
        """The generator of this place."""
        noted, generator = next(self._draws, (None, None))
        if generator is None or noted != place:
            raise RuntimeError(f"it drew at {place} where it had drawn at {noted}")
        return generator
