"""Tests of the built wheel: its content, and a run outside of the checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    checkout = tmp_path_factory.mktemp("checkout")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    shutil.copytree(
        ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(checkout)]
    subprocess.run(command, check=True, capture_output=True)
    return next((checkout / "dist").glob("*.whl"))


def test_wheel_contains_packs_models_and_licence_of_limited_size(wheel):
    with zipfile.ZipFile(wheel) as archive:
        sizes = {Path(entry.filename).name: entry.file_size for entry in archive.infolist()}
    assert sizes["digits.webp"] < 2e6
    assert sizes["cifar10.webp"] < 4e6
    assert sizes["digits-resnet8.safetensors"] < 1e6
    assert sizes["cifar10-resnet8.safetensors"] < 1e6
    assert {
        "LICENSE",
        "NOTICE",
        "frost1-32.webp",
        "frost5-224.webp",
        "imagenet-wnids.txt",
        "py.typed",
        "digits.json",
        "cifar10.json",
        "demo-digits.toml",
    } <= sizes.keys()
    assert not [name for name in sizes if name.endswith((".pt", ".pth", ".pkl", ".npy"))]


def test_wheel_contains_nothing_of_the_reproduction(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"bitta"}
    folders = {folder for name in names for folder in Path(name).parts[:-1]}
    assert not folders & {"reproduction", "paper", "claims", "experiments", "results", "pretrain"}
    tables = [name for name in names if name.endswith(".toml") and "assets/" not in name]
    assert tables == []
    assert not [name for name in names if "claim" in name]


@pytest.mark.full
def test_wheel_runs_outside_of_the_checkout(wheel, tmp_path):
    """The wheel is unpacked elsewhere, and the checkout is not on the import path."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    experiment = tmp_path / "digits.toml"
    experiment.write_text(
        '[stream]\nkind = "digits"\nn_samples = 256\n[model]\nweights = "embedded:digits-resnet8"\n'
        '[method]\nname = "bitta"\nepochs = 1\n'
    )
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r}); import bitta; "
        f"assert bitta.__file__.startswith({str(site)!r}), bitta.__file__; "
        "from bitta.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, "run", str(experiment), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "digits-seed0.json").exists()
