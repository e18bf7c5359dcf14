"""Tests of streams, packs, coloured digits and .npz files."""

import numpy as np
import pytest
import torch

from bitta.errors import InputError, SettingError
from bitta.streams import (
    Domain,
    Stream,
    coloured_digits,
    embedded_pack,
    read_arrays,
)


def domain(name, n, first=0):
    labels = torch.arange(first, first + n)
    return Domain(name, labels.to(torch.uint8).view(-1, 1, 1, 1).expand(n, 3, 2, 2), labels)


def test_batches_do_not_cross_domains():
    stream = Stream([domain("a", 5), domain("b", 3, first=5)], batch_size=2)
    batches = list(stream.batches())
    assert [(b.domain, len(b.truth)) for b in batches] == [
        ("a", 2), ("a", 2), ("a", 1), ("b", 2), ("b", 1),
    ]  # fmt: skip
    assert len(stream) == 5
    assert torch.equal(torch.cat([b.truth for b in batches]), stream.truth)
    assert sorted(stream.truth.tolist()) == list(range(8))
    for batch in batches:
        assert torch.allclose(batch.inputs[:, 0, 0, 0] * 255, batch.truth.float())


def test_stream_can_start_at_any_batch():
    stream = Stream([domain("a", 7)], batch_size=2)
    whole = [b.truth.tolist() for b in stream.batches()]
    assert [b.truth.tolist() for b in stream.batches(2)] == whole[2:]


def test_order_depends_on_the_seed():
    orders = [Stream([domain("a", 50)], seed=seed).truth.tolist() for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_protocol_names_samples_order_reset_batch_and_seed():
    protocol = Stream([domain("a", 5), domain("b", 3)], batch_size=2, seed=7).protocol
    assert protocol == ("8 samples, continual a > b, shuffled within, no reset, batch 2, seed 7")


def test_invalid_stream_is_refused():
    with pytest.raises(InputError, match="2 images and 3 labels"):
        Domain("a", torch.zeros(2, 3, 2, 2), torch.zeros(3))
    with pytest.raises(InputError, match="no sample"):
        Stream([])
    with pytest.raises(SettingError, match="batch_size is 0"):
        Stream([domain("a", 2)], batch_size=0)


def test_embedded_packs_have_their_shapes_and_classes():
    digits, cifar = embedded_pack("digits"), embedded_pack("cifar10")
    assert digits.images.shape == (6000, 28, 28)
    assert cifar.images.shape == (2000, 3, 32, 32)
    assert set(digits.labels.tolist()) == set(cifar.labels.tolist()) == set(range(10))
    assert "MNIST" in digits.source
    assert "Krizhevsky" in cifar.source
    assert digits.terms
    assert cifar.terms


def test_colour_matches_the_noisy_label_at_the_rate_of_the_domain():
    pack = embedded_pack("digits")
    images, clean, noisy = coloured_digits(pack.images, pack.labels, colour_flip=0.9, seed=0)
    assert torch.equal(clean, (pack.labels >= 5).long())
    assert (noisy != clean).float().mean().item() == pytest.approx(0.25, abs=0.02)
    green = images[:, 1].flatten(1).any(1).long()
    assert (green != noisy).float().mean().item() == pytest.approx(0.9, abs=0.02)
    assert not images[:, 2].any()
    assert torch.equal(images.amax(1), pack.images)


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_npz_gives_pictures_and_domains(tmp_path):
    path = save(
        tmp_path / "x.npz",
        inputs=np.arange(4 * 5 * 6 * 3, dtype=np.uint8).reshape(4, 5, 6, 3),
        labels=np.array([0, 1, 2, 0]),
        domains=np.array(["fog", "rain", "fog", "rain"]),
    )
    fog, rain = read_arrays(path)
    assert (fog.name, rain.name) == ("fog", "rain")
    assert fog.images.shape == (2, 3, 5, 6)
    assert rain.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.zeros(2, int)}, "no array 'inputs'"),
        ({"inputs": np.zeros((2, 3)), "labels": np.zeros(2)}, "whole numbers"),
        ({"inputs": np.zeros((2, 3)), "labels": np.array([0, -1])}, "go down to -1"),
        ({"inputs": np.zeros((3, 3)), "labels": np.zeros(2, int)}, "3 inputs, 2 labels; each"),
        ({"inputs": np.zeros((2, 3), int), "labels": np.zeros(2, int)}, "int64 of shape"),
        ({"inputs": np.full((2, 3), np.nan), "labels": np.zeros(2, int)}, "not finite"),
        (
            {"inputs": np.zeros((1, 3)), "labels": np.zeros(1, int), "domains": np.array("a")},
            "1 labels and 1 domains",
        ),
        (
            {"inputs": np.array([{}]), "labels": np.zeros(1, int)},
            "not an .npz file of number arrays",
        ),
    ],
)
def test_invalid_arrays_are_refused(tmp_path, arrays, message):
    with pytest.raises(InputError, match=message):
        read_arrays(save(tmp_path / "x.npz", **arrays))


def test_file_that_is_not_an_array_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_arrays(tmp_path / "none.npz")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(InputError, match="single array"):
        read_arrays(tmp_path / "one.npy")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InputError, match="file of number arrays"):
        read_arrays(tmp_path / "text.npz")
