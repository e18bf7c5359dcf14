"""Does a model allow a faster way? Tried once, on a few rows, against the plain one.

Forward hooks at the sites drop elements of what they see. At the first site the batch is repeated,
so that everything before it runs once. Masks are addressed by (site, call, pass), never by the
order of drawing, so that a fan-out, N separate passes and a second run of one of them drop the same
elements.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bitta.errors import ModelError
from bitta.nn.batchnorm import RowLayout
from bitta.nn.fast import fused
from bitta.seeding import RandomKey


@contextmanager
def dropout_at(
    model: nn.Module,
    sites: Sequence[str],
    *,
    rate: float,
    passes: Sequence[int],
    random_key: RandomKey,
    rows: RowLayout,
    kernels: bool = False,
) -> Iterator[None]:
    """Drop elements after each site; several passes fan out at the first one that runs.

    Serves one forward: inside it `rows.passes` tells how many passes the current rows hold.
    `kernels` of our own are used where they fit.
    """
    calls = [0] * len(sites)

    def hook_for(site: int) -> Callable[..., Any]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            place = (site, calls[site])
            calls[site] += 1
            fanned, rows.passes = rows.passes == len(passes), len(passes)

            def dropped(x: Tensor) -> Tensor:
                n, total, start = _rows_of(len(x) // (len(passes) if fanned else 1), rows)
                drawn = _Words(random_key, place, passes, n_rows=total, start=start)
                drop = _drop_by_kernel if kernels and n else _drop
                return drop(x, rate, drawn, fanned)

            return _on_first_tensor(output, dropped)

        return hook

    handles = [
        model.get_submodule(name).register_forward_hook(hook_for(site))
        for site, name in enumerate(sites)
    ]
    try:
        yield
        if not any(calls):
            raise ModelError(f"none of the dropout sites {', '.join(sites)} ran in the forward.")
    finally:
        rows.passes = 1
        for handle in handles:
            handle.remove()


def _rows_of(n: int, rows: RowLayout) -> tuple[int, int, int]:
    """Rows at a site, of how many in the whole batch, and where they begin among these.

    A model may fold something else into its rows, as many to each sample.
    """
    if not rows.total:
        return n, 0, 0
    if n % rows.n:
        raise ModelError(
            f"a dropout site has {n} rows for {rows.n} samples; micro_batch needs as many for each."
        )
    each = n // rows.n
    return n, each * rows.total, each * rows.start


@dataclass(frozen=True)
class _Words:
    """Random 16-bit words for one call of a site, the same whenever they are drawn.

    Random bits, four words at a time, are several times faster on a CPU than `bernoulli_`; a rate
    is honoured to one part in 65,536.
    """

    random_key: RandomKey
    place: tuple[int, int]
    passes: Sequence[int]
    n_rows: int = 0
    """Rows of the whole batch; 0 where x is all of it."""
    start: int = 0
    """Where x begins in it."""

    def __call__(self, x: Tensor) -> tuple[Tensor, int]:
        """(passes, words) in the order in which x lies in memory, and the word of its beginning."""
        size = x[0].numel() if len(x) else 0
        n_words = size * (self.n_rows or len(x))
        quads = x.new_empty((len(self.passes), (n_words + 3) // 4), dtype=torch.int64)
        for row, number in zip(quads, self.passes, strict=True):
            generator = self.random_key.at(*self.place, number, device=x.device)
            row.random_(-(2**63), None, generator=generator)
        return quads.view(torch.int16), size * self.start


def _drop(x: Tensor, rate: float, drawn: _Words, fanned: bool) -> Tensor:
    split = x.unflatten(0, (len(drawn.passes), -1)) if fanned else x.unsqueeze(0)
    return (_kept(split[0], rate, drawn) * (split * (1 / (1 - rate)))).flatten(0, 1)


def _kept(x: Tensor, rate: float, drawn: _Words) -> Tensor:
    """1 where an element of x is kept, else 0: (passes, *x.shape), laid out in memory as x is."""
    words, start = drawn(x)
    words = words[:, start : start + x.numel()]
    # In the type of x from the start: a CPU is slow to mix types.
    kept = torch.ge(words, fused.level_of(rate), out=x.new_empty(words.shape))
    return kept.as_strided((len(kept), *x.shape), (x.numel(), *_dense_strides(x)))


def _drop_by_kernel(x: Tensor, rate: float, drawn: _Words, fanned: bool) -> Tensor:
    if x.dtype not in (torch.float32, torch.bfloat16) or x.stride() != tuple(_dense_strides(x)):
        return _drop(x, rate, drawn, fanned)
    n_passes = len(drawn.passes)

    def draw(x: Tensor) -> tuple[Tensor, int]:
        return drawn(x[: len(x) // n_passes] if fanned else x)

    return fused.drop_passes(x, draw, n_passes, rate=rate, fanned=fanned)


def _dense_strides(x: Tensor) -> Sequence[int]:
    """Strides of x where it lies row after row without gaps, else those of a contiguous one."""
    size = x[0].numel() if len(x) else 0
    laid_out = torch.empty_like(x, device="meta").stride()
    if len(x) == 1 or laid_out[0] == size:  # of a single row, the first stride says nothing
        return (size, *laid_out[1:])
    return torch.empty(x.shape, device="meta").stride()


def _on_first_tensor(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Blocks that return (hidden, attentions, ...) are dropped in their hidden state."""
    if isinstance(output, Tensor):
        return change(output)
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return (change(output[0]), *output[1:])
    raise ModelError(
        f"a dropout site returned {type(output).__name__}; it must return a tensor or a tuple that "
        "starts with one; name other sites."
    )


class SharedPrefix:
    """What modules returned before the first site: a second forward takes it instead of computing.

    Whatever a model does between these modules is done again, on the same values.
    """

    def __init__(self, model: nn.Module, sites: tuple[str, ...]) -> None:
        self._named = dict(model.named_modules())
        self._sites = sites
        self._outputs: dict[str, deque[Any]] = {}

    @contextmanager
    def record(self) -> Iterator[None]:
        """Remember what the outermost finished modules return in the one forward inside.

        Gradients are tracked up to the first site only: what follows is not to be differentiated.
        """
        passed = False

        def hook_for(name: str) -> Callable[..., None]:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                nonlocal passed
                if passed:
                    return
                passed = name in self._sites
                for inner in [known for known in self._outputs if known.startswith(f"{name}.")]:
                    del self._outputs[inner]
                self._outputs.setdefault(name, deque()).append(output)
                if passed:
                    torch.set_grad_enabled(False)

            return hook

        handles = [
            module.register_forward_hook(hook_for(name))
            for name, module in self._named.items()
            if name
        ]
        tracking = torch.is_grad_enabled()
        try:
            yield
        finally:
            torch.set_grad_enabled(tracking)
            for handle in handles:
                handle.remove()

    @contextmanager
    def reuse(self) -> Iterator[None]:
        """Let these modules return what they returned, as often as they did."""

        def stand_in(forward: Callable[..., Any], outputs: deque[Any]) -> Callable[..., Any]:
            def again(*args: Any, **kwargs: Any) -> Any:
                return outputs.popleft() if outputs else forward(*args, **kwargs)

            return again

        modules = [self._named[name] for name in self._outputs]
        own = [module.__dict__.get("forward") for module in modules]
        for module, outputs in zip(modules, self._outputs.values(), strict=True):
            module.__dict__["forward"] = stand_in(module.forward, outputs)
        try:
            yield
        finally:
            for module, forward in zip(modules, own, strict=True):
                del module.__dict__["forward"]
                if forward is not None:
                    module.__dict__["forward"] = forward


N_PROBE_ROWS = 4
_TOLERANCE = 1e-3
_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)


def explain_mismatch(fast: Callable[[], Tensor], plain: Tensor) -> str:
    """Why the fast way cannot stand for the plain one; empty if it can."""
    try:
        given = fast()
    except _ERRORS as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    if _near(given, plain, at_least=1.0):
        return ""
    return "its rows do not stay independent after the first site"


def same_outputs(
    fast: Callable[[], Sequence[Tensor]], plain: Callable[[], Sequence[Tensor]]
) -> bool:
    """Whether two ways give the same tensors; an error of either is a difference."""
    try:
        one, two = fast(), plain()
    except _ERRORS:
        return False
    return len(one) == len(two) and all(map(_near, one, two))


def compute_probe_gradients(logits: Tensor, model: nn.Module) -> list[Tensor]:
    """Of a sum that weighs the classes differently, with respect to what is trained."""
    weights = torch.linspace(-1, 1, logits.shape[-1]).to(logits)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad((logits * weights).sum(), parameters, allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


def _near(one: Tensor, two: Tensor, *, at_least: float = 1e-6) -> bool:
    coarse = max(_TOLERANCE, 8 * torch.finfo(two.dtype).eps)
    scale = two.abs().max().clamp_min(at_least)
    return one.shape == two.shape and bool(((one - two).abs().max() <= coarse * scale).item())
