"""Run an experiment to its result; killed at any moment, it goes on from its last checkpoint."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

from torch import Tensor

from bitta.bench.annotators import end_log
from bitta.bench.device import device_named
from bitta.bench.enhanced import OnBatch
from bitta.bench.experiment import Experiment
from bitta.bench.leftovers import read_checkpoint, read_result
from bitta.bench.lives import Life, Progress, save_life, saved_progress
from bitta.bench.places import checkpoint_path, result_path, tuned_folder
from bitta.bench.prefetch import Prefetch
from bitta.bench.prepared import Prepared, labels_served, prepare
from bitta.bench.seconds import Clock
from bitta.bench.tunings import Tunings
from bitta.errors import InputError
from bitta.feedback import FeedbackSource
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
"""Told after every batch: how many are done, of how many, and what happened."""


class Stopped(Exception):  # noqa: N818 (a wish, not an error)
    """A run was asked to stop; its checkpoint holds everything up to batch `done` of `total`."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__(f"stopped after batch {done} of {total}")


def run(
    experiment: Experiment,
    *,
    out: Path,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    checkpoint_seconds: float = 30.0,
    eager: bool = False,
    precision: Precision = "auto",
    on_tuning: OnBatch = lambda *_: None,
    on_wait: Callable[[], None] = lambda: None,
    on_start: Callable[[str], None] = lambda _: None,
    on_step: OnStep = lambda *_: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Stream, ask, learn, record; the result is written to `result_path` and returned.

    `resume` goes on from a checkpoint, and takes a result that is there already as it is; only
    `overwrite` replaces the result of other settings.
    `eager` and `precision` choose the path, which `on_start` is told before the first batch; they
    are no part of the experiment, and a run may go on from its checkpoint on another path.
    `should_stop` is asked after every batch; if it says so, the run is saved and raises `Stopped`.
    `on_tuning` is told of the batches that an experiment with [enhanced] learns from beforehand,
    `on_wait` while another process does that for it; what comes of it is kept in `tuned_folder`.
    """
    clock = Clock()
    place = device_named(device)
    path = result_path(experiment, out)
    earlier = read_result(path) if path.exists() and not overwrite else None
    if earlier is not None and not experiment.matches(earlier.experiment):
        raise _other(path, "settings")
    check_writable(out)
    checkpoint = checkpoint_path(experiment, out)
    prepared = prepare(experiment, clock)
    stream, model = prepared.stream, prepared.model.to(place)
    circumstances = describe_environment(place, weight_hash(model)) | {"stream": stream.fingerprint}
    if earlier is not None and resume:
        for part in ("stream", "source_weights"):
            if earlier.environment.get(part) != circumstances[part]:
                raise _other(path, part.replace("_", " "))
        return earlier
    identity = {"experiment": experiment.as_table()} | {
        part: circumstances[part] for part in ("stream", "source_weights")
    }
    circumstances["identity"] = table_hash(identity)
    identity["code"] = circumstances["code"]

    def stop_before_the_stream() -> None:
        if should_stop():
            raise Stopped(0, len(stream))

    def on_tuned(done: int, total: int, loss: float) -> None:
        on_tuning(done, total, loss)
        stop_before_the_stream()

    def wait() -> None:
        on_wait()
        stop_before_the_stream()

    session, progress = _begin(
        prepared,
        identity,
        checkpoint if resume else None,
        tunings=Tunings(tuned_folder(out), checkpoint_seconds, wait),
        on_tuned=on_tuned,
        eager=eager,
        precision=precision,
    )
    reset_peak_memory(place)
    prefetch = Prefetch(stream, place, start=len(progress.steps))
    life = Life(session, progress, prefetch, clock, lived=len(progress.steps))
    with session, closing(prefetch.batches()) as batches:
        on_start(str(session.execution))
        due = monotonic() + checkpoint_seconds
        watch = DeviceTimer(place)
        clock.start()
        for batch in batches:
            _step(session, batch, progress, watch)
            done = len(progress.steps)
            on_step(done, len(stream), progress.steps[-1])
            stopping = should_stop() and done < len(stream)
            if stopping or monotonic() >= due:
                save_life(checkpoint, identity, life)
                due = monotonic() + checkpoint_seconds
            if stopping:
                raise Stopped(done, len(stream))
        end_log(session.feedback_source)
        result = _result(prepared, life, circumstances)
    result.save(path)
    checkpoint.unlink(missing_ok=True)
    return result


def _other(path: Path, what: str) -> InputError:
    """A result that is there stays there, unless it is of this very run."""
    return InputError(
        f"{str(path)!r} is the result of other {what}; give this run a name of its own "
        "(--set name=...) or another folder (--out)."
    )


def _result(prepared: Prepared, life: Life, circumstances: Mapping[str, Any]) -> RunResult:
    experiment = prepared.experiment
    session, progress = life.session, life.progress
    wrapped = session.adapter.wrapped
    return RunResult(
        experiment=experiment.as_table(),
        protocol=_protocol(experiment, prepared.stream),
        environment=circumstances,
        steps=progress.steps,
        reliability=progress.reliability,
        forwards=wrapped.counts.forwards,
        backwards=wrapped.counts.backwards,
        peak_memory=life.peak_memory,
        final_weights=weight_hash(session.model),
        extra={
            "fans_out": wrapped.can_fan_out,
            "execution": life.execution,
            "seconds": asdict(life.seconds),
            "price": session.budget.price,
            **_around(prepared, life),
        },
        spreads=progress.histograms.entropies,
        policy_reliability=progress.policy_reliability,
    )


def _around(prepared: Prepared, life: Life) -> dict[str, Any]:
    """What was done and measured before and after the stream."""
    before = dict(life.progress.before)
    if prepared.clean is not None:
        after = prepared.clean.accuracy(labels_served(life.session))
        before["clean"] = asdict(Forgetting(len(prepared.clean), before["clean"], after))
    return before


def _protocol(experiment: Experiment, stream: Stream) -> str:
    window = experiment.stream.window_size
    return stream.protocol + (f", window {window}" if window else "")


def _step(session: Session, batch: Batch, progress: Progress, watch: DeviceTimer) -> None:
    if batch.reset:
        session.reset()
    watch.start()
    prediction, answers, losses = session.step(batch.inputs)
    seconds = watch.stop()
    # A model that no longer gives numbers is wrong, whatever the largest of them would be.
    correct = (prediction.labels.cpu() == batch.truth) & prediction.confidence.isfinite().cpu()
    progress.reliability = progress.reliability.add(prediction.confidence, correct)
    progress.policy_reliability = _judged_policy(progress, prediction, batch.truth)
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


def _judged_policy(progress: Progress, prediction: Prediction, truth: Tensor) -> Reliability:
    """By the policy's own first choice, which need not be what was served."""
    if prediction.policy is None:
        return progress.policy_reliability
    sure, choice = prediction.policy.cpu().max(-1)
    return progress.policy_reliability.add(sure, choice == truth)


def _begin(
    prepared: Prepared,
    identity: Mapping[str, Any],
    checkpoint: Path | None,
    *,
    tunings: Tunings,
    on_tuned: OnBatch,
    eager: bool,
    precision: Precision,
) -> tuple[Session, Progress]:
    experiment, feedback = prepared.experiment, prepared.experiment.feedback
    # A log of answers outlives the code that asked.
    source = prepared.annotators({part: identity[part] for part in identity if part != "code"})
    if checkpoint is not None and checkpoint.exists():
        return _continue(checkpoint, identity, prepared, source, eager=eager, precision=precision)
    start = partial(
        Session,
        prepared.model,
        experiment.method,
        n_queries=None if feedback.n_queries < 0 else feedback.n_queries,
        every=feedback.every,
        total=None if feedback.total < 0 else feedback.total,
        price=prepared.price,
        window=experiment.stream.window_size,
        feedback=source,
        seed=experiment.seed,
        logits=experiment.model.logits or None,
        eager=eager,
        precision=precision,
        **asdict(experiment.settings),
    )
    if experiment.enhanced.n_samples:
        # What a method refuses about the model it refuses before the work, not after it.
        start(copy=True).close()
    before = prepared.before_the_stream(
        identity, tunings=tunings, on_batch=on_tuned, eager=eager, precision=precision
    )
    return start(), Progress(before=before)


def _continue(
    checkpoint: Path,
    identity: Mapping[str, Any],
    prepared: Prepared,
    source: FeedbackSource,
    *,
    eager: bool,
    precision: Precision,
) -> tuple[Session, Progress]:
    state = read_checkpoint(checkpoint)
    saved = state.get("identity", {})
    other = [part for part, value in identity.items() if saved.get(part) != value]
    if other:
        raise InputError(
            f"{str(checkpoint)!r} was written with another {' and '.join(other)}; run with the "
            "same, or without --resume to start over."
        )
    session = Session.from_state(
        state["session"], prepared.model, feedback=source, eager=eager, precision=precision
    )
    return session, saved_progress(state)
