"""Tests of the published weights, their logs and recipes, and the page that lists them."""

import hashlib
import json

import pytest
import torch

from bitta.bench.pretrain import Recipe, read_recipe
from bitta.models import load_model
from bitta.streams import embedded_pack
from reproduction.paths import PRETRAINING_RECIPES as RECIPES
from reproduction.paths import ROOT, relative

WEIGHTS = ROOT / "weights"
LOGS = sorted(WEIGHTS.glob("*.json"))


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_recipe_is_valid_and_states_its_command(recipe):
    read_recipe(recipe)
    assert f"bitta pretrain {relative(recipe)} " in recipe.read_text()


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_weights_have_the_hash_in_their_log(log):
    hashes = json.loads(log.read_text())["sha256"]
    present = {path.name for path in WEIGHTS.glob(f"{log.stem}*.safetensors")}
    assert present in (set(), set(hashes))  # all files, or the log alone
    for name in present:
        assert hashlib.sha256((WEIGHTS / name).read_bytes()).hexdigest() == hashes[name]


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_weights_were_trained_with_the_recipe_in_the_repository(log):
    recorded = json.loads(log.read_text())["card"]["recipe"]
    recipe = read_recipe(RECIPES / f"{log.stem}.toml")
    # The log lacks settings that were added later. They have their defaults.
    assert vars(Recipe(**recorded)) == vars(recipe)


def test_weights_are_small_enough_for_the_repository():
    sizes = [path.stat().st_size for path in WEIGHTS.glob("*.safetensors")]
    assert max(sizes) <= 12_000_000
    assert sum(sizes) <= 60_000_000


def test_cifar10_weights_classify_the_embedded_images():
    """The model is right on 95.57 % of the test set. 184 of 200 is three deviations below."""
    model, card = load_model(WEIGHTS / "cifar10-resnet18.safetensors")
    pack = embedded_pack("cifar10")
    assert card.classes == pack.classes
    with torch.no_grad():
        predictions = model(pack.images[:200].float() / 255).argmax(-1)
    assert (predictions == pack.labels[:200]).sum() >= 184


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_models_page_shows_the_log(log):
    content = json.loads(log.read_text())
    name, percent = next(iter(content["card"]["accuracy"].items()))
    page = (ROOT / "docs" / "how-to" / "models.md").read_text()
    assert f"`weights/{log.stem}.safetensors`" in page
    assert f"{percent:.2f} % {name} | {content['seconds']:.0f} |" in page
