"""Where a run keeps what it writes."""

from pathlib import Path

from bitta.bench.experiment import Experiment


def result_path(experiment: Experiment, out: Path) -> Path:
    """Where the result of an experiment goes."""
    return out / f"{experiment.name}-seed{experiment.seed}.json"


def checkpoint_path(experiment: Experiment, out: Path) -> Path:
    """Where an unfinished experiment waits."""
    return result_path(experiment, out).with_suffix(".safetensors")


def tuned_folder(out: Path) -> Path:
    """Where models lie that were fine-tuned beforehand, for every run that begins with one."""
    return out / "tuned"
