"""Everything that a run needs before its first batch: stream, model, annotators, preparation."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitta.bench.annotators import build_annotators
from bitta.bench.before_stream import (
    BeforeStream,
    OnPreparationBatch,
    PreparationContext,
    PreparationProgress,
)
from bitta.bench.checkpoint import RunClock
from bitta.bench.experiment import Experiment
from bitta.bench.models import (
    ClassSubset,
    check_fit,
    image_size_of,
    load_source_model,
    match_classes,
)
from bitta.bench.run_files import file_lock, read_preparation
from bitta.bench.streams import CleanImages, build_clean_images, build_stream
from bitta.errors import InputError
from bitta.feedback import FeedbackSource
from bitta.nn import Precision, WrappedModel
from bitta.results import describe_environment, table_hash
from bitta.session import Session
from bitta.statefile import check_writable
from bitta.streams import Stream
from bitta.types import Prediction


@dataclass(frozen=True, slots=True)
class PreparedModels:
    """Folder of models that were prepared before the stream. Runs in one folder share them."""

    folder: Path
    save_every_seconds: float
    on_wait: Callable[[], None]
    """Called while another process prepares the same model. It may raise an exception."""

    @contextmanager
    def open(self, identity: Mapping[str, Any]) -> Iterator[PreparationProgress]:
        """Lock the preparation with this identity and yield its progress so far."""
        check_writable(self.folder)
        path = self.folder / f"{table_hash(identity)[:16]}.safetensors"
        with file_lock(path, on_wait=self.on_wait):
            yield PreparationProgress(
                path,
                identity=identity,
                saved=read_preparation(path) if path.exists() else None,
                save_every_seconds=self.save_every_seconds,
            )


@dataclass(frozen=True, slots=True)
class RunSetup:
    """A stream and a model that fit each other."""

    experiment: Experiment
    stream: Stream
    model: nn.Module
    n_classes: int
    clean: CleanImages | None
    """Images on which forgetting is measured; None if it is not measured."""

    @property
    def price(self) -> float:
        """Cost of a question in verdicts."""
        return self.experiment.feedback.price(self.n_classes)

    def build_annotators(self, identity: Mapping[str, Any]) -> FeedbackSource:
        """Build the annotators. `identity` is stored in a log of their answers."""
        return build_annotators(
            self.experiment.feedback,
            self.stream.truth,
            rows=self.stream.data_set_rows,
            n_classes=self.n_classes,
            seed=self.experiment.seed,
            identity=identity,
        )

    def run_before_stream(
        self,
        identity: Mapping[str, Any],
        *,
        prepared_models: PreparedModels,
        on_batch: OnPreparationBatch,
        eager: bool,
        precision: Precision,
    ) -> dict[str, Any]:
        """Measure accuracy on clean images and prepare the model, if the experiment says so.

        Return values for the result.
        """
        values: dict[str, Any] = {}
        preparation = self.experiment.before_stream
        if self.clean is None and preparation is None:
            return values
        logits = self.experiment.model.logits or None
        wrapped = WrappedModel(self.model, logits=logits, eager=eager, precision=precision)
        with closing(wrapped):
            if self.clean is not None:
                values["clean"] = self.clean.accuracy(
                    lambda inputs: _predict_source_labels(wrapped, inputs)
                )
            if preparation is not None:
                context = PreparationContext(self.experiment, wrapped, self.stream, self.n_classes)
                full_identity = {
                    **_preparation_identity(preparation, context, identity),
                    "eager": eager,
                    "precision": precision,
                }
                with prepared_models.open(full_identity) as progress:
                    values["before_stream"] = _prepare(preparation, context, progress, on_batch)
        return values


def _preparation_identity(
    preparation: BeforeStream, context: PreparationContext, identity: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything that a prepared model depends on, except the execution path."""
    environment = describe_environment(context.wrapped.device, identity["source_weights"])
    return {
        **{part: identity[part] for part in ("stream", "source_weights", "numerics_version")},
        **{part: environment[part] for part in ("torch", "device", "threads")},
        "model": asdict(context.experiment.model),
        "seed": context.experiment.seed,
        "before_stream": {**asdict(preparation), **preparation.identity(context)},
    }


def _prepare(
    preparation: BeforeStream,
    context: PreparationContext,
    progress: PreparationProgress,
    on_batch: OnPreparationBatch,
) -> dict[str, Any]:
    model = context.wrapped.model
    if progress.result is not None:
        progress.restore_weights(model)
        return progress.result
    result = preparation.prepare(context, progress, on_batch)
    return progress.finish(model, result)


def set_up_run(experiment: Experiment, clock: RunClock) -> RunSetup:
    """Read the data, load the model, and check that everything fits."""
    model, card = load_source_model(experiment.model)
    size = image_size_of(card)
    stream = build_stream(experiment.stream, seed=experiment.seed, preprocessing=size)
    classes = stream.domains[0].classes
    model = match_classes(model, card, classes)
    _check_source_statistics(model, experiment)
    clean = build_clean_images(
        experiment.forgetting,
        experiment.stream,
        classes=classes,
        preprocessing=size,
        seed=experiment.seed,
    )
    with clock.making_images():
        inputs = next(stream.batches()).inputs[:2]
    logits = experiment.model.logits or None
    check_fit(model, inputs, stream.truth, logits=logits)
    with closing(WrappedModel(model, logits=logits)) as wrapped, torch.no_grad():
        n_classes = wrapped(wrapped.prepare_inputs(inputs), statistics="running").shape[1]
    return RunSetup(experiment, stream, model, n_classes, clean)


def _check_source_statistics(model: nn.Module, experiment: Experiment) -> None:
    path = asdict(experiment.settings).get("source_statistics")
    if path and isinstance(model, ClassSubset):
        raise InputError(
            f"{path!r} has statistics of all classes in the model's order, but this stream has "
            "fewer classes, or another order; leave out method.source_statistics, or use a method "
            "that does not need it."
        )


def make_label_predictor(session: Session) -> Callable[[Tensor], Tensor]:
    """Return a function that predicts the session's labels without changing the session."""
    wrapped = session.adapter.wrapped

    def predict(inputs: Tensor) -> Tensor:
        counts = wrapped.counts.values()
        prediction = session.adapter.predict(wrapped.prepare_inputs(inputs))
        wrapped.counts.set(counts)
        return _finite_labels(prediction)

    return predict


@torch.no_grad()
def _predict_source_labels(wrapped: WrappedModel, inputs: Tensor) -> Tensor:
    logits = wrapped(wrapped.prepare_inputs(inputs), statistics="running")
    return _finite_labels(Prediction.from_logits(logits))


def _finite_labels(prediction: Prediction) -> Tensor:
    """Return the labels. Outputs that are not finite get -1, which counts as wrong."""
    return prediction.labels.where(prediction.confidence.isfinite(), -1)
