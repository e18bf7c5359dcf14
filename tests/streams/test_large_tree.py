"""Test of the memory that a large stream needs."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

N_FILES, SIDE = 14_000, 224  # 2.1 GB of uncompressed pictures
N_CLASSES = 10
STREAM = """
import sys
import torch
from bitta.streams import Stream
from bitta.streams.folders import read_folders

def peak():  # the peak of getrusage includes that of the parent process
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

torch.set_num_threads(1)
torch.rand(8, 8).float().div_(255)
before = peak()
stream = Stream(read_folders(sys.argv[1]), batch_size=64, seed=0)
n_samples, brightness = 0, 0.0
for batch in stream.batches():
    n_samples += len(batch.truth)
    brightness += batch.inputs[:, 0, 0, 0].sum().item() * 255
print(n_samples, len(stream.truth), round(brightness), peak() - before)
"""


@pytest.fixture
def large_tree(tmp_path):
    """Folder of hard links to 256 pictures, so that little is written."""
    header = f"P6\n{SIDE} {SIDE}\n255\n".encode()
    (tmp_path / "made").mkdir()
    for shade in range(256):
        picture = header + bytes([shade]) * (3 * SIDE * SIDE)
        (tmp_path / "made" / f"{shade}.ppm").write_bytes(picture)
    for kind in range(N_CLASSES):
        (tmp_path / "tree" / "photo" / f"class_{kind}").mkdir(parents=True)
    for n in range(N_FILES):
        path = tmp_path / "tree" / "photo" / f"class_{n % N_CLASSES}" / f"{n:05}.ppm"
        path.hardlink_to(tmp_path / "made" / f"{n % 256}.ppm")
    return tmp_path / "tree"


@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"),
    reason="there is no /proc to read peak memory from; run on Linux",
)
def test_stream_of_two_gigabytes_needs_less_than_300_megabytes(large_tree):
    size = sum(path.stat().st_size for path in large_tree.rglob("*.ppm"))
    assert size > 2e9
    done = subprocess.run(
        [sys.executable, "-c", STREAM, str(large_tree)],
        capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    n_samples, n_truth, brightness, grown = done.stdout.split()
    assert int(n_samples) == int(n_truth) == N_FILES
    assert int(brightness) == sum(n % 256 for n in range(N_FILES))
    assert float(grown) < 300, f"memory grew by {grown} MB over that of the imports"
