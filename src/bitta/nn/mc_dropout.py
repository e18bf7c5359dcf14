"""Stochastic passes: dropout masks, fan-out, a shared prefix, and checks that a model allows them.

Forward hooks at the dropout sites drop elements. In a fan-out the batch is repeated at the first
site, once per pass, so that everything before it runs once. A mask depends on (site, call, pass)
and not on the order of drawing: a fan-out, N separate passes and a repetition of one pass drop the
same elements.
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
    """Apply dropout after each site in one forward pass.

    Several passes fan out at the first site that runs: the batch is repeated for each pass. After
    that site `rows.n_passes` is the number of passes. `kernels` allows Triton kernels.
    """
    dropout = _Dropout(rate, passes, random_key, rows, kernels)
    n_calls = [0] * len(sites)

    def hook_for(site: int) -> Callable[..., Any]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            call = (site, n_calls[site])
            n_calls[site] += 1
            is_fanned, rows.n_passes = rows.n_passes == len(passes), len(passes)
            return _change_first_tensor(output, lambda x: dropout.apply(x, call, is_fanned))

        return hook

    handles = [
        model.get_submodule(name).register_forward_hook(hook_for(site))
        for site, name in enumerate(sites)
    ]
    try:
        yield
        if not any(n_calls):
            raise ModelError(
                f"none of the dropout sites {', '.join(sites)} ran in the forward pass; name "
                "other sites."
            )
    finally:
        rows.n_passes = 1
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class _Dropout:
    """Dropout for the given passes, which run in one forward pass."""

    rate: float
    passes: Sequence[int]
    random_key: RandomKey
    rows: RowLayout
    kernels: bool

    def apply(self, x: Tensor, call: tuple[int, int], is_fanned: bool) -> Tensor:
        """Drop elements of x. If `is_fanned`, its rows already hold all passes."""
        n_rows = len(x) // (len(self.passes) if is_fanned else 1)
        n_total, first_row = _locate_rows(n_rows, self.rows)
        words = _RandomWords(
            self.random_key, call, self.passes, n_rows=n_total, first_row=first_row
        )
        if self.kernels and n_rows:
            return _apply_dropout_by_kernel(x, self.rate, words, is_fanned)
        return _apply_dropout(x, self.rate, words, is_fanned)


def _locate_rows(n_rows: int, rows: RowLayout) -> tuple[int, int]:
    """Return the number of rows at a site for the whole batch, and the first row of this part.

    A model may have several rows per sample, such as patches.
    """
    if not rows.n_total:
        return 0, 0
    if n_rows % rows.n_rows:
        raise ModelError(
            f"a dropout site has {n_rows} rows for {rows.n_rows} samples; micro_batch needs the "
            "same number of rows for each sample. Set micro_batch=0."
        )
    rows_per_sample = n_rows // rows.n_rows
    return rows_per_sample * rows.n_total, rows_per_sample * rows.first_row


@dataclass(frozen=True)
class _RandomWords:
    """Random 16-bit words for one call of a site. They are the same each time they are drawn.

    Drawing random bits, four words at a time, is several times faster on a CPU than `bernoulli_`.
    The rate is exact to one part in 65,536.
    """

    random_key: RandomKey
    call: tuple[int, int]
    """Number of the site, and number of its call in this forward pass."""
    passes: Sequence[int]
    n_rows: int = 0
    """Rows of the whole batch; 0 if x is the whole batch."""
    first_row: int = 0
    """Position of x in the whole batch."""

    def draw(self, x: Tensor) -> tuple[Tensor, int]:
        """Return random words of shape (passes, words), and the index of the first word of x.

        The words are in the memory order of x.
        """
        size = x[0].numel() if len(x) else 0
        n_words = size * (self.n_rows or len(x))
        quads = x.new_empty((len(self.passes), (n_words + 3) // 4), dtype=torch.int64)
        for row, number in zip(quads, self.passes, strict=True):
            rng = self.random_key.at(*self.call, number, device=x.device)
            row.random_(-(2**63), None, generator=rng)
        return quads.view(torch.int16), size * self.first_row


def _apply_dropout(x: Tensor, rate: float, words: _RandomWords, is_fanned: bool) -> Tensor:
    split = x.unflatten(0, (len(words.passes), -1)) if is_fanned else x.unsqueeze(0)
    return (_make_mask(split[0], rate, words) * (split * (1 / (1 - rate)))).flatten(0, 1)


def _make_mask(x: Tensor, rate: float, words: _RandomWords) -> Tensor:
    """Return 1 for each kept element, else 0, (passes, *x.shape), in the memory layout of x."""
    drawn, start = words.draw(x)
    drawn = drawn[:, start : start + x.numel()]
    # Create the mask in the type of x: operations on mixed types are slow on a CPU.
    mask = torch.ge(drawn, fused.keep_threshold(rate), out=x.new_empty(drawn.shape))
    return mask.as_strided((len(mask), *x.shape), (x.numel(), *_dense_strides(x)))


def _apply_dropout_by_kernel(
    x: Tensor, rate: float, words: _RandomWords, is_fanned: bool
) -> Tensor:
    if x.dtype not in (torch.float32, torch.bfloat16) or x.stride() != tuple(_dense_strides(x)):
        return _apply_dropout(x, rate, words, is_fanned)
    n_passes = len(words.passes)

    def draw(x: Tensor) -> tuple[Tensor, int]:
        return words.draw(x[: len(x) // n_passes] if is_fanned else x)

    return fused.drop_passes(x, draw, n_passes, rate=rate, is_fanned=is_fanned)


def _dense_strides(x: Tensor) -> Sequence[int]:
    """Return the strides of x if its rows follow one another without gaps, else contiguous ones."""
    size = x[0].numel() if len(x) else 0
    strides = torch.empty_like(x, device="meta").stride()
    if len(x) == 1 or strides[0] == size:  # The first stride of a single row has no meaning.
        return (size, *strides[1:])
    return torch.empty(x.shape, device="meta").stride()


def _change_first_tensor(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change the output, or its first element if a block returns (hidden, attentions, ...)."""
    if isinstance(output, Tensor):
        return change(output)
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return (change(output[0]), *output[1:])
    raise ModelError(
        f"a dropout site returned {type(output).__name__}; it must return a tensor or a tuple that "
        "starts with one; name other sites."
    )


class SharedPrefix:
    """Outputs of the modules before the first site, for reuse in a second forward pass.

    Operations in the model's own `forward`, between these modules, are computed twice.
    """

    def __init__(self, model: nn.Module, sites: tuple[str, ...]) -> None:
        self._modules = dict(model.named_modules())
        self._sites = sites
        self._outputs: dict[str, deque[Any]] = {}

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the outputs of the outermost modules before the first site, in one forward pass.

        Gradients are tracked up to the first site only. Nothing after it is differentiated.
        """
        site_has_run = False

        def hook_for(name: str) -> Callable[..., None]:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
                nonlocal site_has_run
                if site_has_run:
                    return
                site_has_run = name in self._sites
                for inner in [other for other in self._outputs if other.startswith(f"{name}.")]:
                    del self._outputs[inner]
                self._outputs.setdefault(name, deque()).append(output)
                if site_has_run:
                    torch.set_grad_enabled(False)

            return hook

        handles = [
            module.register_forward_hook(hook_for(name))
            for name, module in self._modules.items()
            if name
        ]
        had_gradients = torch.is_grad_enabled()
        try:
            yield
        finally:
            torch.set_grad_enabled(had_gradients)
            for handle in handles:
                handle.remove()

    @contextmanager
    def reuse(self) -> Iterator[None]:
        """Let the recorded modules return their recorded outputs."""

        def make_forward(forward: Callable[..., Any], outputs: deque[Any]) -> Callable[..., Any]:
            def recorded_forward(*args: Any, **kwargs: Any) -> Any:
                return outputs.popleft() if outputs else forward(*args, **kwargs)

            return recorded_forward

        modules = [self._modules[name] for name in self._outputs]
        originals = [module.__dict__.get("forward") for module in modules]
        for module, outputs in zip(modules, self._outputs.values(), strict=True):
            module.__dict__["forward"] = make_forward(module.forward, outputs)
        try:
            yield
        finally:
            for module, forward in zip(modules, originals, strict=True):
                del module.__dict__["forward"]
                if forward is not None:
                    module.__dict__["forward"] = forward


N_PROBE_ROWS = 4
_TOLERANCE = 1e-3
FORWARD_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
"""Errors that a forward pass can raise."""


def explain_mismatch(fast: Callable[[], Tensor], reference: Tensor) -> str:
    """Return the reason why the fast result differs from the reference; empty if it does not."""
    try:
        output = fast()
    except FORWARD_ERRORS as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    if _is_close(output, reference, min_scale=1.0):
        return ""
    return "its rows do not stay independent after the first site"


def same_outputs(
    fast: Callable[[], Sequence[Tensor]], reference: Callable[[], Sequence[Tensor]]
) -> bool:
    """Return True if both return equal tensors, up to a tolerance. An error is a difference."""
    try:
        one, two = fast(), reference()
    except FORWARD_ERRORS:
        return False
    return len(one) == len(two) and all(map(_is_close, one, two))


def compute_probe_gradients(logits: Tensor, model: nn.Module) -> list[Tensor]:
    """Return the gradients of a weighted sum of the logits, for trained parameters."""
    weights = torch.linspace(-1, 1, logits.shape[-1]).to(logits)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad((logits * weights).sum(), parameters, allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


def _is_close(one: Tensor, two: Tensor, *, min_scale: float = 1e-6) -> bool:
    tolerance = max(_TOLERANCE, 8 * torch.finfo(two.dtype).eps)
    scale = two.abs().max().clamp_min(min_scale)
    return one.shape == two.shape and bool(((one - two).abs().max() <= tolerance * scale).item())
