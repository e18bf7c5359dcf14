"""Tests of forgetting, measured on clean images before and after the stream."""

import pytest
import torch

from bitta.bench.experiment import Experiment
from bitta.bench.runner import RunStopped
from bitta.bench.streams import ForgettingConfig, StreamConfig, build_clean_images
from bitta.errors import BittaError, InputError
from bitta.streams import embedded_pack
from small_experiment import run_experiment, without_times


def experiment(method="source", n_samples=100, **settings):
    return Experiment.from_table(
        {
            "stream": {
                "kind": "corruptions", "corruptions": "fog,contrast", "n_samples": 24,
                "batch_size": 8,
            },
            "model": {"weights": "embedded:cifar10-resnet8"},
            "method": {"name": method, **settings},
            "forgetting": {"n_samples": n_samples},
        },
        name="trial",
    )  # fmt: skip


def test_source_model_forgets_nothing(tmp_path):
    clean = run_experiment(experiment(), out=tmp_path).extra["clean"]
    assert clean["n_samples"] == 100
    assert clean["before"] == clean["after"] > 60


@pytest.mark.full
def test_diverged_model_forgets_and_the_measurement_changes_no_result(tmp_path):
    diverging = {"method": "bitta", "lr": 3.0}
    measured = run_experiment(experiment(**diverging), out=tmp_path / "measured")
    plain = run_experiment(experiment(**diverging, n_samples=0), out=tmp_path / "plain")
    clean = measured.extra["clean"]
    assert clean["before"] > 60 > clean["after"] + 20
    assert "clean" not in plain.extra
    for part in ("accuracy", "forwards", "backwards", "final_weights"):
        assert getattr(measured, part) == getattr(plain, part)


@pytest.mark.full
def test_accuracy_before_the_stream_survives_a_stop(tmp_path):
    with pytest.raises(RunStopped):
        run_experiment(experiment("tent"), out=tmp_path / "parts", should_stop=lambda: True)
    run_experiment(experiment("tent"), out=tmp_path / "parts", resume=True)
    run_experiment(experiment("tent"), out=tmp_path / "whole")
    one, two = (without_times(tmp_path / p / "trial-seed0.json") for p in ("whole", "parts"))
    assert one == two


def test_set_without_clean_images_is_refused(tmp_path):
    table = experiment().as_table()
    table["stream"] = {"kind": "digits"}
    table["model"] = {"weights": "embedded:digits-resnet8"}
    with pytest.raises(BittaError, match=r"'digits' .*; allowed: corruptions, cif"):
        run_experiment(Experiment.from_table(table, name="x"), out=tmp_path)


def build_clean(tmp_path, classes):
    pack = embedded_pack("cifar10")
    table = torch.cat([pack.labels[:40, None].to(torch.uint8), pack.images[:40].flatten(1)], 1)
    (tmp_path / "test_batch.bin").write_bytes(table.numpy().tobytes())
    stream = StreamConfig(kind="cifar10-c", path=str(tmp_path))
    return build_clean_images(
        ForgettingConfig(n_samples=30), stream, classes=classes, preprocessing={}, seed=0
    )


def test_clean_images_have_their_own_labels(tmp_path):
    """A predictor that looks up the label of each image has an accuracy of 100 %."""
    pack = embedded_pack("cifar10")
    known = {image.numpy().tobytes(): int(label)
             for image, label in zip(pack.images, pack.labels, strict=True)}  # fmt: skip

    def look_up(inputs):
        images = (inputs * 255).round().to(torch.uint8)
        return torch.tensor([known[image.numpy().tobytes()] for image in images])

    clean = build_clean(tmp_path, pack.classes)
    assert len(clean) == 30
    assert clean.accuracy(look_up) == 100
    assert clean.accuracy(lambda inputs: look_up(inputs) + 1) == 0


def test_labels_follow_the_classes_of_the_stream(tmp_path):
    classes = embedded_pack("cifar10").classes
    reverse = build_clean(tmp_path, classes[::-1])
    straight = build_clean(tmp_path, classes)
    assert torch.equal(reverse._domain.labels, 9 - straight._domain.labels)
    one = build_clean(tmp_path, classes[3:4])
    assert one.accuracy(lambda inputs: torch.zeros(len(inputs))) == 100
    with pytest.raises(InputError, match="classes"):
        build_clean(tmp_path, ["teapot"])


def test_path_of_embedded_clean_images_is_refused(tmp_path):
    with pytest.raises(BittaError, match=r"forgetting\.path is 'x'"):
        build_clean_images(
            ForgettingConfig(n_samples=1, path="x"),
            StreamConfig(kind="corruptions"),
            classes=(),
            preprocessing={},
            seed=0,
        )
