"""What is there of a run already, and whether it may be taken or gone on with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bitta.bench.experiment import Experiment, ModelConfig
from bitta.bench.leftovers import read_checkpoint, read_result
from bitta.bench.models import build_source, restricted, wanted_size
from bitta.bench.places import checkpoint_path, result_path
from bitta.bench.streams import StreamConfig, build_stream
from bitta.errors import InputError
from bitta.nn import weight_hash
from bitta.results import RunResult

Stale = Literal["refuse", "rerun", "keep"]
"""What becomes of results that other code has written."""
Origins = dict[tuple[StreamConfig, ModelConfig, int], dict[str, str]]
"""Hashes of data and weights; most runs of a sweep share them."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The files of one run."""

    result: RunResult | None
    checkpoint: Path | None
    """Of a run that was cut."""
    stale: bool
    """Other code has written the result or, where there is none, the checkpoint."""

    @classmethod
    def of(cls, experiment: Experiment, out: Path, *, code: str) -> "Standing":
        """Look; files of other settings are refused, and so are those that cannot be read."""
        path = result_path(experiment, out)
        result = read_result(path) if path.exists() else None
        if result is not None:
            _refuse_other(path, "result", experiment, result.experiment)
        written_by = [result.environment.get("code")] if result is not None else []
        checkpoint = checkpoint_path(experiment, out)
        if not checkpoint.exists() or written_by == [code]:
            return cls(result, None, written_by not in ([], [code]))
        identity = read_checkpoint(checkpoint).get("identity", {})
        _refuse_other(checkpoint, "checkpoint", experiment, identity.get("experiment"))
        if identity.get("code") == code:
            # Begun to replace a result of other code, if there is one: that was decided then.
            return cls(None, checkpoint, False)
        return cls(result, checkpoint, True)


def refuse_stale(stale: Sequence[str]) -> None:
    """Results of two versions of the code are not mixed unless someone says so."""
    if stale:
        others = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
        raise InputError(
            f"{stale[0]!r}{others} of these runs were made by other code than this; --rerun "
            "replaces them, --keep takes finished ones as they are."
        )


def check_origin(experiment: Experiment, result: RunResult, path: Path, known: Origins) -> None:
    """Refuse a result of other data or weights."""
    key = (experiment.stream, experiment.model, experiment.seed)
    origin = known[key] if key in known else known.setdefault(key, _origin(experiment))
    for part, found in origin.items():
        if result.environment.get(part) != found:
            raise InputError(
                f"{str(path)!r} is the result of other {part.replace('_', ' ')}; delete it, or "
                "choose another folder (--out)."
            )


def _origin(experiment: Experiment) -> dict[str, str]:
    model, card = build_source(experiment.model)
    stream = build_stream(experiment.stream, seed=experiment.seed, preprocessing=wanted_size(card))
    model = restricted(model, card, stream.domains[0].classes)
    return {"stream": stream.fingerprint, "source_weights": weight_hash(model)}


def _refuse_other(
    path: Path, what: str, experiment: Experiment, then: Mapping[str, Any] | None
) -> None:
    if then is None or not experiment.matches(then):
        raise InputError(
            f"{str(path)!r} is the {what} of other settings; delete it, give this run another "
            "name, or choose another folder (--out)."
        )
