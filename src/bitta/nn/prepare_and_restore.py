"""Prepare a model for a session: evaluation mode, layout, precision. Restore it at the end."""

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
from bitta.nn.mc_dropout import N_PROBE_ROWS
from bitta.seeding import RandomKey

_RESTORER_NAME = "_bitta_restorer"
_LAYOUTS = torch.contiguous_format, torch.channels_last


LogitsPosition: TypeAlias = str | int | Callable[[Any], Tensor] | None
"""Position of the logits in a model's output: a name, an index, or a function that extracts them.
None if the output is the logits."""


def extract_logits(output: Any, position: LogitsPosition, *, n_rows: int) -> Tensor:
    """Return the logits in the output of a model, (rows, classes)."""
    logits = _extract_part(output, position)
    if not isinstance(logits, Tensor):
        raise ModelError(
            f"the model returned {type(logits).__name__}; logits are needed. Say which part holds "
            'them: logits="name" for a dict or an object, logits=0 for a tuple, or a function of '
            "the output."
        )
    if logits.dim() != 2 or len(logits) != n_rows or logits.shape[1] < 2:
        raise ModelError(
            f"logits have shape {tuple(logits.shape)}; ({n_rows}, classes) is needed, with two "
            "classes or more."
        )
    return logits


def _refuse_probabilities(logits: Tensor) -> None:
    sums = logits.float().sum(-1)
    is_one_hot = bool(((logits == 0) | (logits == 1)).all())
    if logits.min() >= 0 and (sums - 1).abs().max() < 1e-3 and not is_one_hot:
        raise ModelError(
            "the model returns probabilities; logits are needed. Leave out its last softmax, or "
            "give logits=lambda output: output.clamp_min(1e-12).log()."
        )


def explain_forward_error(inputs: Tensor, error: Exception) -> ModelError:
    """Return the error for inputs that the model cannot process, with the probable cause."""
    shape = tuple(inputs.shape)
    hint = "Give inputs of the shape that the model was trained with."
    if len(shape) == 3:
        hint = "Is the batch dimension missing? Give inputs.unsqueeze(0)."
    elif len(shape) == 4 and shape[-1] in (1, 3, 4) and shape[1] not in (1, 3, 4):
        hint = "Are the channels last? Give inputs.permute(0, 3, 1, 2)."
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return ModelError(f"the model cannot process inputs of shape {shape} ({reason}). {hint}")


def _extract_part(output: Any, position: LogitsPosition) -> Any:
    if position is None:
        return output
    if callable(position):
        return position(output)
    try:
        if isinstance(output, Mapping) or isinstance(position, int):
            return output[position]
        return getattr(output, position)
    except (LookupError, AttributeError, TypeError):
        parts = f"; it has {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        raise ModelError(
            f"the model's {type(output).__name__} has no part {position!r} for logits{parts}. "
            "Set logits to a part that it has."
        ) from None


class ModelRestorer:
    """Record of a model's modes, gradients and memory layout before a session, to restore them.

    The record is stored on the model. If a session was never closed, the next session on the same
    model finds the record and restores the model first.
    """

    def __init__(self, model: nn.Module) -> None:
        restore_model(model)
        self._model = model
        self._modes = {module: module.training for module in model.modules()}
        self._gradients = {p: (p.requires_grad, p.grad) for p in model.parameters()}
        self._original_layouts: dict[nn.Parameter, torch.memory_format] = {}
        model.__dict__[_RESTORER_NAME] = self

    @property
    def is_current(self) -> bool:
        """False after the model was restored, or prepared again by a later session."""
        return self._model.__dict__.get(_RESTORER_NAME) is self

    def set_layout(self, layout: torch.memory_format) -> None:
        """Set the memory layout of the convolution filters."""
        for parameter in self._model.parameters():
            if parameter.dim() != 4 or parameter.is_contiguous(memory_format=layout):
                continue
            original = _LAYOUTS[1 - _LAYOUTS.index(layout)]
            if parameter.is_contiguous(memory_format=original):
                parameter.data = parameter.data.contiguous(memory_format=layout)
                self._original_layouts.setdefault(parameter, original)

    def restore(self) -> None:
        """Restore modes, gradients and layout. The weights stay adapted."""
        for module, training in self._modes.items():
            module.training = training
        for parameter, (requires_grad, gradient) in self._gradients.items():
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient
        for parameter, layout in self._original_layouts.items():
            parameter.data = parameter.data.contiguous(memory_format=layout)
        self._original_layouts.clear()


def restore_model(model: nn.Module) -> None:
    """Restore a prepared model. Other models stay as they are."""
    restorer: ModelRestorer | None = model.__dict__.pop(_RESTORER_NAME, None)
    if restorer is not None:
        restorer.restore()


class PreparedModel:
    """Any classifier in evaluation mode, with an execution path and counters of passes.

    `close` restores everything but the weights.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        logits: LogitsPosition = None,
        eager: bool = False,
        precision: Precision = "auto",
        counts: PassCounts | None = None,
    ) -> None:
        if isinstance(model, torch.jit.ScriptModule):
            raise ModelError("the model is TorchScript, which takes no hooks; give the nn.Module.")
        self.model = model
        self.counts = counts or PassCounts()
        execution = Execution.choose(self.device, self._dtype, eager=eager, precision=precision)
        if self.device.type == "cpu" and any(map(_has_unsafe_gradient, model.modules())):
            execution = replace(execution, channels_last=False)
        self.execution = execution
        self.graphs = CudaGraphs(self.counts, enabled=self.execution.graphs)
        self._logits = logits
        self._execution_options: dict[str, Any] = {"eager": eager, "precision": precision}
        self._modules = list(model.modules())
        self._restorer = ModelRestorer(model)
        model.eval()
        self._layout_is_checked = not self.execution.channels_last
        self._output_is_checked = False
        self._restorer.set_layout(self._layout)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        first = next(chain(self.model.parameters(), self.model.buffers()), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def _dtype(self) -> torch.dtype:
        floats = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        return next(floats, torch.get_default_dtype())

    def prepare_inputs(self, inputs: Tensor) -> Tensor:
        """Check inputs. Return them detached, on the device and in the precision of the model."""
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
            # Such values would make the running statistics NaN forever.
            raise InputError("inputs hold values that are not finite; leave such images out.")
        inputs = inputs.detach().to(self.device, self._dtype)
        self._check_layout(inputs)
        inputs = self._in_layout(inputs)
        return inputs.clone() if inputs.is_inference() else inputs

    def run_or_replay(
        self,
        name: Hashable,
        work: Work,
        inputs: Sequence[Tensor],
        random_key: RandomKey,
        *,
        step: int | None = None,
    ) -> Tensors:
        """Run work on the model. Replay it as a CUDA graph once its shapes are stable.

        See `CudaGraphs.run` for the arguments.
        """
        self._check_layout(inputs[0])
        with torch.cuda.device_of(inputs[0]):
            if not self.execution.graphs or self._has_hooks:
                return work(*inputs, random_key=random_key)
            weights = list(self.model.parameters())
            outputs = self.graphs.run(name, work, inputs, random_key, weights=weights, step=step)
        self.execution = replace(self.execution, graphs=self.graphs.enabled)
        return outputs

    def train_only(self, parameters: list[nn.Parameter]) -> None:
        """Require gradients of these parameters and of no others."""
        self.model.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_(True)

    @property
    def is_in_use(self) -> bool:
        """False after `close`, or after a later session has started to use the model."""
        return self._restorer.is_current

    def close(self) -> None:
        """Free the captured graphs. Restore the model, unless a later session uses it."""
        self.graphs.clear()
        if self.is_in_use:
            restore_model(self.model)

    @property
    def _has_hooks(self) -> bool:
        """True if a module has hooks. A replayed graph would not run them."""
        return any(m._forward_hooks or m._forward_pre_hooks for m in self._modules)

    def _forward(self, inputs: Tensor, *, n_passes: int = 1) -> Tensor:
        if self.model.training:  # The caller has called train() on the model.
            self.model.eval()
        with self.execution.tf32_mode(), self.execution.autocast(inputs.device):
            output = self.model(self._in_layout(inputs))
        logits = extract_logits(output, self._logits, n_rows=n_passes * len(inputs))
        if not self._output_is_checked:
            self._output_is_checked = True
            _refuse_probabilities(logits.detach())
        is_half = self.execution.precision == "bfloat16" and logits.dtype == torch.bfloat16
        return logits.float() if is_half else logits

    def _count(self, n_samples: int, *, with_gradient: bool = True) -> None:
        self.counts.forwards += n_samples
        if with_gradient and torch.is_grad_enabled():
            self.counts.forwards_with_gradient += n_samples

    @contextmanager
    def _probing(self) -> Iterator[None]:
        """Run forward passes in full precision and without counting them."""
        counts, execution = self.counts.values(), self.execution
        self.execution = replace(execution, precision="float32", kernels=False)
        try:
            yield
        finally:
            self.counts.set(counts)
            self.execution = execution

    @property
    def _layout(self) -> torch.memory_format:
        return torch.channels_last if self.execution.channels_last else torch.contiguous_format

    def _in_layout(self, inputs: Tensor) -> Tensor:
        return inputs.contiguous(memory_format=self._layout) if inputs.dim() == 4 else inputs

    @torch.no_grad()
    def _check_layout(self, inputs: Tensor) -> None:
        """Check once if the model accepts channels-last images; otherwise use contiguous ones.

        A model that calls `Tensor.view` may not accept channels-last images.
        """
        if self._layout_is_checked:
            return
        self._layout_is_checked = True
        few = inputs[:N_PROBE_ROWS].clone()
        counts, group_norm = self.counts.values(), CallDetector(F.group_norm)
        try:
            with group_norm, use_statistics(self.model, "running", rows=RowLayout()):
                self._forward(few)
            # torch 2.13 crashes in the gradient of group_norm for channels-last images on a CPU
            # that need no gradient themselves.
            is_accepted = not (group_norm.was_called and few.device.type == "cpu")
        except RuntimeError:
            is_accepted = False
        finally:
            self.counts.set(counts)
        if not is_accepted:
            self.execution = replace(self.execution, channels_last=False)
            self._restorer.set_layout(self._layout)


_MAX_BLOCK = 16
"""Largest number of channels that oneDNN processes at once."""


def _has_unsafe_gradient(module: nn.Module) -> bool:
    """Return True if the channels-last gradient of a convolution writes out of bounds on a CPU.

    This is a bug of oneDNN for strided 1x1 filters with few channels (its open issue 6035).
    """
    return (
        isinstance(module, nn.Conv2d)
        and max(module.kernel_size) == 1
        and max(module.stride) > 1
        and module.in_channels // module.groups < _MAX_BLOCK
    )
