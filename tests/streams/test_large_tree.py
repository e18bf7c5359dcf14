"""A tree far larger than what a batch needs is streamed in little memory."""

import os
import shutil
import subprocess
import sys

import pytest

N_FILES, SIDE = 14_000, 224  # 2.1 GB of uncompressed pictures
N_CLASSES = 10
STREAM = """
import sys
import torch
from bitta.streams import Stream
from bitta.streams.folders import read_folders

def peak():  # not getrusage, whose peak starts at that of the process which started this one
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
    if shutil.disk_usage(tmp_path).free < 4e9:
        pytest.skip("less than 4 GB are free where tests write; a tree of 2 GB is needed")
    header = f"P6\n{SIDE} {SIDE}\n255\n".encode()
    for kind in range(N_CLASSES):
        (tmp_path / "photo" / f"class_{kind}").mkdir(parents=True)
    for n in range(N_FILES):
        path = tmp_path / "photo" / f"class_{n % N_CLASSES}" / f"{n:05}.ppm"
        path.write_bytes(header + bytes([n % 256]) * (3 * SIDE * SIDE))
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"),
    reason="there is no /proc to read peak memory from; run on Linux",
)
def test_two_gigabytes_are_streamed_in_less_than_300_megabytes(large_tree):
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
