"""A small experiment on arrays, shared by the tests of runner and command line."""

import json

import numpy as np
import torch

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
    """An .npz and a TOML beside it; returns the TOML's path."""
    chance = generator(3)
    content = {
        "inputs": torch.rand(n, 3, 8, 8, generator=chance).numpy(),
        "labels": torch.randint(0, 5, (n,), generator=chance).numpy(),
        "domains": np.array(["day"] * (n // 2) + ["night"] * (n - n // 2)),
    }
    np.savez(folder / "data.npz", **(content | arrays))
    path = folder / "trial.toml"
    path.write_text(TOML.format(path=folder / "data.npz"))
    return path


def without_times(path):
    """A result, less what differs from one machine or life to another."""
    result = json.loads(path.read_text())
    del result["peak_memory"], result["summary"]["seconds_per_batch"], result["extra"]["seconds"]
    del result["steps"]["seconds"]
    result["extra"].get("enhanced", {}).pop("seconds", None)
    return result


def broken_classifier():
    """A model whose outputs are no numbers."""
    model = toy_classifier()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    return model


def one_class_classifier():
    """A model that sees the third class everywhere."""
    model = toy_classifier()
    with torch.no_grad():
        list(model.parameters())[-1].copy_(torch.tensor([0.0, 0.0, 99.0, 0.0, 0.0]))
    return model
