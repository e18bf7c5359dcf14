"""Tests of folders of arrays. test_streams.py tests .npz files."""

import numpy as np
import pytest
import torch

from bitta.errors import InputError
from bitta.streams.arrays import read_arrays


def test_folder_has_a_domain_per_array(tmp_path):
    pixels = np.arange(6 * 5 * 6 * 3, dtype=np.uint8).reshape(6, 5, 6, 3)
    np.save(tmp_path / "rain.npy", pixels)
    np.save(tmp_path / "fog.npy", pixels.transpose(0, 3, 1, 2)[:4])
    np.save(tmp_path / "labels.npy", np.arange(6))
    np.save(tmp_path / "fog-labels.npy", np.array([3, 2, 1, 0], np.uint8))
    fog, rain = read_arrays(tmp_path)
    assert (fog.name, rain.name) == ("fog", "rain")
    assert rain.labels.tolist() == list(range(6))
    assert fog.labels.tolist() == [3, 2, 1, 0]
    rows = torch.tensor([3, 1])
    assert torch.equal(fog.images[rows], rain.images[rows])
    assert np.array_equal(rain.images[rows].numpy(), pixels[[3, 1]].transpose(0, 3, 1, 2))


def test_folder_of_float_features_is_read(tmp_path):
    np.save(tmp_path / "day.npy", np.arange(8.0).reshape(4, 2))
    np.save(tmp_path / "labels.npy", np.zeros(4, int))
    (day,) = read_arrays(str(tmp_path))
    assert day.images[torch.tensor([3])].tolist() == [[6, 7]]
    assert day.images[torch.tensor([3])].dtype == torch.float32
    np.save(tmp_path / "day.npy", np.array([[0.0], [1], [np.nan], [3]]))
    (day,) = read_arrays(tmp_path)
    with pytest.raises(InputError, match=r"day\.npy' hold values that are not finite"):
        day.images[torch.tensor([2])]


def test_invalid_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no <domain>\.npy"):
        read_arrays(tmp_path)
    np.save(tmp_path / "day.npy", np.zeros((4, 2)))
    with pytest.raises(InputError, match=r"day\.npy .* has no labels; write day-labels\.npy, or"):
        read_arrays(tmp_path)
    np.save(tmp_path / "labels.npy", np.zeros(3, int))
    with pytest.raises(InputError, match=r"4 inputs, labels\.npy has 3 labels; each sample needs"):
        read_arrays(tmp_path)
    np.save(tmp_path / "labels.npy", np.array([0, 1, -1, 0]))
    with pytest.raises(InputError, match="go down to -1"):
        read_arrays(tmp_path)
    np.save(tmp_path / "labels.npy", np.zeros(4))
    with pytest.raises(InputError, match="whole numbers"):
        read_arrays(tmp_path)
    np.save(tmp_path / "labels.npy", np.zeros(4, int))
    np.save(tmp_path / "day.npy", np.zeros((4, 2), int))
    with pytest.raises(InputError, match="int64 of shape"):
        read_arrays(tmp_path)
