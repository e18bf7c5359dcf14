"""Run an experiment to its result. A run that was killed continues from its last checkpoint."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

from torch import Tensor

from bitta.bench.annotators import close_feedback_log
from bitta.bench.before_stream import OnPreparationBatch
from bitta.bench.checkpoint import (
    ActiveRun,
    RunClock,
    RunProgress,
    continue_from_checkpoint,
    save_checkpoint,
)
from bitta.bench.experiment import Experiment
from bitta.bench.models import device_named
from bitta.bench.prefetch import Prefetch
from bitta.bench.run_files import ORIGIN_DIFFERENCES, checkpoint_path, read_result, result_path
from bitta.bench.run_setup import PreparedModels, RunSetup, make_label_predictor, set_up_run
from bitta.errors import InputError
from bitta.metrics import (
    Agreement,
    DeviceTimer,
    Forgetting,
    Reliability,
    brier_sum,
    confidence_sum,
    reset_peak_memory,
)
from bitta.nn import Precision, weight_hash
from bitta.results import RunResult, StepRecord, describe_environment, table_hash
from bitta.session import Session
from bitta.statefile import check_writable
from bitta.streams import Stream
from bitta.types import Batch, Prediction

OnStep = Callable[[int, int, StepRecord], None]
"""Called after every batch: batches done, total number of batches, record of the batch."""
_PREPARED_MODELS = "before-stream"
"""Subfolder of prepared models."""


class RunStopped(Exception):  # noqa: N818 (requested, not an error)
    """Raised when a run stops on request. Its checkpoint holds batches 1 to `done` of `total`."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__(f"stopped after batch {done} of {total}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run that are not part of the experiment."""

    out: Path
    """Folder of the result."""
    resume: bool = False
    """Continue from a checkpoint, and accept an existing result."""
    overwrite: bool = False
    """Replace an existing result, also one with other settings."""
    device: str = "cpu"
    checkpoint_seconds: float = 30.0
    """Time between two checkpoints."""
    eager: bool = False
    """Use the eager execution path, without CUDA graphs."""
    precision: Precision = "auto"
    """Precision of convolutions and matrix products. It may change when a run is resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCallbacks:
    """Functions that a run calls. Each may raise an exception to end the run."""

    on_preparation: OnPreparationBatch = lambda *_: None
    """Called after every batch of a preparation in [before_stream]."""
    on_wait: Callable[[], None] = lambda: None
    """Called while another process prepares the same model."""
    on_start: Callable[[str], None] = lambda _: None
    """Called with the execution path before the first batch."""
    on_step: OnStep = lambda *_: None
    should_stop: Callable[[], bool] = lambda: False
    """Called after every batch. If it returns True, the run is saved and raises `RunStopped`."""


def run(
    experiment: Experiment, options: RunOptions, callbacks: RunCallbacks | None = None
) -> RunResult:
    """Run the experiment, write its result to `result_path`, and return the result."""
    callbacks = callbacks or RunCallbacks()
    clock = RunClock()
    device = device_named(options.device)
    path = result_path(experiment, options.out)
    earlier = read_result(path) if path.exists() and not options.overwrite else None
    if earlier is not None and not experiment.matches(earlier.experiment):
        raise _other_result_error(path, "other settings")
    check_writable(options.out)
    checkpoint = checkpoint_path(experiment, options.out)
    setup = set_up_run(experiment, clock)
    stream, model = setup.stream, setup.model.to(device)
    environment = describe_environment(device, weight_hash(model)) | {"stream": stream.fingerprint}
    if earlier is not None and options.resume:
        for part, other in ORIGIN_DIFFERENCES.items():
            if earlier.environment.get(part) != environment[part]:
                raise _other_result_error(path, other)
        return earlier
    identity = {"experiment": experiment.as_table()} | {
        part: environment[part] for part in ORIGIN_DIFFERENCES
    }
    environment["identity"] = table_hash(identity)
    identity["numerics_version"] = environment["numerics_version"]
    session, progress = _start_or_resume(setup, identity, options, callbacks)
    reset_peak_memory(device)
    batches = Prefetch(stream, device, start=len(progress.steps))
    active = ActiveRun(session, progress, batches, clock, n_earlier_steps=len(progress.steps))
    with session:
        callbacks.on_start(str(session.execution))
        _run_stream(
            active, len(stream), partial(save_checkpoint, checkpoint, identity), options, callbacks
        )
        close_feedback_log(session.feedback_source)
        result = _make_result(setup, active, environment)
    result.save(path)
    checkpoint.unlink(missing_ok=True)
    return result


def _other_result_error(path: Path, difference: str) -> InputError:
    return InputError(
        f"{str(path)!r} was made with {difference}; give this run another name "
        "(--set name=...) or another folder (--out)."
    )


def _run_stream(
    active: ActiveRun,
    n_batches: int,
    save: Callable[[ActiveRun], None],
    options: RunOptions,
    callbacks: RunCallbacks,
) -> None:
    """Predict, ask and learn, batch after batch. Save a checkpoint when it is due."""
    session, progress = active.session, active.progress
    with closing(active.batches.batches()) as batches:
        next_save = monotonic() + options.checkpoint_seconds
        timer = DeviceTimer(session.adapter.wrapped.device)
        active.clock.end_start_up()
        for batch in batches:
            _run_step(session, batch, progress, timer)
            n_done = len(progress.steps)
            callbacks.on_step(n_done, n_batches, progress.steps[-1])
            is_stopping = callbacks.should_stop() and n_done < n_batches
            if is_stopping or monotonic() >= next_save:
                save(active)
                next_save = monotonic() + options.checkpoint_seconds
            if is_stopping:
                raise RunStopped(n_done, n_batches)


def _make_result(setup: RunSetup, active: ActiveRun, environment: Mapping[str, Any]) -> RunResult:
    session, progress = active.session, active.progress
    wrapped = session.adapter.wrapped
    return RunResult(
        experiment=setup.experiment.as_table(),
        protocol=_describe_protocol(setup.experiment, setup.stream),
        environment=environment,
        steps=progress.steps,
        reliability=progress.reliability,
        forwards=wrapped.counts.forwards,
        backwards=wrapped.counts.backwards,
        peak_memory=active.peak_memory,
        final_weights=weight_hash(session.model),
        extra={
            "fans_out": wrapped.can_fan_out,
            "execution": active.execution,
            "seconds": asdict(active.seconds),
            "price": session.budget.price,
            **({} if session.benefit is None else {"benefit": asdict(session.benefit)}),
            **_values_before_and_after_stream(setup, active),
        },
        spreads=progress.histograms.entropies,
        policy_reliability=progress.policy_reliability,
    )


def _values_before_and_after_stream(setup: RunSetup, active: ActiveRun) -> dict[str, Any]:
    """Return the values measured before the stream, and the accuracy on clean images after it."""
    values = dict(active.progress.before_stream)
    if setup.clean is not None:
        after = setup.clean.accuracy(make_label_predictor(active.session))
        values["clean"] = asdict(Forgetting(len(setup.clean), values["clean"], after))
    return values


def _describe_protocol(experiment: Experiment, stream: Stream) -> str:
    window = experiment.stream.window_size
    return stream.protocol + (f", window {window}" if window else "")


def _run_step(session: Session, batch: Batch, progress: RunProgress, timer: DeviceTimer) -> None:
    """Run one step of the session and record its outcome."""
    if batch.reset:
        session.reset()
    timer.start()
    prediction, answers, losses = session.step(batch.inputs)
    seconds = timer.stop()
    # Outputs that are not finite count as wrong, whatever label they have.
    correct = (prediction.labels.cpu() == batch.truth) & prediction.confidence.isfinite().cpu()
    progress.reliability = progress.reliability.add(prediction.confidence, correct)
    progress.policy_reliability = _add_policy(progress.policy_reliability, prediction, batch.truth)
    progress.histograms.add(
        batch.domain, prediction.labels, batch.truth, n_classes=prediction.probs.shape[-1]
    )
    policy = prediction.policy
    agreement = Agreement.from_batch(prediction.labels, correct, policy)
    progress.steps.append(
        StepRecord(
            domain=batch.domain,
            n=len(correct),
            n_correct=int(correct.sum()),
            n_asked=len(prediction.queries),
            n_answered=len(answers),
            n_answered_correct=sum(answer.correct for answer in answers),
            losses={n: v if isfinite(v) else None for n, v in losses.mean().items()},
            seconds=seconds,
            brier=brier_sum(prediction.probs, batch.truth),
            n_measured=agreement.n_measured,
            n_agreeing=agreement.n_agreeing,
            n_agreeing_correct=agreement.n_agreeing_correct,
            confidence=confidence_sum(prediction.confidence),
            policy_confidence=None if policy is None else confidence_sum(policy.amax(-1)),
        )
    )


def _add_policy(reliability: Reliability, prediction: Prediction, truth: Tensor) -> Reliability:
    """Count the most probable label of the policy, which may differ from the served label."""
    if prediction.policy is None:
        return reliability
    confidence, label = prediction.policy.cpu().max(-1)
    return reliability.add(confidence, label == truth)


def _start_or_resume(
    setup: RunSetup, identity: Mapping[str, Any], options: RunOptions, callbacks: RunCallbacks
) -> tuple[Session, RunProgress]:
    """Return a session, new or from the checkpoint, and the progress so far."""
    experiment, feedback = setup.experiment, setup.experiment.feedback
    # A log of answers stays valid when the numerics version changes.
    feedback_source = setup.build_annotators(
        {part: identity[part] for part in identity if part != "numerics_version"}
    )
    checkpoint = checkpoint_path(experiment, options.out)
    if options.resume and checkpoint.exists():
        return continue_from_checkpoint(
            checkpoint,
            identity,
            setup.model,
            feedback=feedback_source,
            eager=options.eager,
            precision=options.precision,
        )
    start = partial(
        Session,
        setup.model,
        experiment.method,
        n_queries=None if feedback.n_queries < 0 else feedback.n_queries,
        every=feedback.every,
        total=None if feedback.total < 0 else feedback.total,
        price=setup.price,
        window=experiment.stream.window_size,
        feedback=feedback_source,
        seed=experiment.seed,
        logits=experiment.model.logits or None,
        eager=options.eager,
        precision=options.precision,
        **asdict(experiment.settings),
    )
    if experiment.before_stream is not None:
        # Raise errors of the method about this model before the preparation, not after it.
        start(copy=True).close()
    values = _run_before_stream(setup, identity, options, callbacks)
    return start(), RunProgress(before_stream=values)


def _run_before_stream(
    setup: RunSetup, identity: Mapping[str, Any], options: RunOptions, callbacks: RunCallbacks
) -> dict[str, Any]:
    """Measure and prepare before the first batch. Return values for the result."""

    def stop_if_requested() -> None:
        if callbacks.should_stop():
            raise RunStopped(0, len(setup.stream))

    def on_batch(done: int, total: int, loss: float) -> None:
        callbacks.on_preparation(done, total, loss)
        stop_if_requested()

    def on_wait() -> None:
        callbacks.on_wait()
        stop_if_requested()

    return setup.run_before_stream(
        identity,
        prepared_models=PreparedModels(
            options.out / _PREPARED_MODELS, options.checkpoint_seconds, on_wait
        ),
        on_batch=on_batch,
        eager=options.eager,
        precision=options.precision,
    )
