"""A borrowed classifier: run with either statistics, once or stochastically, then given back."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bitta.errors import FallbackWarning, InputError, ModelError
from bitta.nn.dropout import dropout_at
from bitta.nn.execution import Execution, Precision
from bitta.nn.graphs import Counts, Graphs, Tensors, Work
from bitta.nn.loan import Loan, give_back
from bitta.nn.logits import LogitsOf, logits_of
from bitta.nn.norm import Rows, Statistics, batch_norms, normalised_by
from bitta.nn.prefix import Prefix
from bitta.nn.sites import Sites, find_sites
from bitta.seeding import Chance, Key

_PROBE_ROWS = 4
_PROBE_TOLERANCE = 1e-3
_PROBE_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How stochastic passes are made."""

    statistics: Statistics
    rate: float
    passes: int


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
        self.counts = Counts()
        self.fans_out: bool | None = None
        """Whether N passes share one forward; None until the first stochastic pass was probed."""
        self.low_memory = False
        """Whether stochastic passes with gradient keep no activations, but are run twice."""
        self.micro_batch = 0
        """Rows that go through the model at once where gradients are taken; 0 for all."""
        self.execution = Execution.chosen(self.device, eager=eager, precision=precision)
        if self.device.type == "cpu" and any(isinstance(m, nn.GroupNorm) for m in model.modules()):
            # torch 2.13 crashes in their gradient where images lie so and need none themselves.
            self.execution = replace(self.execution, channels_last=False)
        self.graphs = Graphs(self.counts, enabled=self.execution.graphs)
        self._logits = logits
        self._sites = find_sites(model, sites) if sites is not None else None
        self._modules = list(model.modules())
        self._loan = Loan(model)
        model.eval()
        self._tried = not self.execution.channels_last
        if self.execution.channels_last:
            self._loan.lay_out_channels_last()

    @property
    def sites(self) -> tuple[str, ...]:
        """Where dropout is applied."""
        if self._sites is None:
            self._sites = find_sites(self.model)
        return self._sites

    @property
    def device(self) -> torch.device:
        """Where the model's weights are."""
        first = next(chain(self.model.parameters(), self.model.buffers()), None)
        return torch.device("cpu") if first is None else first.device

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
        if self.execution.channels_last and inputs.dim() == 4:
            inputs = self._laid_out(inputs)
        return inputs.clone() if inputs.is_inference() else inputs

    def __call__(self, inputs: Tensor, *, statistics: Statistics) -> Tensor:
        """Deterministic logits, (batch, classes)."""
        run = partial(self._plain, statistics=statistics)
        if torch.is_grad_enabled():
            return self._in_parts(run, inputs)
        return self._logits_again(("plain", statistics), run, inputs)

    @torch.no_grad()
    def observe(self, inputs: Tensor, *, momentum: float) -> None:
        """Let the running statistics follow this batch."""
        if not batch_norms(self.model):
            return

        def follow(inputs: Tensor, *, chance: Chance) -> Tensors:  # noqa: ARG001
            self._count(len(inputs))
            with normalised_by(self.model, "batch", rows=Rows(), momentum=momentum):
                self._forward(inputs)
            return {}

        self.repeat(("observe", momentum), follow, [inputs])

    @contextmanager
    def statistics_put_back(self) -> Iterator[None]:
        """Let running statistics move inside, and be as before afterwards."""
        norms = [norm for norm in batch_norms(self.model) if norm.running_mean is not None]
        buffers = [buffer for norm in norms for buffer in norm.buffers(recurse=False)]
        kept = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            if buffers:
                torch._foreach_copy_(buffers, kept)

    def sample(self, inputs: Tensor, how: Sampling, chance: Chance) -> Tensor:
        """Stochastic logits, (passes, batch, classes); one pass stands for all at rate 0."""
        if how.rate == 0:
            return self(inputs, statistics=how.statistics).unsqueeze(0)
        self._probe(inputs, how)
        if torch.is_grad_enabled():
            return self._in_parts(partial(self._sampled, how=how, chance=chance), inputs)
        run = partial(self._sampled, how=how)
        return self._logits_again(("sample", how), run, inputs, chance.key)

    def sample_with_plain(
        self, inputs: Tensor, how: Sampling, chance: Chance
    ) -> tuple[Tensor, Tensor]:
        """Stochastic logits, and the deterministic ones of the same rows without gradient.

        Everything before the first dropout site runs once for both, where activations are kept.
        """
        if how.rate == 0:
            plain = self(inputs, statistics=how.statistics)
            return plain.unsqueeze(0), plain.detach()
        if self.low_memory or self.micro_batch:
            with torch.no_grad():
                plain = self._plain(inputs, statistics=how.statistics)
            return self.sample(inputs, how, chance), plain
        self._probe(inputs, how)
        prefix = Prefix(self.model, self.sites)
        with prefix.recorded():
            plain = self._plain(inputs, statistics=how.statistics, tracked=False).detach()
        with prefix.given_again():
            return self.sample(inputs, how, chance), plain

    def repeat(
        self,
        name: Hashable,
        work: Work,
        inputs: Sequence[Tensor],
        *,
        key: Key = (),
        turn: int | None = None,
    ) -> Tensors:
        """Do work on the model: plainly, or as a replay once its shapes have settled."""
        if any(module._forward_hooks or module._forward_pre_hooks for module in self._modules):
            return work(*inputs, chance=Chance(key))  # somebody's hooks want to be called
        first = next(self.model.parameters(), None)
        where = 0 if first is None else first.data_ptr()
        return self.graphs.run((name, where), work, inputs, key=key, turn=turn)

    def train_only(self, parameters: list[nn.Parameter]) -> None:
        """Ask for gradients of these parameters and no others."""
        self.model.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_(True)

    @property
    def borrowed(self) -> bool:
        """Whether the model is still ours: not closed, not taken over by a later session."""
        return self._loan.running

    def close(self) -> None:
        """Give the model back, unless that has happened already."""
        if self.borrowed:
            give_back(self.model)

    def _logits_again(
        self, name: Hashable, run: Callable[..., Tensor], inputs: Tensor, key: Key = ()
    ) -> Tensor:
        def work(inputs: Tensor, *, chance: Chance) -> Tensors:
            return {"logits": run(inputs, chance=chance)}

        return self.repeat(name, work, [inputs], key=key)["logits"]

    def _in_parts(self, run: Callable[..., Tensor], inputs: Tensor) -> Tensor:
        """With gradients; run a second time where activations are not kept."""
        size = self.micro_batch or len(inputs)
        if size >= len(inputs):
            return run(inputs)
        parts = [
            checkpoint(
                run, part, rows=Rows(start=start, total=len(inputs)),
                use_reentrant=False, preserve_rng_state=False,
            )
            for start, part in zip(range(0, len(inputs), size), inputs.split(size), strict=True)
        ]  # fmt: skip
        return torch.cat(parts, dim=-2)

    def _plain(
        self,
        inputs: Tensor,
        *,
        statistics: Statistics,
        rows: Rows | None = None,
        tracked: bool = True,
        chance: Chance | None = None,  # noqa: ARG002
    ) -> Tensor:
        self._count(len(inputs), tracked=tracked)
        with self._normalised(statistics, rows or Rows()):
            return self._forward(inputs)

    def _sampled(
        self, inputs: Tensor, *, how: Sampling, chance: Chance, rows: Rows | None = None
    ) -> Tensor:
        run = partial(self._pass, how=how, chance=chance, rows=rows)
        if torch.is_grad_enabled() and self.low_memory:
            again = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)
            return torch.cat([again(inputs, (number,)) for number in range(how.passes)])
        if self.fans_out:
            return run(inputs, range(how.passes))
        return torch.cat([run(inputs, (number,)) for number in range(how.passes)])

    def _pass(
        self,
        inputs: Tensor,
        passes: Sequence[int],
        *,
        how: Sampling,
        chance: Chance,
        rows: Rows | None = None,
    ) -> Tensor:
        self._count(len(passes) * len(inputs))
        rows = replace(rows) if rows else Rows()
        with (
            self._normalised(how.statistics, rows),
            dropout_at(
                self.model,
                self.sites,
                rate=how.rate,
                passes=passes,
                chance=chance,
                rows=rows,
                kernels=self.execution.kernels,
            ),  # fmt: skip
        ):
            logits = self._forward(inputs, passes=len(passes))
        split: Tensor = logits.unflatten(0, (len(passes), -1))
        return split

    def _normalised(self, statistics: Statistics, rows: Rows) -> AbstractContextManager[None]:
        kernels = self.execution.kernels
        return normalised_by(self.model, statistics, rows=rows, kernels=kernels)

    def _forward(self, inputs: Tensor, *, passes: int = 1) -> Tensor:
        if self.model.training:  # somebody called train() on the borrowed model
            self.model.eval()
        with self.execution.arithmetic(), self.execution.autocast(inputs.device):
            output = self.model(inputs)
        logits = logits_of(output, self._logits, rows=passes * len(inputs))
        half = self.execution.precision == "bfloat16" and logits.dtype == torch.bfloat16
        return logits.float() if half else logits

    def _count(self, n_samples: int, *, tracked: bool = True) -> None:
        self.counts.forwards += n_samples
        self.counts.tracked += n_samples if tracked and torch.is_grad_enabled() else 0

    @torch.no_grad()
    def _probe(self, inputs: Tensor, how: Sampling) -> None:
        """Try fan-out, once, on a few rows against separate passes with the same masks."""
        if self.fans_out is not None:
            return
        few = inputs[:_PROBE_ROWS] if len(inputs) > 1 else torch.cat([inputs, inputs])
        run = partial(self._pass, few, how=how, chance=Chance((0,)))
        counted, execution = self.counts.forwards, self.execution
        self.execution = replace(execution, precision="float32")
        try:
            separate = torch.cat([run((number,)) for number in range(how.passes)])
            reason = _difference(partial(run, range(how.passes)), separate)
        finally:
            self.counts.forwards, self.execution = counted, execution
        self.fans_out = not reason
        if reason:
            warnings.warn(
                f"{type(self.model).__name__} cannot carry {how.passes} stochastic passes in one "
                f"forward ({reason}); running {how.passes} forwards instead.",
                FallbackWarning,
                stacklevel=6,
            )

    @torch.no_grad()
    def _laid_out(self, inputs: Tensor) -> Tensor:
        """Channels last, unless the model takes views that only the usual layout allows."""
        last = inputs.contiguous(memory_format=torch.channels_last)
        if self._tried:
            return last
        self._tried = True
        try:
            self.model(last[:_PROBE_ROWS])
        except RuntimeError:
            self._loan.lay_out_as_before()
            self.execution = replace(self.execution, channels_last=False)
            return inputs
        return last


def _difference(fan_out: Callable[[], Tensor], separate: Tensor) -> str:
    """Why a fan-out cannot stand for separate passes; empty if it can."""
    try:
        fanned = fan_out()
    except _PROBE_ERRORS as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    coarse = max(_PROBE_TOLERANCE, 8 * torch.finfo(separate.dtype).eps)
    scale = separate.abs().max().clamp_min(1.0)
    if bool(((fanned - separate).abs().max() <= coarse * scale).item()):
        return ""
    return "its rows do not stay independent after the first site"
