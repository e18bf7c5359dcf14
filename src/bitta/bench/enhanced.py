"""Enhanced TTA: all questions at once, before the stream begins; then any method.

The setting of SimATTA (Gui et al., ICLR 2024) with verdicts: the model is fine-tuned on as many
samples of the stream as would be asked about, each with the source model's label and a verdict.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.bench.tunings import Tuning
from bitta.config import Config, require
from bitta.errors import InputError
from bitta.feedback import FeedbackSource
from bitta.losses import complementary_loss
from bitta.nn import WrappedModel
from bitta.seeding import generator
from bitta.streams import Stream, as_floats
from bitta.types import Query

OnBatch = Callable[[int, int, float], None]
"""Told after every batch: how many are done, of how many, and the loss."""


@dataclass(frozen=True, kw_only=True)
class EnhancedConfig(Config):
    """What the model learns before the stream begins; nothing unless an experiment says so."""

    n_samples: int = 0
    """Samples to ask about; 0 for none, -1 for as many as a run that asks would ask about."""
    epochs: int = 150
    """Times that all of them are learned from; the paper has 25 on Tiny-ImageNet-C."""
    lr: float = 1e-3
    """Step size of SGD."""
    batch_size: int = 64
    """Samples per step."""
    momentum: float = 0.0
    """Momentum of SGD; the paper names none."""

    def __post_init__(self) -> None:
        require(self.n_samples >= -1, "n_samples", self.n_samples, "0 or more, or -1")
        require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "1 or more")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")


@dataclass(frozen=True, slots=True)
class _Samples:
    """What is learned from, in memory."""

    images: Tensor  # (samples, ...) as they are kept
    labels: Tensor  # (samples,) the label shown, or the one named instead
    right: Tensor  # (samples,) whether it is

    def __len__(self) -> int:
        return len(self.labels)


def fine_tune(
    wrapped: WrappedModel,
    stream: Stream,
    source: FeedbackSource,
    config: EnhancedConfig,
    *,
    n_samples: int,
    seed: int,
    on_batch: OnBatch = lambda *_: None,
    tuning: Tuning | None = None,
) -> dict[str, Any]:
    """Let the model learn from the samples drawn; a function of its arguments alone.

    Normalisation goes by the running statistics, which stay. Gives what a result should tell.
    `tuning` is how far it was when it was last written: it goes on from there.
    """
    tuning = tuning or Tuning()
    parameters = trainable(wrapped.model)
    wrapped.train_only(parameters)
    if tuning.told is not None:
        tuning.put(wrapped.model)
        return tuning.told
    samples = _judged(wrapped, *_drawn(stream, n_samples, seed), source, config.batch_size)
    optimiser = torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum)
    tuning.put(wrapped.model, optimiser)
    if len(samples):
        _descend(
            wrapped, samples, config=config, seed=seed, optimiser=optimiser, on_batch=on_batch,
            tuning=tuning,
        )  # fmt: skip
    loss = sum(tuning.losses) / max(1, len(tuning.losses))
    tuning.told = {
        "n_samples": n_samples,
        "n_answered": len(samples),
        "n_correct": int(samples.right.sum()),
        "loss": loss if isfinite(loss) else None,
        "seconds": tuning.seconds,
    }
    tuning.write(wrapped.model, optimiser)
    return tuning.told


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """What the user froze stays frozen, unless all of the model is: it was loaded to serve."""
    everything = list(model.parameters())
    return [parameter for parameter in everything if parameter.requires_grad] or everything


def _drawn(stream: Stream, n_samples: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """Places in the stream, ascending, and the images there."""
    n_all = sum(len(visit.rows) for visit in stream.visits)
    order = torch.randperm(n_all, generator=generator(seed, "enhanced", "sample"))
    places = order[:n_samples].sort().values
    images: list[Tensor] = []
    start = 0
    for number, visit in enumerate(stream.visits):
        here = places[(places >= start) & (places < start + len(visit.rows))] - start
        start += len(visit.rows)
        images += _images(stream, visit.domains[here], visit.rows[here])
        stream.release(before=number + 1)
    return places, images


def _images(stream: Stream, domains: Tensor, rows: Tensor) -> list[Tensor]:
    found: dict[int, Tensor] = {}
    for domain in domains.unique().tolist():
        mine = (domains == domain).nonzero().flatten()
        found.update(zip(mine.tolist(), stream.domains[domain].images[rows[mine]], strict=True))
    return [found[place] for place in range(len(rows))]


def _judged(
    wrapped: WrappedModel,
    places: Tensor,
    images: list[Tensor],
    source: FeedbackSource,
    batch_size: int,
) -> _Samples:
    """The source model's labels, put to the annotators."""
    if len({(image.shape, image.dtype) for image in images}) > 1:
        raise InputError(
            "[enhanced] needs images of one form, and the domains of the stream differ in theirs; "
            "give stream.resize and stream.crop."
        )
    stacked = torch.stack(images)
    shown = torch.cat([_served(wrapped, part) for part in stacked.split(batch_size)])
    source.ask(
        [
            Query(
                id=number,
                index=number,
                label=label,
                uncertainty=0.0,
                input=image,
                step=0,
                version=0,
                position=place,
            )
            for number, (image, label, place) in enumerate(
                zip(images, shown.tolist(), places.tolist(), strict=True)
            )
        ]
    )
    answers = source.collect()
    labels = [a.query.label if a.known_label is None else a.known_label for a in answers]
    return _Samples(
        stacked[[answer.query.index for answer in answers]],
        torch.tensor(labels, dtype=torch.long),
        torch.tensor([answer.known_label is not None for answer in answers], dtype=torch.bool),
    )


@torch.no_grad()
def _served(wrapped: WrappedModel, images: Tensor) -> Tensor:
    inputs = wrapped.prepare_inputs(as_floats(images))
    return wrapped(inputs, statistics="running").argmax(-1).cpu()


def _descend(
    wrapped: WrappedModel,
    samples: _Samples,
    *,
    config: EnhancedConfig,
    seed: int,
    optimiser: torch.optim.Optimizer,
    on_batch: OnBatch,
    tuning: Tuning,
) -> None:
    total = config.epochs * -(-len(samples) // config.batch_size)
    for epoch in range(config.epochs):
        order = torch.randperm(len(samples), generator=generator(seed, "enhanced", epoch))
        batches = order.split(config.batch_size)
        before = epoch * len(batches)
        for rows in batches[max(0, tuning.done - before) :]:
            loss = _step(wrapped, optimiser, samples, rows)
            tuning.step(loss, first=tuning.done == before)
            try:
                on_batch(tuning.done, total, loss)
            except BaseException:  # whoever stops it loses nothing
                tuning.write(wrapped.model, optimiser)
                raise
            if tuning.due:
                tuning.write(wrapped.model, optimiser)


@torch.enable_grad()
def _step(
    wrapped: WrappedModel, optimiser: torch.optim.Optimizer, samples: _Samples, rows: Tensor
) -> float:
    """Cross-entropy on what is right and complementary loss on what is not."""
    inputs = wrapped.prepare_inputs(as_floats(samples.images[rows]))
    labels, right = (part[rows].to(inputs.device) for part in (samples.labels, samples.right))
    logits = wrapped(inputs, statistics="running")
    terms = []
    if right.any():
        terms.append(F.cross_entropy(logits[right], labels[right]))
    if not right.all():
        terms.append(complementary_loss(logits[~right], labels[~right]))
    loss = torch.stack(terms).sum()
    optimiser.zero_grad(set_to_none=True)
    with wrapped.execution.arithmetic():
        loss.backward()
    optimiser.step()
    return float(loss.detach())
