"""Run an experiment to its result; killed at any moment, it goes on from its last checkpoint."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from bitta.bench.device import device_named
from bitta.bench.experiment import Experiment
from bitta.bench.models import build_source, check_fit, restricted, wanted_size
from bitta.bench.streams import build_stream
from bitta.errors import InputError
from bitta.feedback import Simulated
from bitta.metrics import Reliability, Stopwatch, peak_memory, reset_peak_memory
from bitta.nn import weight_hash
from bitta.results import RunResult, StepRecord, environment
from bitta.session import Session
from bitta.statefile import check_writable, load_state, save_state
from bitta.streams import Stream
from bitta.types import Batch

OnStep = Callable[[int, int, StepRecord], None]
"""Told after every batch: how many are done, of how many, and what happened."""


class Stopped(Exception):  # noqa: N818 (a wish, not an error)
    """A run was asked to stop; its checkpoint holds everything up to batch `done` of `total`."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__(f"stopped after batch {done} of {total}")


@dataclass(slots=True)
class _Progress:
    steps: list[StepRecord] = field(default_factory=list)
    reliability: Reliability = field(default_factory=Reliability)
    peak_memory: int = 0
    """Of the lives before this one."""


def result_path(experiment: Experiment, out: Path) -> Path:
    """Where the result of an experiment goes."""
    return out / f"{experiment.name}-seed{experiment.seed}.json"


def checkpoint_path(experiment: Experiment, out: Path) -> Path:
    """Where an unfinished experiment waits."""
    return result_path(experiment, out).with_suffix(".safetensors")


def run(
    experiment: Experiment,
    *,
    out: Path,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    checkpoint_seconds: float = 30.0,
    on_step: OnStep = lambda *_: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Stream, ask, learn, record; the result is written to `result_path` and returned.

    `resume` goes on from a checkpoint, and takes a result that is there already as it is; only
    `overwrite` replaces the result of other settings.
    `should_stop` is asked after every batch; if it says so, the run is saved and raises `Stopped`.
    """
    place = device_named(device)
    path = result_path(experiment, out)
    earlier = RunResult.load(path) if path.exists() and not overwrite else None
    _refuse_other(earlier, path, "settings", experiment.as_table(), "experiment")
    check_writable(out)
    checkpoint = checkpoint_path(experiment, out)
    stream, model = _prepare(experiment)
    model.to(place)
    circumstances = environment(place, weight_hash(model)) | {"stream": stream.fingerprint}
    if earlier is not None and resume:
        for part in ("stream", "source_weights"):
            _refuse_other(earlier, path, part.replace("_", " "), circumstances[part], part)
        return earlier
    identity = {"experiment": experiment.as_table()} | {
        part: circumstances[part] for part in ("stream", "source_weights")
    }
    session, progress = _begin(experiment, stream, model, identity, checkpoint if resume else None)
    reset_peak_memory(place)
    with session:
        due = monotonic() + checkpoint_seconds
        watch = Stopwatch(place)
        for batch in stream.batches(len(progress.steps)):
            _step(session, batch, progress, watch)
            done = len(progress.steps)
            on_step(done, len(stream), progress.steps[-1])
            stopping = should_stop() and done < len(stream)
            if stopping or monotonic() >= due:
                _save(checkpoint, identity, session, progress)
                due = monotonic() + checkpoint_seconds
            if stopping:
                raise Stopped(done, len(stream))
        result = _result(experiment, stream, session, progress, circumstances)
    result.save(path)
    checkpoint.unlink(missing_ok=True)
    return result


def _refuse_other(earlier: RunResult | None, path: Path, what: str, now: object, part: str) -> None:
    """A result that is there stays there, unless it is of this very run."""
    if earlier is None:
        return
    then = earlier.experiment if part == "experiment" else earlier.environment.get(part)
    if then != now:
        raise InputError(
            f"{str(path)!r} is the result of other {what}; give this run a name of its own "
            "(--set name=...) or another folder (--out)."
        )


def _prepare(experiment: Experiment) -> tuple[Stream, nn.Module]:
    """The stream, and a model that has been seen to fit it."""
    model, card = build_source(experiment.model)
    stream = build_stream(experiment.stream, seed=experiment.seed, preprocessing=wanted_size(card))
    model = restricted(model, card, stream.domains[0].classes)
    check_fit(model, stream, logits=experiment.model.logits or None)
    return stream, model


def _result(
    experiment: Experiment,
    stream: Stream,
    session: Session,
    progress: _Progress,
    circumstances: Mapping[str, Any],
) -> RunResult:
    network = session.adapter.network
    return RunResult(
        experiment=experiment.as_table(),
        protocol=_protocol(experiment, stream),
        environment=circumstances,
        steps=progress.steps,
        reliability=progress.reliability,
        forwards=network.counts.forwards,
        backwards=network.counts.backwards,
        peak_memory=max(progress.peak_memory, peak_memory(network.device)),
        final_weights=weight_hash(session.model),
        extra={"fans_out": network.fans_out},
    )


def _protocol(experiment: Experiment, stream: Stream) -> str:
    window = experiment.stream.window_size
    return stream.protocol + (f", window {window}" if window else "")


def _save(
    checkpoint: Path, identity: Mapping[str, Any], session: Session, progress: _Progress
) -> None:
    peak = max(progress.peak_memory, peak_memory(session.adapter.network.device))
    save_state(
        checkpoint,
        {
            "identity": dict(identity),
            "session": session.state_dict(),
            "steps": _packed(progress.steps),
            "reliability": asdict(progress.reliability),
            "peak_memory": peak,
        },
    )


def _packed(steps: Sequence[StepRecord]) -> Tensor:
    """As bytes: there may be more of them than the header of a state file holds."""
    text = json.dumps([asdict(step) for step in steps])
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _step(session: Session, batch: Batch, progress: _Progress, watch: Stopwatch) -> None:
    if batch.reset:
        session.reset()
    watch.start()
    prediction, answers, losses = session.step(batch.inputs)
    seconds = watch.stop()
    # A model that no longer gives numbers is wrong, whatever the largest of them would be.
    correct = (prediction.labels.cpu() == batch.truth) & prediction.confidence.isfinite().cpu()
    progress.reliability = progress.reliability.add(prediction.confidence, correct)
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
        )
    )


def _begin(
    experiment: Experiment,
    stream: Stream,
    model: nn.Module,
    identity: Mapping[str, Any],
    checkpoint: Path | None,
) -> tuple[Session, _Progress]:
    feedback = experiment.feedback
    annotator = Simulated(
        stream.truth,
        flip=feedback.flip,
        delay=feedback.delay,
        answer_every=feedback.answer_every,
        seed=experiment.seed,
    )
    if checkpoint is not None and checkpoint.exists():
        return _continue(checkpoint, identity, model, annotator)
    session = Session(
        model,
        experiment.method,
        n_queries=None if feedback.n_queries < 0 else feedback.n_queries,
        every=feedback.every,
        total=None if feedback.total < 0 else feedback.total,
        window=experiment.stream.window_size,
        selection=feedback.selection,
        feedback=annotator,
        seed=experiment.seed,
        logits=experiment.model.logits or None,
        **asdict(experiment.settings),
    )
    return session, _Progress()


def _continue(
    checkpoint: Path, identity: Mapping[str, Any], model: nn.Module, annotator: Simulated
) -> tuple[Session, _Progress]:
    state = load_state(checkpoint)
    saved = state.get("identity", {})
    other = [part for part, value in identity.items() if saved.get(part) != value]
    if other:
        raise InputError(
            f"{str(checkpoint)!r} was written with another {' and '.join(other)}; run with the "
            "same, or without --resume to start over."
        )
    session = Session.from_state(state["session"], model, feedback=annotator)
    steps = [StepRecord(**step) for step in json.loads(bytes(state["steps"].tolist()))]
    return session, _Progress(steps, Reliability(**state["reliability"]), state["peak_memory"])
