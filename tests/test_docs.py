"""Tests that README and docs agree with the code."""

import doctest
import re
from pathlib import Path

import pytest
import torch

import bitta
from bitta.bench.pretrain import Recipe
from bitta.bench.speed import SPEED_GRIDS, speed_cases
from bitta.cli.main import _COMMANDS
from bitta.config_base import describe_settings
from bitta.methods import METHODS
from bitta.report import speed_rows
from bitta.seeding import generator
from bitta.speed_records import SpeedMeasurement
from bitta.testing import contract, toy_classifier

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"<!-- example -->\n```python\n(.*?)```", README, re.DOTALL)


def test_readme_is_short_and_shows_the_commands_before_the_example():
    assert len(README.splitlines()) <= 130
    assert README.index("make demo") < README.index("make test") < README.index("bitta.Session(")


@pytest.mark.parametrize("code", EXAMPLES, ids=["people", "simulated"])
def test_readme_examples_run_as_written(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []
    names = {
        "model": toy_classifier(),
        "stream": [torch.rand(8, 3, 8, 8, generator=generator(0, n)) for n in range(3)],
        "truth": torch.arange(24) % 5,
        "ask_a_person": lambda query: asked.append(query.id) or query.index % 2 == 0,
    }
    exec(code, names)
    assert isinstance(names["session"], bitta.Session)
    assert len(asked) in (0, 9)


@pytest.mark.full
def test_tutorial_runs_as_written_and_prints_the_accuracies_it_states(
    tmp_path, monkeypatch, capsys
):
    page = (ROOT / "docs" / "tutorial" / "first-session.md").read_text()
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})
    printed = [
        round(float(percent)) for percent in re.findall(r"([\d.]+)%", capsys.readouterr().out)
    ]
    assert printed == [int(percent) for percent in re.findall(r"(\d+) % for", page)]


@pytest.mark.parametrize(
    "module", [bitta.memory, bitta.session, contract], ids=lambda module: module.__name__
)
def test_docstring_examples_give_the_shown_output(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


def test_every_command_is_on_the_page_of_commands():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    assert all(f"`bitta {name}" in page for name in _COMMANDS)


def test_every_method_is_listed_and_every_setting_of_bitta_is_described():
    methods = (ROOT / "docs" / "reference" / "methods" / "README.md").read_text()
    assert [name for name in METHODS if f"| [`{name}`]({name}.md) |" not in methods] == []
    page = (ROOT / "docs" / "reference" / "methods" / "bitta.md").read_text()
    shared = {"sites"}
    for setting in describe_settings(METHODS["bitta"].Config):
        assert f"`{setting.name}" in page or setting.name in shared, setting.name


def test_every_recipe_key_is_documented():
    page = (ROOT / "docs" / "how-to" / "models.md").read_text()
    for setting in describe_settings(Recipe):
        assert f"| `{setting.name}` | {setting.default} | {setting.meaning} |" in page


def test_every_grid_and_column_of_bitta_speed_is_documented():
    page = (ROOT / "docs" / "explanation" / "performance.md").read_text()
    assert all(f"| `{name}` |" in page for name in SPEED_GRIDS)
    case = speed_cases(["headline"], changes={})[0]
    assert all(f"`{column}`" in page for column in speed_rows([SpeedMeasurement(case=case)])[0][1:])


@pytest.mark.parametrize(
    "document", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda path: path.name
)
def test_links_between_documents_point_to_existing_files(document):
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_citation_names_the_version():
    assert f"version: {bitta.__version__}" in (ROOT / "CITATION.cff").read_text()
