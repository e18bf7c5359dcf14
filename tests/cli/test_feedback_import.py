"""bitta feedback import: what was exported comes back as it was."""

import json

import pytest

from bitta.cli.main import main

pytest.importorskip("sqlalchemy", reason="the extra 'serve' is not installed")

from bitta.server.store import Store
from server.store.made import START, Watch, given, name, question, served


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys):
    def call(*arguments):
        code = main(["feedback", *arguments])
        return code, capsys.readouterr()

    return call


@pytest.fixture
def export(run):
    """The records of a data folder, read from the file that is written for them."""

    def call(data, file="answers.jsonl"):
        assert run("export", "--data-dir", data, "--out", file)[0] == 0
        return records(file)

    return call


@pytest.fixture
def take_in(run):
    """Import a file that is good, and give what is said about it."""

    def call(data, file="answers.jsonl"):
        code, output = run("import", file, "--data-dir", data)
        assert (code, output.err) == (0, "")
        return output.out

    return call


def records(file):
    with open(file, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write(file, *lines):
    with open(file, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)


def opened(folder, data="data"):
    return Store.open(None, folder / data, clock=Watch())


@pytest.fixture
def asked(folder):
    """Make a data folder with predictions 0 to 3, of which 0 and 1 are asked about."""

    def make(data):
        with opened(folder, data) as store:
            store.served(served(range(4)))
            store.asked([question(0), question(1, reason="audit")]).result()
        return data

    return make


@pytest.fixture
def answered(folder, asked):
    """A folder with one answer under a lease, one with all that can be said, and a skip."""
    asked("data")
    with opened(folder) as store:
        lease = store.lease("anna", seconds=60).result()
        number = int(lease.question.prediction_id[1:])
        store.answer(given(number, key="a", lease=lease.token)).result()
        full = {"comment": "a dog", "metadata": {"app": [1.5, "ä"]}, "lead_time_ms": 1200}
        store.answer(given(2, "incorrect", by="bert", key="b", shown_at=START, **full)).result()
        store.answer(given(3, "skip", by="bert", key="c", annotator_kind="CODE")).result()
    return "data"


def test_what_the_store_has_is_there_already(answered, export, take_in):
    before = export(answered)
    assert "0 answers taken in, 3 were there already" in take_in(answered)
    assert export(answered) == before


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"verdict": "correct"}, "another verdict: 'incorrect', not 'correct'"),
        ({"prediction_id": name(3)}, "another prediction_id"),
        ({"annotator_id": "anna"}, "another annotator_id: 'bert', not 'anna'"),
        ({"comment": "a cat"}, "another comment"),
        ({"metadata": None}, "another metadata"),
        ({"answered_at": START + 1}, "another answered_at"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_a_key_with_something_else_said_is_refused_with_its_line(
    answered, export, run, other, sentence
):
    before = export(answered)
    first, second, third = before
    write("changed.jsonl", first, second | other, third)
    code, output = run("import", "changed.jsonl", "--data-dir", answered)
    assert code == 2
    assert "line 2 of 'changed.jsonl' cannot be taken in" in output.err
    assert sentence in output.err
    assert "0 answers before it were new, 1 were there" in output.err
    assert export(answered) == before
