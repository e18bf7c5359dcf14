"""Forward passes of a classifier: running or batch statistics, deterministic or stochastic."""

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
from bitta.nn.mc_dropout import (
    N_PROBE_ROWS,
    SharedPrefix,
    compute_probe_gradients,
    dropout_at,
    explain_mismatch,
    same_outputs,
)
from bitta.nn.prepare_and_restore import LogitsPosition, PreparedModel
from bitta.nn.structure import Sites, find_head, find_sites, record_inputs
from bitta.seeding import RandomKey


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Settings of N stochastic passes."""

    statistics: Statistics
    rate: float
    """Rate of dropout."""
    passes: int
    """Number of passes."""


class WrappedModel(PreparedModel):
    """Prepared model with the kinds of forward passes that methods need.

    A deterministic pass has no dropout. A stochastic pass has dropout at `sites`. A fan-out runs N
    stochastic passes in one forward pass, which repeats the batch at the first site.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        logits: LogitsPosition = None,
        sites: Sites = None,
        eager: bool = False,
        precision: Precision = "auto",
        counts: PassCounts | None = None,
    ) -> None:
        self._sites = find_sites(model, sites) if sites is not None else None
        super().__init__(model, logits=logits, eager=eager, precision=precision, counts=counts)
        self.can_fan_out: bool | None = None
        """True if the model allows a fan-out; None before the first stochastic pass."""
        self.low_memory = False
        """Store the activations of one stochastic pass at a time. Backward repeats each pass."""
        self.micro_batch = 0
        """Number of rows in one forward pass with gradients; 0 for all rows."""
        self.normaliser: Normaliser | None = None
        """Replacement for batch statistics in BatchNorm layers, if the method has one."""
        self._can_share_prefix: bool | None = None
        self._head: str | None = None

    def clone_model(self) -> "WrappedModel":
        """Return a copy with the same settings. Both count their passes in the same counters."""
        try:
            model = deepcopy(self.model)
        except (RuntimeError, TypeError) as error:
            raise ModelError(
                f"{type(self.model).__name__} cannot be copied ({error}), and this method needs a "
                "copy of the model; use another method."
            ) from None
        clone = WrappedModel(
            model,
            logits=self._logits,
            sites=self._sites,
            counts=self.counts,
            **self._execution_options,
        )
        clone.can_fan_out, clone.normaliser = self.can_fan_out, self.normaliser
        return clone

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the modules after which dropout is applied."""
        if self._sites is None:
            self._sites = find_sites(self.model)
        return self._sites

    def __call__(self, inputs: Tensor, *, statistics: Statistics, momentum: float = 0.0) -> Tensor:
        """Return deterministic logits, (batch, classes).

        `momentum` is the rate at which running statistics follow the batch.
        """
        run = partial(self._run_deterministic, statistics=statistics, momentum=momentum)
        if torch.is_grad_enabled():
            return self._run_in_micro_batches(run, inputs)
        return self._replay_logits(
            ("deterministic", statistics, momentum), run, inputs, RandomKey(())
        )

    def features(
        self, inputs: Tensor, *, statistics: Statistics, momentum: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs of the last linear layer, (batch, features), and the logits."""
        self._check_layout(inputs)
        if self._head is None:
            with self._probing(), torch.no_grad():
                few = inputs[:N_PROBE_ROWS]
                self._head = find_head(self.model, lambda: self._forward(few))
        with record_inputs(self.model.get_submodule(self._head)) as recorded:
            logits = self._run_deterministic(inputs, statistics=statistics, momentum=momentum)
        return recorded[-1].flatten(1), logits

    @torch.no_grad()
    def observe(self, inputs: Tensor, *, momentum: float) -> None:
        """Update the running statistics with this batch, at the rate `momentum`."""
        if not batch_norms(self.model):
            return

        def run(inputs: Tensor, *, random_key: RandomKey) -> Tensors:  # noqa: ARG001
            self._count(len(inputs))
            with self._use_statistics("batch", RowLayout(), momentum):
                self._forward(inputs)
            return {}

        self.run_or_replay(("observe", momentum), run, [inputs], RandomKey(()))

    @contextmanager
    def statistics_restored(self) -> Iterator[None]:
        """Restore the running statistics at the end of the block."""
        norms = [norm for norm in batch_norms(self.model) if norm.running_mean is not None]
        buffers = [buffer for norm in norms for buffer in norm.buffers(recurse=False)]
        saved = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            if buffers:
                torch._foreach_copy_(buffers, saved)

    def sample(self, inputs: Tensor, sampling: SamplingSettings, random_key: RandomKey) -> Tensor:
        """Return stochastic logits, (passes, batch, classes).

        With a dropout rate of 0 all passes are equal, and only one is returned.
        """
        if sampling.rate == 0:
            return self(inputs, statistics=sampling.statistics).unsqueeze(0)
        self._probe_fan_out(inputs, sampling)
        run = partial(self._run_passes, sampling=sampling)
        if torch.is_grad_enabled():
            return self._run_in_micro_batches(partial(run, random_key=random_key), inputs)
        return self._replay_logits(("sample", sampling), run, inputs, random_key)

    def sample_with_deterministic(
        self, inputs: Tensor, sampling: SamplingSettings, random_key: RandomKey
    ) -> tuple[Tensor, Tensor]:
        """Return stochastic logits, and deterministic logits of the same rows without gradient.

        Everything before the first dropout site runs once for both, if the model allows it and
        neither `low_memory` nor `micro_batch` is set.
        """
        self._check_layout(inputs)
        if sampling.rate == 0:
            deterministic = self(inputs, statistics=sampling.statistics)
            return deterministic.unsqueeze(0), deterministic.detach()
        self._probe_fan_out(inputs, sampling)
        stores_activations = not (self.low_memory or self.micro_batch)
        if stores_activations and self._probe_shared_prefix(inputs, sampling):
            return self._run_with_shared_prefix(inputs, sampling, random_key)
        with torch.no_grad():
            deterministic = self._run_deterministic(inputs, statistics=sampling.statistics)
        run = partial(self._run_passes, sampling=sampling, random_key=random_key)
        return self._run_in_micro_batches(run, inputs), deterministic

    def _replay_logits(
        self, name: Hashable, run: Callable[..., Tensor], inputs: Tensor, random_key: RandomKey
    ) -> Tensor:
        def work(inputs: Tensor, *, random_key: RandomKey) -> Tensors:
            return {"logits": run(inputs, random_key=random_key)}

        return self.run_or_replay(name, work, [inputs], random_key)["logits"]

    def _run_in_micro_batches(self, run: Callable[..., Tensor], inputs: Tensor) -> Tensor:
        """Run with gradients. A micro batch stores no activations: backward runs it again."""
        self._check_layout(inputs)
        size = self.micro_batch or len(inputs)
        if size >= len(inputs):
            return run(inputs)
        outputs = []
        for start, part in zip(range(0, len(inputs), size), inputs.split(size), strict=True):
            rows = RowLayout(n_rows=len(part), first_row=start, n_total=len(inputs))
            outputs.append(
                checkpoint(run, part, rows=rows, use_reentrant=False, preserve_rng_state=False)
            )
        return torch.cat(outputs, dim=-2)

    def _run_deterministic(
        self,
        inputs: Tensor,
        *,
        statistics: Statistics,
        momentum: float = 0.0,
        rows: RowLayout | None = None,
        with_gradient: bool = True,
        random_key: RandomKey | None = None,  # noqa: ARG002
    ) -> Tensor:
        self._count(len(inputs), with_gradient=with_gradient)
        with self._use_statistics(statistics, rows or RowLayout(), momentum):
            return self._forward(inputs)

    def _run_passes(
        self,
        inputs: Tensor,
        *,
        sampling: SamplingSettings,
        random_key: RandomKey,
        rows: RowLayout | None = None,
    ) -> Tensor:
        """Return the logits of all passes, (passes, batch, classes)."""
        run = partial(self._run_forward, sampling=sampling, random_key=random_key, rows=rows)
        if torch.is_grad_enabled() and self.low_memory:
            repeated = partial(checkpoint, run, use_reentrant=False, preserve_rng_state=False)
            return torch.cat([repeated(inputs, (number,)) for number in range(sampling.passes)])
        if self.can_fan_out:
            return run(inputs, range(sampling.passes))
        return torch.cat([run(inputs, (number,)) for number in range(sampling.passes)])

    def _run_forward(
        self,
        inputs: Tensor,
        passes: Sequence[int],
        *,
        sampling: SamplingSettings,
        random_key: RandomKey,
        rows: RowLayout | None = None,
    ) -> Tensor:
        """Run some passes in one forward pass of the model."""
        self._count(len(passes) * len(inputs))
        rows = replace(rows) if rows else RowLayout()
        with (
            self._use_statistics(sampling.statistics, rows),
            dropout_at(
                self.model,
                self.sites,
                rate=sampling.rate,
                passes=passes,
                random_key=random_key,
                rows=rows,
                kernels=self.execution.kernels,
            ),
        ):
            logits = self._forward(inputs, n_passes=len(passes))
        split: Tensor = logits.unflatten(0, (len(passes), -1))
        return split

    def _use_statistics(
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
    def _probe_fan_out(self, inputs: Tensor, sampling: SamplingSettings) -> None:
        """Check once, on a few rows, that a fan-out gives the same logits as separate passes."""
        if self.can_fan_out is not None:
            return
        few = inputs[:N_PROBE_ROWS] if len(inputs) > 1 else torch.cat([inputs, inputs])
        run = partial(self._run_forward, few, sampling=sampling, random_key=RandomKey((0,)))
        with self._probing():
            separate = torch.cat([run((number,)) for number in range(sampling.passes)])
            reason = explain_mismatch(partial(run, range(sampling.passes)), separate)
        self.can_fan_out = not reason
        if reason:
            warnings.warn(
                f"{type(self.model).__name__} cannot run {sampling.passes} stochastic passes in "
                f"one forward pass ({reason}); running {sampling.passes} forward passes instead.",
                FallbackWarning,
                stacklevel=6,
            )

    def _run_with_shared_prefix(
        self, inputs: Tensor, sampling: SamplingSettings, random_key: RandomKey
    ) -> tuple[Tensor, Tensor]:
        prefix = SharedPrefix(self.model, self.sites)
        with prefix.record():
            deterministic = self._run_deterministic(
                inputs, statistics=sampling.statistics, with_gradient=False
            ).detach()
        with prefix.reuse():
            return self._run_passes(inputs, sampling=sampling, random_key=random_key), deterministic

    def _probe_shared_prefix(self, inputs: Tensor, sampling: SamplingSettings) -> bool:
        """Check once, on a few rows, that a shared prefix gives the same as two full passes."""
        if self._has_hooks:
            return False
        if self._can_share_prefix is None:
            few, random_key = inputs[:N_PROBE_ROWS], RandomKey((0,))

            def run_shared() -> list[Tensor]:
                sampled, deterministic = self._run_with_shared_prefix(few, sampling, random_key)
                return [sampled, deterministic, *compute_probe_gradients(sampled, self.model)]

            def run_separately() -> list[Tensor]:
                sampled = self._run_passes(few, sampling=sampling, random_key=random_key)
                deterministic = self._run_deterministic(few, statistics=sampling.statistics)
                return [sampled, deterministic, *compute_probe_gradients(sampled, self.model)]

            with self._probing():
                self._can_share_prefix = same_outputs(run_shared, run_separately)
        return self._can_share_prefix
