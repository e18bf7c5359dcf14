"""What a run needs before its first batch: stream, model, annotators, and what comes beforehand."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bitta.bench.annotators import build_annotators
from bitta.bench.clean import Clean, build_clean
from bitta.bench.enhanced import OnBatch, fine_tune, trainable
from bitta.bench.experiment import Experiment
from bitta.bench.models import Restricted, build_source, check_fit, restricted, wanted_size
from bitta.bench.seconds import Clock
from bitta.bench.streams import build_stream
from bitta.bench.tunings import Tunings
from bitta.errors import InputError, SettingError
from bitta.feedback import FeedbackSource
from bitta.methods import METHODS, get_method
from bitta.nn import Precision, WrappedModel
from bitta.results import describe_environment
from bitta.seeding import derive_seed
from bitta.selection import Budget
from bitta.session import Session
from bitta.streams import Stream
from bitta.types import Prediction


@dataclass(frozen=True, slots=True)
class Prepared:
    """A stream, and a model that has been seen to fit it."""

    experiment: Experiment
    stream: Stream
    model: nn.Module
    n_classes: int
    clean: Clean | None
    """Where forgetting is measured, if it is."""

    @property
    def price(self) -> float:
        """Of one question, in verdicts."""
        return self.experiment.feedback.price(self.n_classes)

    def annotators(self, identity: Mapping[str, Any]) -> FeedbackSource:
        """Whoever answers; `identity` is what a log is known by."""
        return build_annotators(
            self.experiment.feedback,
            self.stream.truth,
            n_classes=self.n_classes,
            seed=self.experiment.seed,
            identity=identity,
        )

    def before_the_stream(
        self,
        identity: Mapping[str, Any],
        *,
        tunings: Tunings,
        on_batch: OnBatch,
        eager: bool,
        precision: Precision,
    ) -> dict[str, Any]:
        """Measure on clean images and fine-tune, if asked to; what a result should tell of it."""
        told: dict[str, Any] = {}
        enhanced = self.experiment.enhanced.n_samples != 0
        if self.clean is None and not enhanced:
            return told
        logits = self.experiment.model.logits or None
        wrapped = WrappedModel(self.model, logits=logits, eager=eager, precision=precision)
        with closing(wrapped):
            if self.clean is not None:
                told["clean"] = self.clean.accuracy(lambda inputs: _source_labels(wrapped, inputs))
            if enhanced:
                here = describe_environment(wrapped.device, identity["source_weights"])
                way = [*(here[part] for part in ("torch", "device", "threads")), eager, precision]
                told["enhanced"] = self._fine_tune(
                    wrapped, identity, way=way, tunings=tunings, on_batch=on_batch
                )
        return told

    def _fine_tune(
        self,
        wrapped: WrappedModel,
        identity: Mapping[str, Any],
        *,
        way: Sequence[Any],
        tunings: Tunings,
        on_batch: OnBatch,
    ) -> dict[str, Any]:
        """Whatever method follows: all that begin with the same model share it."""
        seed = derive_seed(self.experiment.seed, "enhanced")
        asked = self.experiment.enhanced.n_samples
        wanted = self._questions() if asked < 0 else asked
        if not wanted:
            raise SettingError(
                "[enhanced] asks about as many samples as a run would, and this one ends before "
                "its first question; give enhanced.n_samples, or a smaller stream.window."
            )
        annotators = self.experiment.feedback.prompt
        same = {
            **{part: identity[part] for part in ("stream", "source_weights", "code")},
            "model": asdict(self.experiment.model),
            "trained": _trained(wrapped.model),
            "enhanced": asdict(self.experiment.enhanced) | {"n_samples": wanted},
            "answers": [annotators.labels, *annotators.mistakes],
            "seed": seed,
            "way": way,
        }
        with tunings.tuning(same) as tuning:
            return fine_tune(
                wrapped,
                self.stream,
                build_annotators(
                    annotators, self.stream.truth, n_classes=self.n_classes, seed=seed
                ),
                self.experiment.enhanced,
                n_samples=min(wanted, len(self.stream.truth)),
                seed=seed,
                on_batch=on_batch,
                tuning=tuning,
            )

    def _questions(self) -> int:
        """How many a run would ask; where this one asks none, as many per batch as BiTTA does."""
        feedback, stream = self.experiment.feedback, self.experiment.stream
        own = get_method(self.experiment.method).n_queries
        each = feedback.n_queries if feedback.n_queries > 0 else own or METHODS["bitta"].n_queries
        budget = Budget(
            n_queries=each,
            every=feedback.every,
            total=feedback.total if feedback.total > 0 else None,
            price=self.price,
        )
        window = stream.window_size
        windowed = window > stream.batch_size
        steps = len(self.stream.truth) // window if windowed else len(self.stream)
        return budget.count_questions(n_steps=steps, max_per_step=max(window, stream.batch_size))


def prepare(experiment: Experiment, clock: Clock) -> Prepared:
    """Read, load, and see that everything fits."""
    model, card = build_source(experiment.model)
    size = wanted_size(card)
    stream = build_stream(experiment.stream, seed=experiment.seed, preprocessing=size)
    classes = stream.domains[0].classes
    model = restricted(model, card, classes)
    _refuse_strange_statistics(model, experiment)
    clean = build_clean(
        experiment.forgetting,
        experiment.stream,
        classes=classes,
        preprocessing=size,
        seed=experiment.seed,
    )
    with clock.making():
        few = next(stream.batches()).inputs[:2]
    logits = experiment.model.logits or None
    check_fit(model, few, stream.truth, logits=logits)
    with closing(WrappedModel(model, logits=logits)) as wrapped, torch.no_grad():
        n_classes = wrapped(wrapped.prepare_inputs(few), statistics="running").shape[1]
    return Prepared(experiment, stream, model, n_classes, clean)


def _trained(model: nn.Module) -> list[str]:
    chosen = {id(parameter) for parameter in trainable(model)}
    return [name for name, parameter in model.named_parameters() if id(parameter) in chosen]


def _refuse_strange_statistics(model: nn.Module, experiment: Experiment) -> None:
    path = asdict(experiment.settings).get("source_statistics")
    if path and isinstance(model, Restricted):
        raise InputError(
            f"{path!r} tells of all classes of the model in its order, and this stream has only "
            "some of them, or another order; leave out method.source_statistics, or use a method "
            "without."
        )


def labels_served(session: Session) -> Callable[[Tensor], Tensor]:
    """What a session would serve now, without any trace of the question."""
    wrapped = session.adapter.wrapped

    def labels(inputs: Tensor) -> Tensor:
        counted = wrapped.counts.values()
        served = session.adapter.predict(wrapped.prepare_inputs(inputs))
        wrapped.counts.set(counted)
        return _finite_labels(served)

    return labels


@torch.no_grad()
def _source_labels(wrapped: WrappedModel, inputs: Tensor) -> Tensor:
    logits = wrapped(wrapped.prepare_inputs(inputs), statistics="running")
    return _finite_labels(Prediction.from_logits(logits))


def _finite_labels(served: Prediction) -> Tensor:
    """-1, which is never right, where a model no longer gives numbers."""
    return served.labels.where(served.confidence.isfinite(), -1)
