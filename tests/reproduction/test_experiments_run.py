"""Tests that run experiments on small trees and models in place of data and weights."""

import pytest
import torch

from bitta.bench.sweep_grid import read_jobs
from bitta.methods import METHODS
from bitta.models import ModelCard, build_model, save_model
from bitta.nn import WrappedModel
from bitta.source_statistics import SourceStatistics
from bitta.streams import CIFAR10_CLASSES, CIFAR100_CLASSES, imagenet_wnids
from reproduction.paths import EXPERIMENTS as EXPERIMENT_FOLDER
from small_experiment import run_experiment
from small_trees import MAKERS

pytestmark = pytest.mark.full

FOLDERS = sorted(EXPERIMENT_FOLDER.iterdir())
RESIDUAL = "resnet8", {"widths": (4, 8, 8)}
TRANSFORMER = "vit_small", {"width": 24, "depth": 1, "mlp_width": 24}
TINY = ("n01443537", "n01629819", *(f"n{number}" for number in range(198)))
MODELS = {
    "tiny-imagenet-resnet18.safetensors": (RESIDUAL, TINY),
    "imagenet-resnet18.safetensors": (RESIDUAL, tuple(imagenet_wnids())),
    "domainnet126-real-resnet18.safetensors": (RESIDUAL, ()),
    "owttt-cifar10.safetensors": (RESIDUAL, CIFAR10_CLASSES),
    "owttt-cifar100.safetensors": (RESIDUAL, CIFAR100_CLASSES),
    "cifar10-vit.safetensors": (TRANSFORMER, CIFAR10_CLASSES),
}
"""Small models for images of 32 pixels, with their classes, by the name of the real weights."""
EXPERIMENTS = {
    f"{folder.name}/{job.experiment.name}": job.experiment
    for folder in FOLDERS
    for job in read_jobs([folder])
    if job.experiment.seed == 0
}
JOBS = {name: job for name, job in EXPERIMENTS.items() if job.model.weights in MODELS}


@pytest.fixture(scope="module")
def data_and_models(tmp_path_factory):
    """Folder with all small models and small data sets."""
    folder = tmp_path_factory.mktemp("small")
    torch.manual_seed(0)
    for name, ((architecture, arguments), classes) in MODELS.items():
        of_set = {"n_classes": len(classes) or 126, "mean": (0.5,) * 3, "std": (0.25,) * 3}
        card = ModelCard(
            architecture=architecture,
            arguments=arguments | of_set,
            classes=classes,
            input_shape=(3, 32, 32),
        )
        model = build_model(architecture, **arguments, **of_set).eval()
        save_model(folder / name, model, card)
        if name.startswith("owttt"):
            seen = SourceStatistics.compute(WrappedModel(model), [torch.rand(64, 3, 32, 32)])
            seen.save(folder / name.replace(".", ".statistics."))
    for kind in {experiment.stream.kind for experiment in JOBS.values()}:
        name, make = MAKERS[kind]
        make(folder / "data" / name, **({"n": 8} if name.startswith("cifar") else {}))
    return folder


@pytest.mark.parametrize("name", JOBS)
def test_experiment_runs_on_small_data(name, data_and_models, tmp_path, monkeypatch):
    monkeypatch.chdir(data_and_models)
    monkeypatch.setenv("BITTA_DATA", str(data_and_models / "data"))
    experiment = JOBS[name]
    result = run_experiment(experiment, out=tmp_path)
    assert result.first_nan_batch is None
    asked = experiment.feedback.n_queries
    asks = METHODS[experiment.method].n_queries if asked < 0 else asked
    assert (result.total("n_asked") > 0) == (asks > 0)
    assert result.total("n_asked") == result.total("n_answered")
