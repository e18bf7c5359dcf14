"""Tests that the examples of docs/how-to/annotators.md run as written."""

import re
from pathlib import Path

import pytest
import torch

from bitta.feedback import FeedbackReplay
from bitta.seeding import generator
from bitta.testing import toy_classifier

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "annotators.md").read_text()
EXAMPLES = re.findall(r"<!-- example -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def run(code):
    names = {
        "model": toy_classifier(),
        "larger_model": toy_classifier("layer"),
        "stream": [torch.rand(8, 3, 8, 8, generator=generator(0, n)) for n in range(3)],
        "truth": torch.arange(24) % 5,
        "ask_a_person": lambda query: query.index % 2 == 0,
    }
    exec(code, names)
    return names


@pytest.fixture(autouse=True)
def _run_in_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_page_has_five_examples():
    assert len(EXAMPLES) == 5


def test_panel_example_names_the_annotators():
    assert run(EXAMPLES[0])["asked"] == ["careful", "hasty", "careful"]  # questions 6, 7, 8


def test_price_example_asks_for_three_labels():
    """Three batches of three verdicts buy floor(9 / 2.32) = 3 labels. The last batch asks one."""
    names = run(EXAMPLES[1])
    assert names["session"].n_asked == 3
    assert len(names["named"]) == 1


def test_judge_example_prints_its_error_rate(capsys):
    judge = run(EXAMPLES[2])["judge"]
    assert 0 < judge.n_judged <= 9
    assert capsys.readouterr().out == f"{judge.n_judged} {judge.error_rate}\n"


def test_recorder_example_writes_a_complete_log(tmp_path):
    run(EXAMPLES[3])
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1 + 9 + 1
    FeedbackReplay(tmp_path / "answers.jsonl")


def test_replay_example_runs():
    assert len(run(EXAMPLES[4])["first"]) == 3
