"""A borrowed classifier: run with either statistics, once or stochastically, then given back."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bitta.errors import FallbackWarning, InputError, ModelError
from bitta.nn.dropout import dropout_at
from bitta.nn.execution import Execution, Precision
from bitta.nn.norm import Rows, Statistics, batch_norms, normalised_by
from bitta.nn.sites import Sites, find_sites
from bitta.seeding import Key

LogitsOf: TypeAlias = str | int | Callable[[Any], Tensor] | None
"""Which part of a model's output holds the logits: a name, a place, a function; None for all."""

_PROBE_ROWS = 4
_PROBE_TOLERANCE = 1e-3
_PROBE_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)
_LOAN = "_bitta_loan"


class _Loan:
    """How a model was before it was borrowed; kept on the model, so that a new session on it can
    take over from one that was never closed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modes = {module: module.training for module in model.modules()}
        self.gradients = {p: (p.requires_grad, p.grad) for p in model.parameters()}

    def undo(self) -> None:
        for module, training in self.modes.items():
            module.training = training
        for parameter, (required, gradient) in self.gradients.items():
            parameter.requires_grad_(required)
            parameter.grad = gradient


def give_back(model: nn.Module) -> None:
    """End whatever loan there is: modes and gradients as they were; weights stay adapted."""
    loan: _Loan | None = model.__dict__.pop(_LOAN, None)
    if loan is not None:
        loan.undo()


class Network:
    """Any `nn.Module` that classifies, in evaluation mode while it is borrowed."""

    def __init__(
        self,
        model: nn.Module,
        *,
        logits: LogitsOf = None,
        sites: Sites = None,
        eager: bool = False,
        precision: Precision = "auto",
    ) -> None:
        if isinstance(model, torch.jit.ScriptModule):
            raise ModelError("the model is TorchScript, which takes no hooks; give the nn.Module.")
        self.model = model
        self.forwards = 0
        """Samples times passes that went through the model so far."""
        self.tracked = 0
        """As many of these as ran with gradients enabled."""
        self.capture_seconds = 0.0
        """Seconds spent on capturing CUDA graphs."""
        self.fans_out: bool | None = None
        """Whether N passes share one forward; None until the first stochastic pass was probed."""
        self._logits = logits
        self._sites = find_sites(model, sites) if sites is not None else None
        give_back(model)
        self.execution = Execution.chosen(self.device, eager=eager, precision=precision)
        self._loan = _Loan(model)
        model.__dict__[_LOAN] = self._loan
        model.eval()

    @property
    def sites(self) -> tuple[str, ...]:
        """Where dropout is applied."""
        if self._sites is None:
            self._sites = find_sites(self.model)
        return self._sites

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        tensors = (*self.model.parameters(), *self.model.buffers())
        return tensors[0].device if tensors else torch.device("cpu")

    def accepted(self, inputs: Tensor) -> Tensor:
        """Inputs on the model's device and in its precision, free of the caller's autograd."""
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs.dim() < 2:
            given = (
                f"a {inputs.dtype} tensor of shape {tuple(inputs.shape)}"
                if isinstance(inputs, Tensor)
                else f"a {type(inputs).__name__}"
            )
            raise InputError(f"inputs are {given}; a float tensor (batch, ...) is needed.")
        if not len(inputs):
            raise InputError("inputs hold no sample; leave empty batches out.")
        if not inputs.isfinite().all():
            # One such image would stay in the running statistics for good.
            raise InputError("inputs hold values that are not finite; leave such images out.")
        floats = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        inputs = inputs.detach().to(self.device, next(floats, inputs.dtype))
        return inputs.clone() if inputs.is_inference() else inputs

    def __call__(self, inputs: Tensor, *, statistics: Statistics) -> Tensor:
        """Deterministic logits, (batch, classes)."""
        self._count(len(inputs))
        with normalised_by(self.model, statistics, rows=Rows()):
            return self._forward(inputs)

    @torch.no_grad()
    def observe(self, inputs: Tensor, *, momentum: float) -> None:
        """Let the running statistics follow this batch."""
        if not batch_norms(self.model):
            return
        self._count(len(inputs))
        with normalised_by(self.model, "batch", rows=Rows(), momentum=momentum):
            self._forward(inputs)

    @contextmanager
    def statistics_put_back(self) -> Iterator[None]:
        """Let running statistics move inside, and be as before afterwards."""
        norms = [norm for norm in batch_norms(self.model) if norm.running_mean is not None]
        kept = [(b, b.clone()) for norm in norms for b in norm.buffers(recurse=False)]
        try:
            yield
        finally:
            for buffer, value in kept:
                buffer.copy_(value)

    def sample(
        self,
        inputs: Tensor,
        *,
        statistics: Statistics,
        rate: float,
        passes: int,
        key: Key,
    ) -> Tensor:
        """Stochastic logits, (passes, batch, classes); one pass stands for all at rate 0."""
        if rate == 0:
            return self(inputs, statistics=statistics).unsqueeze(0)
        if self.fans_out is None:
            self.fans_out = passes > 1 and self._probe(inputs, statistics, rate, passes)
        self._count(passes * len(inputs))
        if self.fans_out:
            return self._pass(inputs, statistics, rate, range(passes), key)
        each = [self._pass(inputs, statistics, rate, (n,), key) for n in range(passes)]
        return torch.cat(each)

    def train_only(self, parameters: list[nn.Parameter]) -> None:
        """Ask for gradients of these parameters and no others."""
        self.model.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_(True)

    @property
    def borrowed(self) -> bool:
        """Whether the model is still ours: not closed, not taken over by a later session."""
        return self.model.__dict__.get(_LOAN) is self._loan

    def close(self) -> None:
        """Give the model back, unless that has happened already."""
        if self.borrowed:
            give_back(self.model)

    def _count(self, n_samples: int) -> None:
        self.forwards += n_samples
        self.tracked += n_samples if torch.is_grad_enabled() else 0

    def _pass(
        self,
        inputs: Tensor,
        statistics: Statistics,
        rate: float,
        passes: range | tuple[int],
        key: Key,
    ) -> Tensor:
        rows = Rows()
        with (
            normalised_by(self.model, statistics, rows=rows),
            dropout_at(self.model, self.sites, rate=rate, passes=passes, key=key, rows=rows),
        ):
            logits = self._forward(inputs, passes=len(passes))
        split: Tensor = logits.unflatten(0, (-1, len(passes)))
        return split.transpose(0, 1)

    @torch.no_grad()
    def _probe(self, inputs: Tensor, statistics: Statistics, rate: float, passes: int) -> bool:
        """Try fan-out on a few rows against separate passes with the same masks."""
        few = inputs[:_PROBE_ROWS] if len(inputs) > 1 else torch.cat([inputs, inputs])
        separate = torch.cat([self._pass(few, statistics, rate, (n,), (0,)) for n in range(passes)])
        try:
            fanned = self._pass(few, statistics, rate, range(passes), (0,))
        except _PROBE_ERRORS as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
        else:
            coarse = max(_PROBE_TOLERANCE, 8 * torch.finfo(separate.dtype).eps)
            scale = separate.abs().max().clamp_min(1.0)
            if bool(((fanned - separate).abs().max() <= coarse * scale).item()):
                return True
            reason = "its rows do not stay independent after the first site"
        warnings.warn(
            f"{type(self.model).__name__} cannot carry {passes} stochastic passes in one forward "
            f"({reason}); running {passes} forwards instead.",
            FallbackWarning,
            stacklevel=6,
        )
        return False

    def _forward(self, inputs: Tensor, *, passes: int = 1) -> Tensor:
        if self.model.training:  # somebody called train() on the borrowed model
            self.model.eval()
        output = _part(self.model(inputs), self._logits)
        if not isinstance(output, Tensor):
            raise ModelError(
                f"the model returned {type(output).__name__} where logits are needed; say which "
                'part holds them: logits="name" for a dict or an object, logits=0 for a tuple, or '
                "a function of the output."
            )
        rows = passes * len(inputs)
        if output.dim() != 2 or len(output) != rows or output.shape[1] < 2:
            raise ModelError(
                f"logits have shape {tuple(output.shape)}; ({rows}, classes) is needed, with two "
                "classes or more."
            )
        return output


def _part(output: Any, logits: LogitsOf) -> Any:
    """The part of a model's output that is said to hold the logits."""
    if logits is None:
        return output
    if callable(logits):
        return logits(output)
    try:
        if isinstance(output, Mapping) or isinstance(logits, int):
            return output[logits]
        return getattr(output, logits)
    except (LookupError, AttributeError, TypeError):
        parts = f"; it has {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        raise ModelError(
            f"the model's {type(output).__name__} has no part {logits!r} for logits{parts}."
        ) from None
