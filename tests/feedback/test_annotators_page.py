"""The examples of docs/how-to/annotators.md run as written."""

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
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_there_are_five():
    assert len(EXAMPLES) == 5


def test_a_panel_tells_who_is_asked():
    assert run(EXAMPLES[0])["asked"] == ["careful", "hasty", "careful"]  # questions 6, 7, 8


def test_full_labels_are_saved_up_for():
    """Three batches of three verdicts buy floor(9 / 2.32) = 3 labels, the last of them here."""
    names = run(EXAMPLES[1])
    assert names["session"].n_asked == 3
    assert len(names["named"]) == 1


def test_a_judge_is_measured(capsys):
    judge = run(EXAMPLES[2])["judge"]
    assert 0 < judge.n_judged <= 9
    assert capsys.readouterr().out == f"{judge.n_judged} {judge.error_rate}\n"


def test_a_person_is_written_down(tmp_path):
    run(EXAMPLES[3])
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1 + 9 + 1
    FeedbackReplay(tmp_path / "answers.jsonl")


def test_a_log_gives_the_same_again():
    assert len(run(EXAMPLES[4])["first"]) == 3
