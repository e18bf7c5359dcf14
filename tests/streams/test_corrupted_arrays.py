"""Tests of corrupted data sets in the layout of CIFAR-10-C."""

import numpy as np
import pytest
import torch

from bitta.errors import InputError, SettingError
from bitta.streams.arrays import read_corrupted

N = 12


def write(folder, *names, made=(1, 2, 3, 4, 5), repeat=5):
    folder.mkdir(exist_ok=True)
    for name in names:
        array = np.zeros((5 * N, 8, 8, 3), np.uint8)
        for severity in made:
            rows = slice((severity - 1) * N, severity * N)
            array[rows] = (np.arange(N) + 50 * (severity - 1)).reshape(-1, 1, 1, 1)
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "labels.npy", np.tile(np.arange(N, dtype=np.uint8), repeat))
    return folder


@pytest.mark.parametrize("repeat", [1, 5])
@pytest.mark.parametrize("above", [False, True])
def test_severity_is_a_fifth_of_the_rows(tmp_path, repeat, above):
    write(tmp_path / "CIFAR-10-C", "fog", "snow", repeat=repeat)
    root = tmp_path if above else tmp_path / "CIFAR-10-C"
    snow, fog = read_corrupted(root, ["snow", "fog"], severity=3, classes=["a"] * N)
    assert (snow.name, fog.name) == ("snow", "fog")
    assert fog.labels.tolist() == list(range(N))
    assert fog.images[torch.tensor([3, 0])].shape == (2, 3, 8, 8)
    assert fog.images[torch.tensor([3, 0])][:, 0, 0, 0].tolist() == [103, 100]
    assert len(fog.classes) == N


def test_labels_may_differ_between_severities(tmp_path):
    write(tmp_path, "fog")
    np.save(tmp_path / "labels.npy", np.arange(5 * N))
    (fog,) = read_corrupted(tmp_path, ["fog"], severity=2)
    assert fog.labels.tolist() == list(range(N, 2 * N))


def test_missing_severity_is_named(tmp_path):
    write(tmp_path, "fog", made=[1, 5])
    assert len(read_corrupted(tmp_path, ["fog"], severity=5)) == 1
    with pytest.raises(
        InputError, match=r'severity 3, .* it holds 1, 5\. Run "bitta data make-corrupted"'
    ):
        read_corrupted(tmp_path, ["fog"], severity=3)


def test_invalid_corrupted_arrays_are_refused(tmp_path):
    write(tmp_path, "fog", "snow")
    with pytest.raises(InputError, match=r"no rain\.npy in .*; allowed: fog, snow"):
        read_corrupted(tmp_path, ["rain"], severity=5)
    with pytest.raises(SettingError, match="severity is 0"):
        read_corrupted(tmp_path, ["fog"], severity=0)
    np.save(tmp_path / "labels.npy", np.zeros(7, int))
    with pytest.raises(InputError, match="holds 7 labels; allowed: 12, or 60"):
        read_corrupted(tmp_path, ["fog"], severity=5)
    np.save(tmp_path / "labels.npy", np.zeros(N))
    with pytest.raises(InputError, match="float64 of shape"):
        read_corrupted(tmp_path, ["fog"], severity=5)
    np.save(tmp_path / "fog.npy", np.ones((7, 8, 8, 3), np.uint8))
    with pytest.raises(InputError, match=r"uint8 of shape \(7, 8, 8, 3\)"):
        read_corrupted(tmp_path, ["fog"], severity=5)
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(InputError, match=r"holds no labels\.npy"):
        read_corrupted(tmp_path, ["snow"], severity=5)


def test_two_data_sets_in_one_folder_are_refused(tmp_path):
    write(tmp_path / "CIFAR-10-C", "fog")
    write(tmp_path / "CIFAR-100-C", "fog")
    with pytest.raises(InputError, match=r"holds 2 labels\.npy; give the folder"):
        read_corrupted(tmp_path, ["fog"], severity=5)
