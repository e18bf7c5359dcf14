"""A small experiment on arrays, shared by tests of the runner and the command line."""

import json
from dataclasses import dataclass, fields

import numpy as np
import torch

from bitta.bench.before_stream import BeforeStream
from bitta.bench.runner import RunCallbacks, RunOptions, run
from bitta.seeding import generator
from bitta.testing import toy_classifier

TOML = """
[stream]
kind = "arrays"
path = "{path}"
batch_size = 8

[model]
factory = "bitta.testing:toy_classifier"

[method]
name = "bitta"
restore = 0.05

[feedback]
n_queries = 2
flip = 0.2
delay = 1
"""


def write_experiment(folder, *, n=100, **arrays):
    """Write an .npz file and an experiment beside it. Return the path of the experiment."""
    random = generator(3)
    content = {
        "inputs": torch.rand(n, 3, 8, 8, generator=random).numpy(),
        "labels": torch.randint(0, 5, (n,), generator=random).numpy(),
        "domains": np.array(["day"] * (n // 2) + ["night"] * (n - n // 2)),
    }
    np.savez(folder / "data.npz", **(content | arrays))
    path = folder / "trial.toml"
    path.write_text(TOML.format(path=folder / "data.npz"))
    return path


@dataclass(frozen=True, kw_only=True)
class AddNoise(BeforeStream):
    """Preparation that adds noise to all parameters, in a number of batches."""

    n_batches: int = 4
    """Number of batches."""
    scale: float = 0.01
    """Standard deviation of the noise."""

    def identity(self, context):
        """Return the kind of answers, as an example of a dependency."""
        return {"labels": context.experiment.feedback.labels}

    def prepare(self, context, progress, on_batch):
        """Add noise, and save after an interruption."""
        model = context.wrapped.model
        progress.restore_weights(model)
        for number in range(progress.state.get("n_done", 0), self.n_batches):
            for index, parameter in enumerate(model.parameters()):
                random = generator(context.experiment.seed, "noise", number, index)
                noise = torch.randn(parameter.shape, generator=random)
                parameter.data.add_(noise, alpha=self.scale)
            try:
                on_batch(number + 1, self.n_batches, float(number))
            except BaseException:
                progress.save(model, {"n_done": number + 1})
                raise
            if progress.is_save_due:
                progress.save(model, {"n_done": number + 1})
        return {"n_batches": self.n_batches}


def run_experiment(experiment, **given):
    """Run an experiment with options and callbacks given by keyword."""
    names = {field.name for field in fields(RunOptions)}
    options = RunOptions(**{name: given[name] for name in given.keys() & names})
    callbacks = RunCallbacks(**{name: given[name] for name in given.keys() - names})
    return run(experiment, options, callbacks)


def without_times(path):
    """Read a result without the values that differ between machines and processes."""
    result = json.loads(path.read_text())
    del result["peak_memory"], result["summary"]["seconds_per_batch"], result["extra"]["seconds"]
    del result["steps"]["seconds"]
    result["extra"].get("before_stream", {}).pop("seconds", None)
    return result


def broken_classifier():
    """Return a model whose outputs are not finite."""
    model = toy_classifier()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    return model


def one_class_classifier():
    """Return a model that always predicts the third class."""
    model = toy_classifier()
    with torch.no_grad():
        list(model.parameters())[-1].copy_(torch.tensor([0.0, 0.0, 99.0, 0.0, 0.0]))
    return model
