"""A borrowed classifier: run with either statistics, once or stochastically, then given back."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bitta.errors import FallbackWarning, InputError, ModelError
from bitta.nn import probe
from bitta.nn.dropout import dropout_at
from bitta.nn.execution import Execution, Precision
from bitta.nn.graphs import Counts, Graphs, Tensors, Work
from bitta.nn.loan import Loan, give_back
from bitta.nn.logits import LogitsOf, logits_of
from bitta.nn.norm import CallsOf, Rows, Statistics, batch_norms, normalised_by
from bitta.nn.prefix import Prefix
from bitta.nn.sites import Sites, find_sites
from bitta.seeding import Chance


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
        self.execution = Execution.chosen(
            self.device, self._dtype, eager=eager, precision=precision
        )
        self.graphs = Graphs(self.counts, enabled=self.execution.graphs)
        self._logits = logits
        self._sites = find_sites(model, sites) if sites is not None else None
        self._modules = list(model.modules())
        self._shares_prefix: bool | None = None
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

    @property
    def _dtype(self) -> torch.dtype:
        floats = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        return next(floats, torch.get_default_dtype())

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
        inputs = inputs.detach().to(self.device, self._dtype)
        self._try_layout(inputs)
        inputs = self._laid_out(inputs)
        return inputs.clone() if inputs.is_inference() else inputs

    def __call__(self, inputs: Tensor, *, statistics: Statistics) -> Tensor:
        """Deterministic logits, (batch, classes)."""
        run = partial(self._plain, statistics=statistics)
        if torch.is_grad_enabled():
            return self._in_parts(run, inputs)
        return self._logits_again(("plain", statistics), run, inputs, Chance(()))

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

        self.repeat(("observe", momentum), follow, [inputs], Chance(()))

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
        return self._logits_again(("sample", how), run, inputs, chance)

    def sample_with_plain(
        self, inputs: Tensor, how: Sampling, chance: Chance
    ) -> tuple[Tensor, Tensor]:
        """Stochastic logits, and the deterministic ones of the same rows without gradient.

        Everything before the first dropout site runs once for both, where activations are kept and
        the model allows it.
        """
        self._try_layout(inputs)
        if how.rate == 0:
            plain = self(inputs, statistics=how.statistics)
            return plain.unsqueeze(0), plain.detach()
        self._probe(inputs, how)
        if not (self.low_memory or self.micro_batch) and self._can_share(inputs, how):
            return self._sharing_prefix(inputs, how, chance)
        with torch.no_grad():
            plain = self._plain(inputs, statistics=how.statistics)
        return self._in_parts(partial(self._sampled, how=how, chance=chance), inputs), plain

    def repeat(
        self,
        name: Hashable,
        work: Work,
        inputs: Sequence[Tensor],
        chance: Chance,
        *,
        turn: int | None = None,
    ) -> Tensors:
        """Do work on the model: plainly, or as a replay once its shapes have settled."""
        self._try_layout(inputs[0])
        with torch.cuda.device_of(inputs[0]):
            if not self.execution.graphs or self._hooked:
                return work(*inputs, chance=chance)
            where = tuple(parameter.data_ptr() for parameter in self.model.parameters())
            outputs = self.graphs.run((name, where), work, inputs, chance, turn=turn)
        self.execution = replace(self.execution, graphs=self.graphs.enabled)
        return outputs

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
        """Give the model back, unless that has happened already, and what was captured."""
        self.graphs.clear()
        if self.borrowed:
            give_back(self.model)

    @property
    def _hooked(self) -> bool:
        """Whether somebody's hooks want to be called."""
        return any(m._forward_hooks or m._forward_pre_hooks for m in self._modules)

    def _logits_again(
        self, name: Hashable, run: Callable[..., Tensor], inputs: Tensor, chance: Chance
    ) -> Tensor:
        def work(inputs: Tensor, *, chance: Chance) -> Tensors:
            return {"logits": run(inputs, chance=chance)}

        return self.repeat(name, work, [inputs], chance)["logits"]

    def _in_parts(self, run: Callable[..., Tensor], inputs: Tensor) -> Tensor:
        """With gradients; run a second time where activations are not kept."""
        self._try_layout(inputs)
        size = self.micro_batch or len(inputs)
        if size >= len(inputs):
            return run(inputs)
        parts = [
            checkpoint(
                run, part, rows=Rows(n=len(part), start=start, total=len(inputs)),
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
            output = self.model(self._laid_out(inputs))
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
        few = inputs[: probe.N_ROWS] if len(inputs) > 1 else torch.cat([inputs, inputs])
        run = partial(self._pass, few, how=how, chance=Chance((0,)))
        with self._trying():
            separate = torch.cat([run((number,)) for number in range(how.passes)])
            reason = probe.reason_against(partial(run, range(how.passes)), separate)
        self.fans_out = not reason
        if reason:
            warnings.warn(
                f"{type(self.model).__name__} cannot carry {how.passes} stochastic passes in one "
                f"forward ({reason}); running {how.passes} forwards instead.",
                FallbackWarning,
                stacklevel=6,
            )

    def _sharing_prefix(
        self, inputs: Tensor, how: Sampling, chance: Chance
    ) -> tuple[Tensor, Tensor]:
        prefix = Prefix(self.model, self.sites)
        with prefix.recorded():
            plain = self._plain(inputs, statistics=how.statistics, tracked=False).detach()
        with prefix.given_again():
            return self._sampled(inputs, how=how, chance=chance), plain

    def _can_share(self, inputs: Tensor, how: Sampling) -> bool:
        """Try, once, whether a shared prefix gives what two whole forwards give."""
        if self._hooked:
            return False
        if self._shares_prefix is None:
            few, chance = inputs[: probe.N_ROWS], Chance((0,))

            def sharing() -> list[Tensor]:
                sampled, plain = self._sharing_prefix(few, how, chance)
                return [sampled, plain, *probe.gradients(sampled, self.model)]

            def apart() -> list[Tensor]:
                sampled = self._sampled(few, how=how, chance=chance)
                plain = self._plain(few, statistics=how.statistics)
                return [sampled, plain, *probe.gradients(sampled, self.model)]

            with self._trying():
                self._shares_prefix = probe.same(sharing, apart)
        return self._shares_prefix

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

    def _laid_out(self, inputs: Tensor) -> Tensor:
        if self.execution.channels_last and inputs.dim() == 4:
            return inputs.contiguous(memory_format=torch.channels_last)
        return inputs

    @torch.no_grad()
    def _try_layout(self, inputs: Tensor) -> None:
        """Once: channels last, unless the model takes views that only the usual layout allows."""
        if self._tried:
            return
        self._tried = True
        few = inputs[: probe.N_ROWS].clone()
        counted, watch = self.counts.values(), CallsOf(F.group_norm)
        try:
            with watch:
                self._plain(few, statistics="running")
            # torch 2.13 crashes in its gradient where images lie so and need none themselves.
            allowed = not (watch.seen and few.device.type == "cpu")
        except RuntimeError:
            allowed = False
        finally:
            self.counts.set(counted)
        if not allowed:
            self._loan.lay_out_as_before()
            self.execution = replace(self.execution, channels_last=False)
