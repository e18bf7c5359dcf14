"""The simulated annotator."""

import json

import pytest

from bitta.client import Question
from bitta.client.simulated import Habits, SimulatedAnnotator, Tally, TruthFile
from bitta.errors import InputError, SettingError


def question(id_="p0", class_index=0, sha=None):
    return Question(
        prediction_id=id_, label="cat", class_index=class_index, confidence=0.5, uncertainty=0.5,
        model_version="1.0", asked_at=0, expires_at=1, lease="l", lease_until=1, left=1,
        has_image=False, input_sha256=sha,
    )  # fmt: skip


@pytest.fixture
def naps(monkeypatch):
    slept = []
    monkeypatch.setattr("bitta.client.simulated.sleep", slept.append)
    return slept


def share(verdicts, wanted):
    return sum(verdict == wanted for verdict in verdicts) / len(verdicts)


def test_without_habits_the_truth_is_told():
    assert Habits().verdict(question(class_index=1), 1) == "correct"
    assert Habits().verdict(question(class_index=1), 0) == "incorrect"


def test_who_does_not_know_skips():
    assert Habits().verdict(question(), None) == "skip"


def test_errors_and_skips_come_as_often_as_said():
    """Of 2000: a tenth is 200 ± 13, of the 1900 that are not skipped 190 ± 13 are wrong."""
    habits = Habits(flip=0.1, skip=0.05)
    verdicts = [habits.verdict(question(f"p{n}"), 0) for n in range(2000)]
    assert share(verdicts, "skip") == pytest.approx(0.05, abs=0.02)
    assert share(verdicts, "incorrect") == pytest.approx(0.095, abs=0.03)
    assert {Habits(flip=1).verdict(question(f"p{n}"), 0) for n in range(50)} == {"incorrect"}
    assert {Habits(skip=1).verdict(question(f"p{n}"), 0) for n in range(50)} == {"skip"}


def test_chance_depends_on_seed_and_prediction_alone():
    def told(seed):
        habits = Habits(flip=0.5, delay=1, seed=seed)
        return [(habits.verdict(question(f"p{n}"), 0), habits.thinks(question(f"p{n}")))
                for n in range(20)]  # fmt: skip

    assert told(0) == told(0)
    assert told(0) != told(1)


def test_thought_takes_from_half_to_one_and_a_half_of_the_delay():
    times = [Habits(delay=2).thinks(question(f"p{n}")) for n in range(500)]
    assert min(times) >= 1
    assert max(times) <= 3
    assert sum(times) / 500 == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize(
    "settings", [{"flip": 1.1}, {"skip": -1}, {"delay": -1}, {"rate": 0}], ids=str
)
def test_habits_out_of_range_are_refused(settings):
    with pytest.raises(SettingError, match="allowed"):
        Habits(**settings)


def test_it_answers_what_is_asked_and_counts(client, server, naps):
    server.ask("a", "gone", "b", "c")
    truth = {"a": 0, "b": 1}.get
    annotator = SimulatedAnnotator(client, lambda q: truth(q.prediction_id), Habits(delay=1))
    seen = []

    def on_answer(tally):
        seen.append(tally.answered)
        if tally.expired:
            server.open = [q for q in server.open if q["prediction_id"] != "gone"]

    assert annotator.run(3, on_answer=on_answer) == Tally(1, 1, 1, expired=1)
    assert [record["verdict"] for record in server.records] == ["correct", "incorrect", "skip"]
    assert seen == [1, 1, 2, 3]
    body = server.records[0]["body"]
    assert body["annotator_kind"] == "CODE"
    assert 500 <= body["lead_time_ms"] <= 1500


def test_it_stops_when_told_though_nothing_is_asked(client, pauses):
    answers = iter([False, False, True])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bitta.client.simulated._LISTEN", 0)
        tally = SimulatedAnnotator(client, lambda _: 0).run(stop=lambda: next(answers))
    assert tally == Tally()


def test_the_rate_is_kept(client, server, naps, monkeypatch):
    server.ask("a", "b", "c")
    monkeypatch.setattr("bitta.client.simulated.monotonic", lambda: 100.0)
    SimulatedAnnotator(client, lambda _: 0, Habits(rate=4)).run(3)
    assert [nap for nap in naps if nap] == [0.25, 0.5]  # the clock stands still


def test_a_truth_file_finds_predictions_and_inputs(tmp_path):
    path = tmp_path / "truth.json"
    path.write_text(json.dumps({"p0": 3, "abc": 4}))
    truth = TruthFile(path)
    assert truth(question("p0", sha="abc")) == 3
    assert truth(question("p1", sha="abc")) == 4
    assert truth(question("p1")) is None


def test_a_truth_file_may_grow_and_end_in_the_middle_of_a_line(tmp_path):
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
        ("[1]", "holds something else"),
        ('{"p": "cat"}', "holds something else"),
        ('{"p": true}', "holds something else"),
        ("{", "is not JSON"),
        (None, "cannot be read: No such file"),
    ],
)
def test_what_is_no_truth_is_refused(tmp_path, content, sentence):
    path = tmp_path / "truth.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=sentence):
        TruthFile(path)
