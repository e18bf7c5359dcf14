"""A borrowed model: on which device, in which layout and precision it runs, until given back."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.errors import InputError, ModelError
from bitta.nn.batchnorm import CallDetector, RowLayout, use_statistics
from bitta.nn.fast.execution import Execution, Precision
from bitta.nn.fast.graphs import CudaGraphs, PassCounts, Tensors, Work
from bitta.nn.passes import N_PROBE_ROWS
from bitta.seeding import RandomKey

_LOAN = "_bitta_loan"
_LAYOUTS = torch.contiguous_format, torch.channels_last


LogitsOf: TypeAlias = str | int | Callable[[Any], Tensor] | None
"""Which part of a model's output holds the logits: a name, a place, a function; None for all."""


def extract_logits(output: Any, part: LogitsOf, *, rows: int) -> Tensor:
    """The part that is said to hold the logits, (rows, classes)."""
    found = _part(output, part)
    if not isinstance(found, Tensor):
        raise ModelError(
            f"the model returned {type(found).__name__} where logits are needed; say which "
            'part holds them: logits="name" for a dict or an object, logits=0 for a tuple, or '
            "a function of the output."
        )
    if found.dim() != 2 or len(found) != rows or found.shape[1] < 2:
        raise ModelError(
            f"logits have shape {tuple(found.shape)}; ({rows}, classes) is needed, with two "
            "classes or more."
        )
    return found


def _part(output: Any, part: LogitsOf) -> Any:
    if part is None:
        return output
    if callable(part):
        return part(output)
    try:
        if isinstance(output, Mapping) or isinstance(part, int):
            return output[part]
        return getattr(output, part)
    except (LookupError, AttributeError, TypeError):
        parts = f"; it has {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        raise ModelError(
            f"the model's {type(output).__name__} has no part {part!r} for logits{parts}."
        ) from None


class ModelRestorer:
    """How a model was before it was borrowed; kept on the model, so that a new session on it can
    take over from one that was never closed.
    """

    def __init__(self, model: nn.Module) -> None:
        restore_model(model)
        self._model = model
        self._modes = {module: module.training for module in model.modules()}
        self._gradients = {p: (p.requires_grad, p.grad) for p in model.parameters()}
        self._rearranged: dict[nn.Parameter, torch.memory_format] = {}
        model.__dict__[_LOAN] = self

    @property
    def running(self) -> bool:
        """Whether the model is still ours: not given back, not taken over by a later loan."""
        return self._model.__dict__.get(_LOAN) is self

    def lay_out(self, layout: torch.memory_format) -> None:
        """Let filters lie in memory in one of the two usual ways."""
        for parameter in self._model.parameters():
            if parameter.dim() != 4 or parameter.is_contiguous(memory_format=layout):
                continue
            before = _LAYOUTS[1 - _LAYOUTS.index(layout)]
            if parameter.is_contiguous(memory_format=before):
                parameter.data = parameter.data.contiguous(memory_format=layout)
                self._rearranged.setdefault(parameter, before)

    def _lay_out_as_before(self) -> None:
        for parameter, before in self._rearranged.items():
            parameter.data = parameter.data.contiguous(memory_format=before)
        self._rearranged.clear()

    def undo(self) -> None:
        """Modes, gradients and layout as they were; weights stay adapted."""
        for module, training in self._modes.items():
            module.training = training
        for parameter, (required, gradient) in self._gradients.items():
            parameter.requires_grad_(required)
            parameter.grad = gradient
        self._lay_out_as_before()


def restore_model(model: nn.Module) -> None:
    """End whatever loan there is."""
    loan: ModelRestorer | None = model.__dict__.pop(_LOAN, None)
    if loan is not None:
        loan.undo()


_BLOCK = 16
"""Channels that oneDNN takes at a time, at most."""


class PreparedModel:
    """Any `nn.Module` that classifies, in evaluation mode while it is borrowed."""

    def __init__(
        self,
        model: nn.Module,
        *,
        logits: LogitsOf = None,
        eager: bool = False,
        precision: Precision = "auto",
        counts: PassCounts | None = None,
    ) -> None:
        if isinstance(model, torch.jit.ScriptModule):
            raise ModelError("the model is TorchScript, which takes no hooks; give the nn.Module.")
        self.model = model
        self.counts = counts or PassCounts()
        chosen = Execution.choose(self.device, self._dtype, eager=eager, precision=precision)
        if self.device.type == "cpu" and any(map(_too_narrow, model.modules())):
            chosen = replace(chosen, channels_last=False)
        self.execution = chosen
        self.graphs = CudaGraphs(self.counts, enabled=self.execution.graphs)
        self._logits = logits
        self._path: dict[str, Any] = {"eager": eager, "precision": precision}
        self._modules = list(model.modules())
        self._loan = ModelRestorer(model)
        model.eval()
        self._tried = not self.execution.channels_last
        self._loan.lay_out(self._layout)

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        first = next(chain(self.model.parameters(), self.model.buffers()), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def _dtype(self) -> torch.dtype:
        floats = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        return next(floats, torch.get_default_dtype())

    def prepare_inputs(self, inputs: Tensor) -> Tensor:
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
        inputs = inputs.detach().to(self.device, self._dtype)
        self._try_layout(inputs)
        inputs = self._laid_out(inputs)
        return inputs.clone() if inputs.is_inference() else inputs

    def run_or_replay(
        self,
        name: Hashable,
        work: Work,
        inputs: Sequence[Tensor],
        random_key: RandomKey,
        *,
        turn: int | None = None,
    ) -> Tensors:
        """Do work on the model: plainly, or as a replay once its shapes have settled."""
        self._try_layout(inputs[0])
        with torch.cuda.device_of(inputs[0]):
            if not self.execution.graphs or self._hooked:
                return work(*inputs, random_key=random_key)
            weights = list(self.model.parameters())
            outputs = self.graphs.run(name, work, inputs, random_key, weights=weights, turn=turn)
        self.execution = replace(self.execution, graphs=self.graphs.enabled)
        return outputs

    def train_only(self, parameters: list[nn.Parameter]) -> None:
        """Ask for gradients of these parameters and no others."""
        self.model.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_(True)

    @property
    def is_in_use(self) -> bool:
        """Whether the model is still ours: not closed, not taken over by a later session."""
        return self._loan.running

    def close(self) -> None:
        """Give the model back, unless that has happened already, and what was captured."""
        self.graphs.clear()
        if self.is_in_use:
            restore_model(self.model)

    @property
    def _hooked(self) -> bool:
        """Whether somebody's hooks want to be called."""
        return any(m._forward_hooks or m._forward_pre_hooks for m in self._modules)

    def _forward(self, inputs: Tensor, *, passes: int = 1) -> Tensor:
        if self.model.training:  # somebody called train() on the borrowed model
            self.model.eval()
        with self.execution.arithmetic(), self.execution.autocast(inputs.device):
            output = self.model(self._laid_out(inputs))
        logits = extract_logits(output, self._logits, rows=passes * len(inputs))
        half = self.execution.precision == "bfloat16" and logits.dtype == torch.bfloat16
        return logits.float() if half else logits

    def _count(self, n_samples: int, *, tracked: bool = True) -> None:
        self.counts.forwards += n_samples
        self.counts.tracked += n_samples if tracked and torch.is_grad_enabled() else 0

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """Exactly, and without counting."""
        counted, execution = self.counts.values(), self.execution
        self.execution = replace(execution, precision="float32", kernels=False)
        try:
            yield
        finally:
            self.counts.set(counted)
            self.execution = execution

    @property
    def _layout(self) -> torch.memory_format:
        return torch.channels_last if self.execution.channels_last else torch.contiguous_format

    def _laid_out(self, inputs: Tensor) -> Tensor:
        return inputs.contiguous(memory_format=self._layout) if inputs.dim() == 4 else inputs

    @torch.no_grad()
    def _try_layout(self, inputs: Tensor) -> None:
        """Once: channels last, unless the model takes views that only the usual layout allows."""
        if self._tried:
            return
        self._tried = True
        few = inputs[:N_PROBE_ROWS].clone()
        counted, watch = self.counts.values(), CallDetector(F.group_norm)
        try:
            with watch, use_statistics(self.model, "running", rows=RowLayout()):
                self._forward(few)
            # torch 2.13 crashes in its gradient where images lie so and need none themselves.
            allowed = not (watch.seen and few.device.type == "cpu")
        except RuntimeError:
            allowed = False
        finally:
            self.counts.set(counted)
        if not allowed:
            self.execution = replace(self.execution, channels_last=False)
            self._loan.lay_out(self._layout)


def _too_narrow(module: nn.Module) -> bool:
    """Whether a CPU's gradients of this convolution write where they should not, channels last.

    oneDNN's do where filters of one pixel stride through few channels (its issue 6035, open).
    """
    return (
        isinstance(module, nn.Conv2d)
        and max(module.kernel_size) == 1
        and max(module.stride) > 1
        and module.in_channels // module.groups < _BLOCK
    )
