"""A borrowed classifier: run with either statistics, once or stochastically, then given back."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bitta.errors import FallbackWarning, ModelError
from bitta.nn.batchnorm import Normaliser, RowLayout, Statistics, batch_norms, use_statistics
from bitta.nn.fast.execution import Precision
from bitta.nn.fast.graphs import PassCounts, Tensors
from bitta.nn.passes import (
    N_PROBE_ROWS,
    SharedPrefix,
    compute_probe_gradients,
    dropout_at,
    explain_mismatch,
    same_outputs,
)
from bitta.nn.prepared_model import LogitsOf, PreparedModel
from bitta.nn.structure import Sites, find_head, find_sites, record_inputs
from bitta.seeding import RandomKey


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How stochastic passes are made."""

    statistics: Statistics
    rate: float
    passes: int


class WrappedModel(PreparedModel):
    """A borrowed model and the ways of running it that methods are made of."""

    def __init__(
        self,
        model: nn.Module,
        *,
        logits: LogitsOf = None,
        sites: Sites = None,
        eager: bool = False,
        precision: Precision = "auto",
        counts: PassCounts | None = None,
    ) -> None:
        self._sites = find_sites(model, sites) if sites is not None else None
        super().__init__(model, logits=logits, eager=eager, precision=precision, counts=counts)
        self.can_fan_out: bool | None = None
        """Whether N passes share one forward; None until the first stochastic pass was probed."""
        self.low_memory = False
        """Whether stochastic passes with gradient keep no activations, but are run twice."""
        self.micro_batch = 0
        """Rows that go through the model at once where gradients are taken; 0 for all."""
        self.normaliser: Normaliser | None = None
        """What BatchNorm does instead of normalising by the batch, where a method has its own."""
        self._shares_prefix: bool | None = None
        self._head: str | None = None

    def clone_model(self) -> "WrappedModel":
        """A private copy of the model as it is now, on the same path; its passes count as ours."""
        try:
            model = deepcopy(self.model)
        except (RuntimeError, TypeError) as error:
            raise ModelError(
                f"{type(self.model).__name__} cannot be copied ({error}), which a method with a "
                "teacher needs."
            ) from None
        twin = WrappedModel(
            model, logits=self._logits, sites=self._sites, counts=self.counts, **self._path
        )
        twin.can_fan_out, twin.normaliser = self.can_fan_out, self.normaliser
        return twin

    @property
    def sites(self) -> tuple[str, ...]:
        """Where dropout is applied."""
        if self._sites is None:
            self._sites = find_sites(self.model)
        return self._sites

    def __call__(self, inputs: Tensor, *, statistics: Statistics, momentum: float = 0.0) -> Tensor:
        """Deterministic logits, (batch, classes); running statistics follow with `momentum`."""
        run = partial(self._plain, statistics=statistics, momentum=momentum)
        if torch.is_grad_enabled():
            return self._in_parts(run, inputs)
        return self._logits_again(("plain", statistics, momentum), run, inputs, RandomKey(()))

    def features(
        self, inputs: Tensor, *, statistics: Statistics, momentum: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """What goes into the last linear layer, (batch, features), and the logits."""
        self._try_layout(inputs)
        if self._head is None:
            with self._trying(), torch.no_grad():
                few = inputs[:N_PROBE_ROWS]
                self._head = find_head(self.model, lambda: self._forward(few))
        with record_inputs(self.model.get_submodule(self._head)) as seen:
            logits = self._plain(inputs, statistics=statistics, momentum=momentum)
        return seen[-1].flatten(1), logits

    @torch.no_grad()
    def observe(self, inputs: Tensor, *, momentum: float) -> None:
        """Let the running statistics follow this batch."""
        if not batch_norms(self.model):
            return

        def observe(inputs: Tensor, *, random_key: RandomKey) -> Tensors:  # noqa: ARG001
            self._count(len(inputs))
            with self._normalised("batch", RowLayout(), momentum):
                self._forward(inputs)
            return {}

        self.run_or_replay(("observe", momentum), observe, [inputs], RandomKey(()))

    @contextmanager
    def statistics_restored(self) -> Iterator[None]:
        """Let running statistics move inside, and be as before afterwards."""
        norms = [norm for norm in batch_norms(self.model) if norm.running_mean is not None]
        buffers = [buffer for norm in norms for buffer in norm.buffers(recurse=False)]
        kept = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            if buffers:
                torch._foreach_copy_(buffers, kept)

    def sample(self, inputs: Tensor, how: SamplingSettings, random_key: RandomKey) -> Tensor:
        """Stochastic logits, (passes, batch, classes); one pass stands for all at rate 0."""
        if how.rate == 0:
            return self(inputs, statistics=how.statistics).unsqueeze(0)
        self._probe(inputs, how)
        if torch.is_grad_enabled():
            return self._in_parts(partial(self._sampled, how=how, random_key=random_key), inputs)
        run = partial(self._sampled, how=how)
        return self._logits_again(("sample", how), run, inputs, random_key)

    def sample_with_plain(
        self, inputs: Tensor, how: SamplingSettings, random_key: RandomKey
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
            return self._sharing_prefix(inputs, how, random_key)
        with torch.no_grad():
            plain = self._plain(inputs, statistics=how.statistics)
        return self._in_parts(partial(self._sampled, how=how, random_key=random_key), inputs), plain

    def _logits_again(
        self, name: Hashable, run: Callable[..., Tensor], inputs: Tensor, random_key: RandomKey
    ) -> Tensor:
        def work(inputs: Tensor, *, random_key: RandomKey) -> Tensors:
            return {"logits": run(inputs, random_key=random_key)}

        return self.run_or_replay(name, work, [inputs], random_key)["logits"]

    def _in_parts(self, run: Callable[..., Tensor], inputs: Tensor) -> Tensor:
        """With gradients; run a second time where activations are not kept."""
        self._try_layout(inputs)
        size = self.micro_batch or len(inputs)
        if size >= len(inputs):
            return run(inputs)
        parts = [
            checkpoint(
                run, part, rows=RowLayout(n=len(part), start=start, total=len(inputs)),
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
        momentum: float = 0.0,
        rows: RowLayout | None = None,
        tracked: bool = True,
        random_key: RandomKey | None = None,  # noqa: ARG002
    ) -> Tensor:
        self._count(len(inputs), tracked=tracked)
        with self._normalised(statistics, rows or RowLayout(), momentum):
            return self._forward(inputs)

    def _sampled(
        self,
        inputs: Tensor,
        *,
        how: SamplingSettings,
        random_key: RandomKey,
        rows: RowLayout | None = None,
    ) -> Tensor:
        run = partial(self._pass, how=how, random_key=random_key, rows=rows)
        if torch.is_grad_enabled() and self.low_memory:
            again = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)
            return torch.cat([again(inputs, (number,)) for number in range(how.passes)])
        if self.can_fan_out:
            return run(inputs, range(how.passes))
        return torch.cat([run(inputs, (number,)) for number in range(how.passes)])

    def _pass(
        self,
        inputs: Tensor,
        passes: Sequence[int],
        *,
        how: SamplingSettings,
        random_key: RandomKey,
        rows: RowLayout | None = None,
    ) -> Tensor:
        self._count(len(passes) * len(inputs))
        rows = replace(rows) if rows else RowLayout()
        with (
            self._normalised(how.statistics, rows),
            dropout_at(
                self.model,
                self.sites,
                rate=how.rate,
                passes=passes,
                random_key=random_key,
                rows=rows,
                kernels=self.execution.kernels,
            ),  # fmt: skip
        ):
            logits = self._forward(inputs, passes=len(passes))
        split: Tensor = logits.unflatten(0, (len(passes), -1))
        return split

    def _normalised(
        self, statistics: Statistics, rows: RowLayout, momentum: float = 0.0
    ) -> AbstractContextManager[None]:
        return use_statistics(
            self.model,
            statistics,
            rows=rows,
            momentum=momentum,
            kernels=self.execution.kernels,
            normaliser=self.normaliser,
        )

    @torch.no_grad()
    def _probe(self, inputs: Tensor, how: SamplingSettings) -> None:
        """Try fan-out, once, on a few rows against separate passes with the same masks."""
        if self.can_fan_out is not None:
            return
        few = inputs[:N_PROBE_ROWS] if len(inputs) > 1 else torch.cat([inputs, inputs])
        run = partial(self._pass, few, how=how, random_key=RandomKey((0,)))
        with self._trying():
            separate = torch.cat([run((number,)) for number in range(how.passes)])
            reason = explain_mismatch(partial(run, range(how.passes)), separate)
        self.can_fan_out = not reason
        if reason:
            warnings.warn(
                f"{type(self.model).__name__} cannot carry {how.passes} stochastic passes in one "
                f"forward ({reason}); running {how.passes} forwards instead.",
                FallbackWarning,
                stacklevel=6,
            )

    def _sharing_prefix(
        self, inputs: Tensor, how: SamplingSettings, random_key: RandomKey
    ) -> tuple[Tensor, Tensor]:
        prefix = SharedPrefix(self.model, self.sites)
        with prefix.record():
            plain = self._plain(inputs, statistics=how.statistics, tracked=False).detach()
        with prefix.reuse():
            return self._sampled(inputs, how=how, random_key=random_key), plain

    def _can_share(self, inputs: Tensor, how: SamplingSettings) -> bool:
        """Try, once, whether a shared prefix gives what two whole forwards give."""
        if self._hooked:
            return False
        if self._shares_prefix is None:
            few, random_key = inputs[:N_PROBE_ROWS], RandomKey((0,))

            def sharing() -> list[Tensor]:
                sampled, plain = self._sharing_prefix(few, how, random_key)
                return [sampled, plain, *compute_probe_gradients(sampled, self.model)]

            def apart() -> list[Tensor]:
                sampled = self._sampled(few, how=how, random_key=random_key)
                plain = self._plain(few, statistics=how.statistics)
                return [sampled, plain, *compute_probe_gradients(sampled, self.model)]

            with self._trying():
                self._shares_prefix = same_outputs(sharing, apart)
        return self._shares_prefix
