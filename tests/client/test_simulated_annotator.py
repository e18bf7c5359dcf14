"""Tests of the simulated annotator."""

import json

import pytest

from bitta.client.simulated_annotator import (
    AnswerCounts,
    SimulatedAnnotator,
    SimulatedBehaviour,
    TruthFile,
)
from bitta.errors import InputError, SettingError
from bitta.records import AskedQuestion, Lease


def question(id_="p0", class_index=0, sha="ab"):
    return AskedQuestion(
        prediction_id=id_, label="cat", class_index=class_index, confidence=0.5, uncertainty=0.5,
        model_version="1.0", asked_at=0, expires_at=1, lease=Lease("l", 1), image_url=None,
        input_sha256=sha,
    )  # fmt: skip


@pytest.fixture
def sleeps(monkeypatch):
    """Seconds for which the annotator would have slept."""
    seconds = []
    monkeypatch.setattr("bitta.client.simulated_annotator.sleep", seconds.append)
    return seconds


def share(verdicts, verdict_name):
    return sum(verdict == verdict_name for verdict in verdicts) / len(verdicts)


def test_default_behaviour_answers_the_truth():
    assert SimulatedBehaviour().choose_verdict(question(class_index=1), 1) == "correct"
    assert SimulatedBehaviour().choose_verdict(question(class_index=1), 0) == "incorrect"


def test_unknown_true_class_gives_skip():
    assert SimulatedBehaviour().choose_verdict(question(), None) == "skip"


def test_shares_of_errors_and_skips_match_the_probabilities():
    """2000 questions: about 100 skips, and about 190 ± 13 of the other 1900 answers are wrong."""
    behaviour = SimulatedBehaviour(flip=0.1, skip=0.05)
    verdicts = [behaviour.choose_verdict(question(f"p{n}"), 0) for n in range(2000)]
    assert share(verdicts, "skip") == pytest.approx(0.05, abs=0.02)
    assert share(verdicts, "incorrect") == pytest.approx(0.095, abs=0.03)
    assert {SimulatedBehaviour(flip=1).choose_verdict(question(f"p{n}"), 0) for n in range(50)} == {
        "incorrect"
    }
    assert {SimulatedBehaviour(skip=1).choose_verdict(question(f"p{n}"), 0) for n in range(50)} == {
        "skip"
    }


def test_random_choices_depend_on_seed_and_prediction_only():
    def answers(seed):
        behaviour = SimulatedBehaviour(flip=0.5, delay=1, seed=seed)
        questions = [question(f"p{n}") for n in range(20)]
        return [(behaviour.choose_verdict(q, 0), behaviour.thinking_seconds(q)) for q in questions]

    assert answers(0) == answers(0)
    assert answers(0) != answers(1)


def test_thinking_time_is_half_to_one_and_a_half_of_the_delay():
    times = [SimulatedBehaviour(delay=2).thinking_seconds(question(f"p{n}")) for n in range(500)]
    assert min(times) >= 1
    assert max(times) <= 3
    assert sum(times) / 500 == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize(
    "settings", [{"flip": 1.1}, {"skip": -1}, {"delay": -1}, {"rate": 0}], ids=str
)
def test_setting_out_of_range_is_refused(settings):
    with pytest.raises(SettingError, match="allowed"):
        SimulatedBehaviour(**settings)


def test_annotator_answers_questions_and_counts_verdicts(client, server, sleeps):
    server.ask("a", "gone", "b", "c")
    truth = {"a": 0, "b": 1}.get
    annotator = SimulatedAnnotator(
        client, lambda q: truth(q.prediction_id), SimulatedBehaviour(delay=1)
    )
    n_answered = []

    def on_answer(counts):
        n_answered.append(counts.n_answered)
        if counts.expired:
            server.open = [q for q in server.open if q["prediction_id"] != "gone"]

    assert annotator.run(3, on_answer=on_answer) == AnswerCounts(1, 1, 1, expired=1)
    assert [record["verdict"] for record in server.records] == ["correct", "incorrect", "skip"]
    assert n_answered == [1, 1, 2, 3]
    body = server.records[0]["body"]
    assert body["annotator_kind"] == "CODE"
    assert 500 <= body["lead_time_ms"] <= 1500


def test_annotator_stops_without_questions(client, pauses):
    answers = iter([False, False, True])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitta.client.simulated_annotator._POLL_SECONDS", 0)
        counts = SimulatedAnnotator(client, lambda _: 0).run(should_stop=lambda: next(answers))
    assert counts == AnswerCounts()


def test_rate_limits_answers_per_second(client, server, sleeps, monkeypatch):
    server.ask("a", "b", "c")
    monkeypatch.setattr("bitta.client.simulated_annotator.monotonic", lambda: 100.0)
    SimulatedAnnotator(client, lambda _: 0, SimulatedBehaviour(rate=4)).run(3)
    assert [seconds for seconds in sleeps if seconds] == [0.25, 0.5]  # the clock stands still


def test_truth_file_finds_prediction_ids_and_input_hashes(tmp_path):
    path = tmp_path / "truth.json"
    path.write_text(json.dumps({"p0": 3, "abc": 4}))
    truth = TruthFile(path)
    assert truth(question("p0", sha="abc")) == 3
    assert truth(question("p1", sha="abc")) == 4
    assert truth(question("p1")) is None


def test_growing_truth_file_with_incomplete_line_is_read_again(tmp_path):
    path = tmp_path / "truth.jsonl"
    path.write_text('{"p0": 1}\n{"p1": 2')
    truth = TruthFile(path)
    assert truth(question("p0")) == 1
    assert truth(question("p1")) is None
    path.write_text('{"p0": 1}\n{"p1": 2}\n{"p2": 0, "p3": 5}\n')
    assert [truth(question(f"p{n}")) for n in range(4)] == [1, 2, 0, 5]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[1]", "wrong content"),
        ('{"p": "cat"}', "wrong content"),
        ('{"p": true}', "wrong content"),
        ("{", "is not JSON"),
        (None, "cannot be read: No such file"),
    ],
)
def test_invalid_truth_file_is_refused(tmp_path, content, sentence):
    path = tmp_path / "truth.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=sentence):
        TruthFile(path)
