"""Fine-tune the source model on samples with answers before the stream begins (enhanced TTA).

This is the setting of SimATTA (Gui et al., ICLR 2024), as the BiTTA paper uses it in Table 14. All
questions are asked at once, before the stream, about samples drawn from it. The model learns from
the answers. Then any method runs on the stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.bench.annotators import build_annotators
from bitta.bench.before_stream import (
    BeforeStream,
    OnPreparationBatch,
    PreparationContext,
    PreparationProgress,
)
from bitta.bench.experiment import Experiment
from bitta.config_base import require
from bitta.errors import InputError, SettingError
from bitta.feedback import FeedbackSource
from bitta.losses import complementary_loss
from bitta.methods import METHODS, get_method
from bitta.nn import WrappedModel
from bitta.seeding import derive_seed, generator
from bitta.selection import Budget
from bitta.streams import Stream, as_floats
from bitta.types import Query, State


@dataclass(frozen=True, kw_only=True)
class FinetuneBeforeStream(BeforeStream):
    """Supervised fine-tuning on samples of the stream and the answers about them."""

    n_samples: int = -1
    """Samples to ask about; -1 for as many as the run would ask about."""
    epochs: int = 150
    """Passes over these samples. The paper uses 25 on Tiny-ImageNet-C."""
    lr: float = 1e-3
    """Learning rate of SGD."""
    batch_size: int = 64
    """Samples per update."""
    momentum: float = 0.0
    """Momentum of SGD. The paper names none."""

    def __post_init__(self) -> None:
        allowed = self.n_samples == -1 or self.n_samples >= 1
        require(allowed, "n_samples", self.n_samples, "1 or more, or -1")
        require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "1 or more")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")

    def check_experiment(self, experiment: Experiment) -> None:
        """Refuse logs of answers, which do not hold the answers from before the stream."""
        if experiment.feedback.record or experiment.feedback.replay:
            raise SettingError(
                "[before_stream] asks questions that a log of answers does not hold; leave out "
                "[before_stream], or feedback.record and feedback.replay."
            )

    def identity(self, context: PreparationContext) -> Mapping[str, Any]:
        """Return trained parameters, number of samples, and kind and error rates of answers."""
        model = context.wrapped.model
        trained = {id(parameter) for parameter in trainable_parameters(model)}
        feedback = context.experiment.feedback
        return {
            "trained": [n for n, parameter in model.named_parameters() if id(parameter) in trained],
            "n_samples": self._n_samples(context),
            "answers": [feedback.labels, *feedback.error_rates],
        }

    def prepare(
        self,
        context: PreparationContext,
        progress: PreparationProgress,
        on_batch: OnPreparationBatch,
    ) -> dict[str, Any]:
        """Draw samples, ask about them, and learn from the answers."""
        # The published results were made with this word in the seed. Another word changes them.
        seed = derive_seed(context.experiment.seed, "enhanced")
        annotators = build_annotators(
            context.experiment.feedback.without_delay(),
            context.stream.truth,
            n_classes=context.n_classes,
            seed=seed,
        )
        n_samples = min(self._n_samples(context), len(context.stream.truth))
        samples = draw_samples(
            context.wrapped, context.stream, annotators, n_samples, self.batch_size, seed
        )
        return finetune(context.wrapped, samples, self, progress, on_batch, seed)

    def _n_samples(self, context: PreparationContext) -> int:
        """Return the number of samples to ask about.

        If the run asks no questions itself, count as many per batch as BiTTA asks.
        """
        if self.n_samples > 0:
            return self.n_samples
        experiment = context.experiment
        feedback, stream = experiment.feedback, experiment.stream
        n_queries = get_method(experiment.method).n_queries or METHODS["bitta"].n_queries
        budget = Budget(
            n_queries=feedback.n_queries if feedback.n_queries > 0 else n_queries,
            every=feedback.every,
            total=feedback.total if feedback.total > 0 else None,
            price=feedback.price(context.n_classes),
        )
        window = stream.window_size
        is_windowed = window > stream.batch_size
        n_steps = len(context.stream.truth) // window if is_windowed else len(context.stream)
        largest = max(window, stream.batch_size)
        n_samples = budget.count_questions(n_steps=n_steps, max_per_step=largest)
        if not n_samples:
            raise SettingError(
                "[before_stream] asks about as many samples as the run, but the run ends before "
                "its first question; give before_stream.n_samples, or a smaller stream.window."
            )
        return n_samples


@dataclass(frozen=True, slots=True)
class LabelledSamples:
    """Samples to learn from, with the answers."""

    images: Tensor  # (samples, ...) as the stream stores them
    labels: Tensor  # (samples,) the label that was shown, or the one that the annotator named
    is_known: Tensor  # (samples,) True if this is the right label, False if it is wrong
    n_drawn: int
    """Samples that were asked about, answered or not."""

    def __len__(self) -> int:
        return len(self.labels)


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are not frozen, or all if the whole model is frozen."""
    parameters = list(model.parameters())
    return [parameter for parameter in parameters if parameter.requires_grad] or parameters


def draw_samples(
    wrapped: WrappedModel,
    stream: Stream,
    feedback_source: FeedbackSource,
    n_samples: int,
    batch_size: int,
    seed: int,
) -> LabelledSamples:
    """Draw samples from the stream and ask about the labels that the source model serves."""
    positions, images = _draw_images(stream, n_samples, seed)
    if len({(image.shape, image.dtype) for image in images}) > 1:
        raise InputError(
            "[before_stream] needs images of one shape and type, but the domains of the stream "
            "differ; give stream.resize and stream.crop."
        )
    stacked = torch.stack(images)
    shown = torch.cat([_predict_labels(wrapped, part) for part in stacked.split(batch_size)])
    feedback_source.ask(
        [
            Query(
                id=number,
                index=number,
                served_label=label,
                shown_label=label,
                uncertainty=0.0,
                input=image,
                step=0,
                version=0,
                position=position,
            )
            for number, (image, label, position) in enumerate(
                zip(images, shown.tolist(), positions.tolist(), strict=True)
            )
        ]
    )
    answers = feedback_source.collect()
    labels = [a.query.shown_label if a.known_label is None else a.known_label for a in answers]
    return LabelledSamples(
        stacked[[answer.query.index for answer in answers]],
        torch.tensor(labels, dtype=torch.long),
        torch.tensor([answer.known_label is not None for answer in answers], dtype=torch.bool),
        n_samples,
    )


def _draw_images(stream: Stream, n_samples: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """Return positions in the stream, ascending, and the images there."""
    n_all = sum(len(visit.rows) for visit in stream.visits)
    order = torch.randperm(n_all, generator=generator(seed, "enhanced", "sample"))
    positions = order[:n_samples].sort().values
    images: list[Tensor] = []
    start = 0
    for number, visit in enumerate(stream.visits):
        end = start + len(visit.rows)
        in_visit = positions[(positions >= start) & (positions < end)] - start
        start = end
        images += _read_images(stream, visit.domains[in_visit], visit.rows[in_visit])
        stream.release(before=number + 1)
    return positions, images


def _read_images(stream: Stream, domains: Tensor, rows: Tensor) -> list[Tensor]:
    """Read images domain by domain. Return them in the order given."""
    found: dict[int, Tensor] = {}
    for domain in domains.unique().tolist():
        indices = (domains == domain).nonzero().flatten()
        images = stream.domains[domain].images[rows[indices]]
        found.update(zip(indices.tolist(), images, strict=True))
    return [found[index] for index in range(len(rows))]


@torch.no_grad()
def _predict_labels(wrapped: WrappedModel, images: Tensor) -> Tensor:
    inputs = wrapped.prepare_inputs(as_floats(images))
    return wrapped(inputs, statistics="running").argmax(-1).cpu()


def finetune(
    wrapped: WrappedModel,
    samples: LabelledSamples,
    settings: FinetuneBeforeStream,
    progress: PreparationProgress,
    on_batch: OnPreparationBatch,
    seed: int,
) -> dict[str, Any]:
    """Train on the samples, from the saved state on. Running statistics stay as they are."""
    parameters = trainable_parameters(wrapped.model)
    wrapped.train_only(parameters)
    optimiser = torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum)
    progress.restore_weights(wrapped.model)
    _restore_momentum(wrapped.model, optimiser, progress.state.get("momentum", {}))
    n_done: int = progress.state.get("n_batches", 0)
    losses: list[float] = progress.state.get("losses", [])  # of the current epoch

    def save() -> None:
        momentum = _momentum_buffers(wrapped.model, optimiser)
        state: State = {"n_batches": n_done, "losses": losses, "momentum": momentum}
        progress.save(wrapped.model, state)

    batches = _batch_rows(len(samples), settings, seed)
    for batch_number, (is_first_of_epoch, rows) in enumerate(batches[n_done:], start=n_done + 1):
        loss = _update(wrapped, optimiser, samples, rows)
        losses = [loss] if is_first_of_epoch else [*losses, loss]
        n_done = batch_number
        try:
            on_batch(n_done, len(batches), loss)
        except BaseException:
            save()
            raise
        if progress.is_save_due:
            save()
    mean_loss = sum(losses) / max(1, len(losses))
    return {
        "n_samples": samples.n_drawn,
        "n_answered": len(samples),
        "n_correct": int(samples.is_known.sum()),
        "loss": mean_loss if isfinite(mean_loss) else None,
    }


def _batch_rows(
    n_samples: int, settings: FinetuneBeforeStream, seed: int
) -> list[tuple[bool, Tensor]]:
    """Return a pair per batch: True if it is the first of its epoch, and its rows."""
    if not n_samples:
        return []
    batches = []
    for epoch in range(settings.epochs):
        order = torch.randperm(n_samples, generator=generator(seed, "enhanced", epoch))
        parts = order.split(settings.batch_size)
        batches += [(index == 0, rows) for index, rows in enumerate(parts)]
    return batches


@torch.enable_grad()
def _update(
    wrapped: WrappedModel, optimiser: torch.optim.Optimizer, samples: LabelledSamples, rows: Tensor
) -> float:
    """Minimise cross-entropy of known labels plus complementary loss of wrong ones."""
    inputs = wrapped.prepare_inputs(as_floats(samples.images[rows]))
    labels, is_known = (part[rows].to(inputs.device) for part in (samples.labels, samples.is_known))
    logits = wrapped(inputs, statistics="running")
    terms = []
    if is_known.any():
        terms.append(F.cross_entropy(logits[is_known], labels[is_known]))
    if not is_known.all():
        terms.append(complementary_loss(logits[~is_known], labels[~is_known]))
    loss = torch.stack(terms).sum()
    optimiser.zero_grad(set_to_none=True)
    with wrapped.execution.tf32_mode():
        loss.backward()
    optimiser.step()
    return float(loss.detach())


def _momentum_buffers(model: nn.Module, optimiser: torch.optim.Optimizer) -> State:
    """Return the momentum of each parameter that has one, by name."""
    states = {name: optimiser.state.get(p, {}) for name, p in model.named_parameters()}
    buffers = {name: state.get("momentum_buffer") for name, state in states.items()}
    return {name: buffer for name, buffer in buffers.items() if buffer is not None}


def _restore_momentum(
    model: nn.Module, optimiser: torch.optim.Optimizer, buffers: Mapping[str, Tensor]
) -> None:
    for name, parameter in model.named_parameters():
        if name in buffers:
            buffer = torch.empty_like(parameter).copy_(buffers[name])
            optimiser.state[parameter]["momentum_buffer"] = buffer
