"""Tests of the commands bitta feedback export and import."""

import json
import shutil

import pytest

from bitta.cli.main import main

pytest.importorskip("sqlalchemy", reason="the extra 'serve' is not installed")

from bitta.server.store import LearnedStep, Store
from server.store.factories import (
    START,
    ManualClock,
    new_answer,
    new_question,
    pending_answers,
    prediction_id,
    served_batch,
)


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
    """Return a function that exports the answers of a data folder and returns their records."""

    def call(data, file="answers.jsonl"):
        assert run("export", "--data-dir", data, "--out", file)[0] == 0
        return records(file)

    return call


@pytest.fixture
def import_file(run):
    """Return a function that imports a valid file and returns the printed text."""

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


def opened(folder, data="data", *, seconds=0):
    clock = ManualClock()
    clock.move(seconds)
    return Store.open(None, folder / data, clock=clock)


def preserved(record):
    """Return the fields that an import preserves: all but place in the log and learning state."""
    here = ("seq", "received_at", "status", "applied_in_version")
    return {name: value for name, value in record.items() if name not in here}


def pending(folder, data):
    with opened(folder, data) as store:
        return sorted(
            store.find_feedback(one.feedback_id).idempotency_key for one in pending_answers(store)
        )


@pytest.fixture
def asked(folder):
    """Return a function that makes a folder with predictions 0 to 3 and questions about 0 and 1."""

    def make(data, *, asks=True):
        with opened(folder, data) as store:
            store.log_served_batch(served_batch(range(4)))
            store.add_questions(
                [new_question(0), new_question(1, reason="audit")] if asks else []
            ).result()
        return data

    return make


@pytest.fixture
def answered(folder, asked):
    """Return a folder with an answer under a lease, an answer with all fields, and a skip."""
    asked("data")
    with opened(folder) as store:
        leased = store.lease_question("anna", seconds=60).result()
        number = int(leased.question.prediction_id[1:])
        store.add_answer(new_answer(number, key="a", lease=leased.lease.token)).result()
        full = {"comment": "a dog", "metadata": {"app": [1.5, "ä"]}, "lead_time_ms": 1200}
        store.add_answer(
            new_answer(2, "incorrect", by="bert", key="b", shown_at=START, **full)
        ).result()
        store.add_answer(new_answer(3, "skip", by="bert", key="c", annotator_kind="CODE")).result()
    return "data"


@pytest.fixture
def changed(folder, answered):
    """Return the folder after changed and undone answers of all kinds, some of them learned."""
    with opened(folder, seconds=10) as store:
        kept = {}

        def say(number, verdict, key):
            kept[key] = (
                store.add_answer(new_answer(number, verdict, by="cleo", key=key)).result().id
            )

        say(0, "correct", "once")
        store.log_learned_step(LearnedStep("1.1", [kept["once"]], {}, 0.1)).result()
        say(0, "incorrect", "twice")
        say(0, "correct", "thrice")
        say(1, "correct", "undone")
        store.undo_answer(kept["undone"], by="cleo").result()
        say(1, "incorrect", "after an undo")
        say(2, "correct", "replaced and undone")
        say(2, "incorrect", "its successor")
        store.undo_answer(kept["replaced and undone"], by="cleo").result()
        say(3, "correct", "left behind")
        say(3, "incorrect", "undone successor")
        store.undo_answer(kept["undone successor"], by="cleo").result()
    return answered


def test_import_of_stored_answers_changes_nothing(answered, export, import_file):
    before = export(answered)
    assert "0 answers imported, 3 were already stored" in import_file(answered)
    assert export(answered) == before


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"verdict": "correct"}, "another verdict"),
        ({"prediction_id": prediction_id(3)}, "another prediction_id"),
        ({"annotator_id": "anna"}, "another annotator_id"),
        ({"comment": "a cat"}, "another comment"),
        ({"metadata": None}, "another metadata"),
        ({"answered_at": START + 1}, "another answered_at"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else "",
)
def test_reused_key_with_another_answer_is_refused_with_its_line(
    answered, export, run, other, sentence
):
    before = export(answered)
    first, second, third = before
    write("changed.jsonl", first, second | other, third)
    code, output = run("import", "changed.jsonl", "--data-dir", answered)
    assert code == 2
    assert "line 2 of 'changed.jsonl' cannot be imported" in output.err
    assert sentence in output.err
    assert "before it, 0 were new and 1 were already stored" in output.err
    assert export(answered) == before


@pytest.mark.parametrize("asks", [True, False])
def test_import_into_an_empty_store_gives_the_same_records(
    asked, changed, export, import_file, asks
):
    before = export(changed)
    printed = import_file(asked("other", asks=asks))
    assert "12 answers imported, 0 were already stored" in printed
    assert "6 of the imported answers were undone or replaced" in printed
    after = export("other")
    assert [preserved(record) for record in after] == [preserved(record) for record in before]
    assert {record["status"] for record in after} == {"pending", "superseded"}
    assert import_file("other").startswith("0 answers imported, 12 were already stored")
    assert export("other") == after


def test_undone_or_replaced_answers_are_not_pending(folder, asked, changed, export, import_file):
    export(changed)
    import_file(asked("other"))
    with opened(folder, "other") as store:
        taken = [store.find_feedback(one.feedback_id) for one in store.claim_answers().result()]
        counts = store.counts()
        assert store.find_question(prediction_id(1)).status == "closed"
    keys = {"a", "b", "thrice", "after an undo", "its successor"}
    assert {record.idempotency_key for record in taken} == keys
    assert (counts.undone, counts.skipped) == (3, 1)


def test_imported_undo_is_an_event(folder, asked, changed, export, import_file):
    (undone,) = (one for one in export(changed) if one["idempotency_key"] == "undone")
    import_file(asked("other"))
    with opened(folder, "other") as store:
        bodies = [event.body for event in store.events(kinds=["undone"])]
    assert [body["by"] for body in bodies] == ["import"] * 3
    assert undone["id"] in [body["feedback_id"] for body in bodies]


def test_backup_equals_the_source_after_a_later_import(
    folder, asked, answered, export, import_file
):
    with opened(folder) as store:
        first = store.add_answer(new_answer(0, by="cleo", key="mistaken")).result()
        store.add_answer(new_answer(1, by="cleo", key="first thought")).result()
    shutil.copytree("data", "backup")
    with opened(folder, seconds=5) as store:
        store.undo_answer(first.id, by="cleo").result()
        for verdict, key in (("incorrect", "second thought"), ("correct", "third thought")):
            store.add_answer(new_answer(1, verdict, by="cleo", key=key)).result()
    before = export("data")
    printed = import_file("backup")
    assert "2 answers imported, 5 were already stored" in printed
    assert "1 of the imported answers were undone or replaced" in printed
    assert "2 stored answers are now undone or replaced" in printed
    assert [preserved(record) for record in export("backup")] == [preserved(one) for one in before]
    assert pending(folder, "backup") == pending(folder, "data") == ["a", "b", "third thought"]


def test_import_of_an_earlier_export_changes_nothing(folder, changed, export, import_file):
    export(changed, "early.jsonl")
    with opened(folder, seconds=20) as store:
        store.add_answer(new_answer(0, "incorrect", by="cleo", key="at last")).result()
        newest = store.list_feedback("bert")[-1]
        store.undo_answer(newest.id, by="bert").result()
    before = export(changed)
    assert import_file(changed, "early.jsonl") == "0 answers imported, 12 were already stored\n"
    assert export(changed) == before


def test_latest_answer_stands_after_import_of_an_earlier_one(folder, asked, export, import_file):
    asked("data")
    shutil.copytree("data", "backup")
    for data, seconds, verdict in (("data", 5, "correct"), ("backup", 10, "incorrect")):
        with opened(folder, data, seconds=seconds) as store:
            store.add_answer(new_answer(0, verdict, key=data)).result()
    export("data")
    assert "1 of the imported answers were undone or replaced" in import_file("backup")
    last, earlier = export("backup")
    assert (last["verdict"], last["standing"]) == ("incorrect", True)
    assert (earlier["verdict"], earlier["standing"]) == ("correct", False)
    assert pending(folder, "backup") == ["backup"]
    export("backup", "back.jsonl")
    assert "1 stored answers are now undone or replaced" in import_file("data", "back.jsonl")
    assert pending(folder, "data") == ["backup"]


def test_client_may_repeat_an_imported_answer(folder, asked, answered, export, import_file):
    """The client sends a lease and no time of answer. The file has a time and no lease."""
    export(answered)
    import_file(asked("other"))
    with opened(folder, "other") as store:
        assert (
            store.add_answer(new_answer(1, key="a", lease="of a server that is gone"))
            .result()
            .repeated
        )


def test_hand_written_answers_need_only_four_fields(folder, asked, export, import_file):
    write("own.jsonl", *(
        {"prediction_id": prediction_id(number), "verdict": "skip", "annotator_id": "me",
         "idempotency_key": f"own-{number}"}
        for number in range(2)
    ))  # fmt: skip
    assert import_file(asked("data"), "own.jsonl") == "2 answers imported, 0 were already stored\n"
    assert [record["verdict"] for record in export("data")] == ["skip", "skip"]
    assert import_file("data", "own.jsonl") == "0 answers imported, 2 were already stored\n"
    assert pending(folder, "data") == []


def test_comment_with_unicode_line_ends_is_kept(folder, asked, export, import_file):
    odd = "a\u2028b\x85c\nd\re"
    asked("data")
    with opened(folder) as store:
        store.add_answer(new_answer(0, comment=odd)).result()
    export("data")
    import_file(asked("other"))
    assert [record["comment"] for record in export("other")] == [odd]


@pytest.mark.parametrize("content", ["", "\n", " \n\n"])
def test_empty_file_imports_nothing(asked, import_file, folder, content):
    (folder / "empty.jsonl").write_text(content)
    printed = import_file(asked("data"), "empty.jsonl")
    assert printed == "0 answers imported, 0 were already stored\n"


def test_unknown_prediction_is_refused_with_its_line(answered, asked, export, run):
    first, *others = export(answered)
    write("odd.jsonl", first, first | {"prediction_id": "nobody", "idempotency_key": "x"}, *others)
    code, output = run("import", "odd.jsonl", "--data-dir", asked("other"))
    assert code == 2
    assert "line 2 of 'odd.jsonl' cannot be imported (no prediction has the id" in output.err
    assert "before it, 1 were new and 0 were already stored" in output.err
    assert len(export("other")) == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda line: line[: len(line) // 2], "it is not JSON"),
        (lambda line: "id,idempotency_key,seq", "it is not JSON"),
        (lambda line: f"[{line}]", "it is list; give one object per line"),
        (lambda line: line.replace('"verdict"', '"Verdict"'), "it has no verdict"),
        (lambda line: line.replace('"incorrect"', '"yes"'), "verdict is 'yes'"),
        (lambda line: line.replace('"undone": false', '"undone": "no"'), "undone is 'no'"),
        (lambda line: line.replace('"standing": true', '"standing": 1'), "standing is 1"),
        (lambda line: line.replace('{"id": "', '{"id": "../'), "id has 29 characters"),
        (lambda line: line.replace('{"id": "0', '{"id": "/'), "give letters and digits"),
        (lambda line: line.replace('"uncertainty": null', '"uncertainty": NaN'), "uncertainty is"),
        (lambda line: line.replace('n": null', 'n": "bored"'), "selection_reason is 'bored'"),
    ],
)
def test_invalid_line_is_refused_with_its_number(
    folder, asked, answered, export, run, change, sentence
):
    export(answered)
    lines = (folder / "answers.jsonl").read_text("utf-8").splitlines()
    broken = change(lines[1])
    assert broken != lines[1]
    (folder / "broken.jsonl").write_text("\n".join([lines[0], broken, lines[2]]), "utf-8")
    code, output = run("import", "broken.jsonl", "--data-dir", asked("other"))
    assert code == 2
    assert "line 2 of 'broken.jsonl' cannot be imported" in output.err
    assert sentence in output.err
    assert "Traceback" not in output.err
    assert len(export("other")) == 1


def test_id_of_another_answer_is_refused(answered, export, run):
    first, *_ = export(answered)
    write("odd.jsonl", first | {"idempotency_key": "another"})
    code, output = run("import", "odd.jsonl", "--data-dir", answered)
    assert code == 2
    assert f"the id '{first['id']}' belongs to another stored answer" in output.err


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_unreadable_file_is_refused(folder, asked, run, content):
    if content is not None:
        (folder / "answers.jsonl").write_bytes(content)
    code, output = run("import", "answers.jsonl", "--data-dir", asked("data"))
    assert code == 2
    assert "'answers.jsonl' cannot be read" in output.err


def test_label_studio_export_names_the_owner_of_the_key(folder, asked, run):
    asked("data")
    with opened(folder) as store:
        key = store.keys.create("annotator", "anna@example.org").record
        store.add_answer(new_answer(0, by=key.id)).result()
    code, output = run("export", "--format", "labelstudio", "--data-dir", "data")
    assert code == 0
    (task,) = json.loads(output.out)
    assert task["annotations"][0]["completed_by"] == {"email": "anna@example.org"}
    assert task["meta"]["answers"][0]["annotator_name"] == "anna@example.org"
