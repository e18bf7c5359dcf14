"""Tests of freed memory, measured in a separate process."""

import platform
import subprocess
import sys

import pytest

from bitta import malloc

PROGRAM = """
import ctypes
from bitta.malloc import give_back_freed_memory, keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

keep_freed_memory()
blocks = []
for _ in range(64):  # four MiB each, and between them something small that stays
    block = library.malloc(2**22)
    ctypes.memset(block, 1, 2**22)
    blocks.append(block)
    library.malloc(2**11)
taken = resident()
for block in blocks:
    library.free(block)
kept = resident()
give_back_freed_memory()
print(taken, kept, resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library can be told")
def test_free_pages_between_used_blocks_are_returned_on_request():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    taken, kept, left = map(int, done.stdout.split())
    assert kept == pytest.approx(taken, abs=2)
    assert left == pytest.approx(taken - 256, abs=8)


@pytest.mark.parametrize("name", ["keep_freed_memory", "give_back_freed_memory"])
def test_other_c_libraries_are_not_changed(monkeypatch, name):
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda _: object())
    getattr(malloc, name)()
