"""Tests of MNIST in idx files."""

import gzip

import numpy as np
import pytest

from bitta.errors import InputError
from bitta.streams.digits import read_mnist


def idx(shape, values):
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">i4").tobytes()
    return header + bytes(values)


@pytest.mark.parametrize("below", ["", "data", "package/data"])
@pytest.mark.parametrize("packed", [False, True])
def test_mnist_is_found_two_levels_deep(tmp_path, below, packed):
    folder = tmp_path / below
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in [
        ("train-images-idx3-ubyte", idx((2, 2, 2), range(8))),
        ("train-labels-idx1-ubyte", idx((2,), [4, 9])),
    ]:
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    images, labels = read_mnist(tmp_path, train=True)
    assert images.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert labels.tolist() == [4, 9]


def test_invalid_mnist_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no t10k-images-idx3-ubyte, nor .*\.gz, in"):
        read_mnist(tmp_path, train=False)
    with pytest.raises(InputError, match="no t10k-images-idx3-ubyte"):
        read_mnist(tmp_path / "none", train=False)
    packed = tmp_path / "t10k-images-idx3-ubyte.gz"
    packed.write_bytes(gzip.compress(idx((2, 2, 2), range(8)))[:-12])
    with pytest.raises(InputError, match=r"ubyte\.gz' cannot be read"):
        read_mnist(tmp_path, train=False)
    packed.write_bytes(gzip.compress(idx((2, 2, 2), range(8))))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx((3,), [1, 2, 3]))
    with pytest.raises(InputError, match="has 2 images and 3 labels"):
        read_mnist(tmp_path, train=False)
