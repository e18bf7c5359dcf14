"""Tests of the generalisation suite: its streams, and eight of its cells."""

import pytest
import torch

from bitta.bench.experiment import Experiment
from bitta.bench.sweep_grid import read_jobs
from bitta.streams import embedded_pack
from reproduction import shifted_images
from reproduction.paths import EXPERIMENTS, ROOT
from small_experiment import run_experiment

CELLS = [
    (model, shift) for model in ("batch", "group", "none", "vit") for shift in ("clean", "rotation")
]


def domains():
    return {domain.name: domain for domain in shifted_images.digits()}


def test_shifted_domains_have_the_labels_and_the_number_of_the_pack():
    pack = embedded_pack("digits")
    for domain in domains().values():
        assert torch.equal(domain.labels, pack.labels)
        assert domain.images[torch.arange(2)].shape == (2, 1, 28, 28)
        assert domain.images[torch.arange(2)].dtype == torch.uint8


def test_clean_domain_is_the_pack_and_inversion_its_negative():
    pixels = embedded_pack("digits").images[:5, None]
    rows = torch.arange(5)
    assert torch.equal(domains()["clean"].images[rows], pixels)
    assert torch.equal(domains()["inversion"].images[rows], 255 - pixels)


def test_rotation_turns_by_45_degrees():
    """A line from the top to the centre then points to a corner; the centre stays."""
    image = torch.zeros(1, 1, 29, 29)
    image[..., :15, 14] = 1
    turned = shifted_images.rotate(image)[0, 0]
    assert turned[14, 14] > 0.5
    corners = torch.tensor([turned[5, 5], turned[5, 23]])
    assert corners.max() > 0.5
    assert turned[5, 14] < 0.1


def test_noise_is_the_same_in_every_run_and_has_its_deviation():
    images = torch.full((20, 1, 28, 28), 0.5)
    noise = shifted_images.add_noise(images) - 0.5
    assert torch.equal(noise, shifted_images.add_noise(images) - 0.5)
    assert noise.std().item() == pytest.approx(0.4, abs=0.01)


def test_suite_compares_three_methods_without_settings():
    jobs = read_jobs([EXPERIMENTS / "generalisation"])
    assert {job.experiment.method for job in jobs} == {"source", "bitta", "self_tuning"}
    for job in jobs:
        plain = Experiment.from_table(
            job.experiment.as_table() | {"method": {"name": job.experiment.method}}, name="plain"
        )
        assert job.experiment.settings == plain.settings


@pytest.mark.full
@pytest.mark.parametrize(("model", "shift"), CELLS)
def test_self_tuning_does_not_hurt_in_eight_cells(model, shift, tmp_path, monkeypatch):
    """Whole streams, one seed. 1.5 points are the bound of the whole suite."""
    monkeypatch.chdir(ROOT)
    accuracy = {}
    for method in ("source", "self_tuning"):
        table = {
            "stream": {
                "kind": "factory", "factory": "reproduction.shifted_images:digits",
                "domains": shift,
            },
            "model": {"weights": f"weights/digits-{model}.safetensors"},
            "method": {"name": method},
        }  # fmt: skip
        result = run_experiment(Experiment.from_table(table, name=method), out=tmp_path)
        accuracy[method] = result.accuracy
    assert accuracy["self_tuning"] > accuracy["source"] - 1.5
