"""Tests of CIFAR in every format, and of malicious pickles."""

import io
import json
import os
import pickle
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from bitta.errors import InputError
from bitta.streams.cifar import CIFAR10_CLASSES, CIFAR100_CLASSES, read_cifar10, read_cifar100

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3072), dtype=np.uint8)
FINE = [19, 29, 0, 99]


def binary(labels, *, coarse=()):
    columns = [np.array(c, np.uint8).reshape(-1, 1) for c in (coarse, labels) if len(c)]
    return np.hstack([*columns, PIXELS[: len(labels)]]).tobytes()


def pickled(labels, *, key=b"labels", protocol=2, text=bytes):
    batch = {b"batch_label": b"testing batch 1 of 1", b"data": PIXELS[: len(labels)], key: labels}
    batch = {name if text is bytes else name.decode(): batch[name] for name in batch}
    return pickle.dumps(batch, protocol=protocol)


def same(domain, labels):
    assert domain.labels.tolist() == labels
    assert domain.labels.dtype == torch.int64
    assert np.array_equal(domain.images.flatten(1).numpy(), PIXELS[: len(labels)])
    return True


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin22", "a/cifar-10-batches-bin"])
def test_binary_batches_are_found_two_levels_deep(tmp_path, below):
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    (tmp_path / below / "test_batch.bin").write_bytes(binary([7, 2]))
    for n in range(1, 6):
        (tmp_path / below / f"data_batch_{n}.bin").write_bytes(binary([n]))
    test, train = (read_cifar10(tmp_path, train=train) for train in (False, True))
    assert same(test, [7, 2])
    assert train.labels.tolist() == [1, 2, 3, 4, 5]
    assert (test.name, test.classes) == ("cifar10", CIFAR10_CLASSES)


@pytest.mark.parametrize("protocol", [0, 2, 3, 4, 5])
@pytest.mark.parametrize("text", [bytes, str])
def test_pickles_of_python_2_and_3_are_read(tmp_path, protocol, text):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "test_batch").write_bytes(pickled([7, 2, 0, 9], protocol=protocol, text=text))
    assert same(read_cifar10(tmp_path, train=False), [7, 2, 0, 9])


def test_pickle_bytes_of_python_2_are_read(tmp_path):
    """Opcodes of the official files: byte strings for keys and pixels, numpy.core for arrays."""
    data = PIXELS[:2].tobytes()
    content = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b"
        b"\x87R(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff"
        b"\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + len(data).to_bytes(4, "little") + data + b"tb"
        b"U\x06labels](K\x03K\x08eu."
    )
    (tmp_path / "test_batch").write_bytes(content)
    assert same(read_cifar10(tmp_path, train=False), [3, 8])


def test_cifar100_takes_the_fine_label(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "test.bin").write_bytes(binary(FINE, coarse=[11, 15, 4, 13]))
    (tmp_path / "py").mkdir()
    (tmp_path / "py" / "train").write_bytes(pickled(FINE, key=b"fine_labels"))
    assert same(read_cifar100(tmp_path, train=False), FINE)
    train = read_cifar100(tmp_path, train=True)
    assert same(train, FINE)
    assert (train.name, len(train.classes)) == ("cifar100", 100)
    assert [train.classes[label] for label in FINE] == ["cattle", "dinosaur", "apple", "worm"]
    assert sorted(CIFAR100_CLASSES) == list(CIFAR100_CLASSES)


@pytest.mark.parametrize("inside", [True, False])
def test_official_archive_is_read_without_unpacking(tmp_path, inside):
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for n in (4, 1, 5, 2, 3):  # the official archive is not sorted either
            content = pickled([n])
            member = tarfile.TarInfo(f"cifar-10-batches-py/data_batch_{n}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    domain = read_cifar10(tmp_path if inside else path, train=True)
    assert domain.labels.tolist() == [1, 2, 3, 4, 5]
    assert sorted(os.listdir(tmp_path)) == [path.name]
    with pytest.raises(InputError, match="holds no test split of cifar10"):
        read_cifar10(path, train=False)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(InputError, match="is truncated or not a tar"):
        read_cifar10(path, train=True)


def test_mosaics_are_split_into_images(tmp_path):
    tiles = PIXELS.reshape(2, 2, 3, 32, 32).transpose(0, 3, 1, 4, 2).reshape(64, 64, 3)
    Image.fromarray(tiles).save(tmp_path / "test.webp", lossless=True, exact=True)
    np.savez(tmp_path / "labels.npz", test=np.array(FINE, np.uint8), train=np.zeros(0, np.uint8))
    assert same(read_cifar100(tmp_path, train=False), FINE)
    np.savez(tmp_path / "labels.npz", test=np.array(FINE[:3], np.uint8))
    with pytest.raises(InputError, match=r"there are 4 images, but labels of shape \(3,\)"):
        read_cifar100(tmp_path, train=False)


class Evil:
    def __init__(self, call, argument):
        self.call, self.argument = call, argument

    def __reduce__(self):
        return self.call, (self.argument,)


@pytest.mark.parametrize("call", [os.system, eval, __import__, np.load, np.frombuffer])
def test_pickle_that_would_run_code_is_refused(tmp_path, call):
    trace = tmp_path / "trace"
    evil = Evil(call, f"touch {trace}" if call is os.system else "os")
    batch = {b"data": PIXELS, b"labels": evil}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(InputError, match=r"test_batch needs \w.*was not run"):
        read_cifar10(tmp_path, train=False)
    assert not trace.exists()


def test_pickle_of_objects_is_refused(tmp_path):
    batch = {b"data": np.array([object]), b"labels": [1]}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(InputError, match=r"needs .*object|array of object"):
        read_cifar10(tmp_path, train=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is truncated or not a pickle"),
        (b"hello", "is truncated or not a pickle"),
        (pickled([1, 2])[:-40], "is truncated or not a pickle"),
        (pickle.dumps([1, 2]), "holds a list"),
        (pickle.dumps({"data": PIXELS}), "labels of shape"),
        (pickle.dumps({"data": PIXELS[:, :5], "labels": FINE}), r"data of shape \(4, 5\)"),
        (pickled([1, 10]), "labels in .* go from 1 to 10, but cifar10 has 0 to 9"),
    ],
)
def test_invalid_pickle_is_refused(tmp_path, content, message):
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_cifar10(tmp_path, train=False)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no cifar10 in .* test_batch\.bin, or test_batch, or"):
        read_cifar10(tmp_path, train=False)
    with pytest.raises(InputError, match="no cifar100 in"):
        read_cifar100(tmp_path / "none", train=False)
    (tmp_path / "data_batch_1.bin").write_bytes(binary([1]))
    with pytest.raises(InputError, match=r"no file data_batch_2\.bin"):
        read_cifar10(tmp_path, train=True)
    (tmp_path / "test_batch.bin").write_bytes(binary([1])[:-1])
    with pytest.raises(InputError, match="holds 3072 bytes, not a multiple of 3073"):
        read_cifar10(tmp_path, train=False)


def test_real_mosaics_contain_the_official_data(shared_data):
    folder = shared_data / "cifar100"
    test = read_cifar100(folder, train=False)
    assert test.images.shape == (10_000, 3, 32, 32)
    assert test.labels.bincount().tolist() == [100] * 100
    shown = [test.classes[label] for label in test.labels[:5]]
    assert shown == ["mountain", "forest", "seal", "mushroom", "sea"]
    assert json.loads((folder / "classes.json").read_text())["fine"] == list(CIFAR100_CLASSES)
    sea = test.images[4].float()  # a red sky over dark water
    assert sea[0, 8:14].mean() > 1.5 * sea[0, 24:].mean()
