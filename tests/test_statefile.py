"""Tests of state files."""

import resource
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import save_file

from bitta.errors import InputError
from bitta.statefile import load_state, save_state


def test_tree_is_read_back_unchanged(tmp_path):
    shared = torch.arange(6.0)
    tree = {
        "a": {"b": [1, 2.5, None, True, "text"], "c": shared[:3]},
        "d": shared[:3],
        "e": torch.zeros(0, 4),
        "f": torch.tensor(7),
    }
    save_state(tmp_path / "t", tree)
    back = load_state(tmp_path / "t")
    assert back["a"]["b"] == tree["a"]["b"]
    assert torch.equal(back["a"]["c"], shared[:3])
    assert back["e"].shape == (0, 4)
    assert back["f"].item() == 7


def test_saving_replaces_the_file_and_leaves_no_temporary_one(tmp_path):
    save_state(tmp_path / "t", {"n": 1})
    save_state(tmp_path / "t", {"n": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert load_state(tmp_path / "t") == {"n": 2}


@contextmanager
def file_size_limit(n_bytes):
    """Limit the size of files: a longer write fails in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_failed_write_keeps_the_old_file_and_removes_the_temporary_one(tmp_path):
    save_state(tmp_path / "t", {"n": 1})
    with file_size_limit(4096), pytest.raises(OSError, match="too large"):
        save_state(tmp_path / "t", {"x": torch.zeros(10_000)})
    assert [path.name for path in tmp_path.iterdir()] == ["t"]
    assert load_state(tmp_path / "t") == {"n": 1}


def test_foreign_files_and_types_are_refused(tmp_path):
    save_file({"x": torch.zeros(1)}, tmp_path / "plain")
    with pytest.raises(InputError, match="no bitta state"):
        load_state(tmp_path / "plain")
    with pytest.raises(TypeError, match=r"cannot hold set \(at 'a.b'\)"):
        save_state(tmp_path / "t", {"a": {"b": {1}}})
