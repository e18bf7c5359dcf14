"""Tests of recorded and replayed answers."""

import json

import pytest
import torch

from bitta import Session, Simulated
from bitta.errors import FeedbackError, InputError
from bitta.feedback import FeedbackRecorder, FeedbackReplay, SimulatedLabels
from bitta.testing import toy_classifier
from bitta.types import Query


def query(id_, **changes):
    values = {
        "id": id_, "index": id_ % 2, "served_label": 1, "shown_label": 1, "uncertainty": 0.5,
        "input": torch.zeros(1), "step": id_ // 2, "version": 0, "position": 3 * id_,
    }  # fmt: skip
    return Query(**values | changes)


def ask_and_collect(source, batches, start=0):
    """Ask two questions per batch. Return the answers of each collect call."""
    arrived = []
    for batch in range(start, batches):
        source.ask([query(2 * batch), query(2 * batch + 1)])
        arrived.append([(a.query.id, a.correct, a.label) for a in source.collect()])
    return arrived


def labels(**settings):
    return SimulatedLabels([0, 1, 2] * 40, 3, error=0.5, delay=2, answer_every=2, **settings)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    with FeedbackRecorder(labels(), path) as source:
        ask_and_collect(source, 6)
    return path


def test_log_holds_questions_answers_and_collect_calls(tmp_path):
    """Delay 1: question 0 is answered in the second call."""
    path = tmp_path / "log.jsonl"
    with FeedbackRecorder(Simulated([1] * 9, delay=1), path) as source:
        source.ask([query(0, index=5, position=7)])
        source.collect()
        assert path.read_text().count("\n") == 1
        source.collect()
        assert path.read_text().count("\n") == 2
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["bitta"] == "answers"
    assert lines[0]["source"] == "Simulated"
    assert lines[1:] == [
        {"collect": 1, "id": 0, "step": 0, "index": 5, "position": 7, "shown_label": 1,
         "correct": True, "named": None},
        {"end": True, "collects": 2, "asked": 1, "answered": 1},
    ]  # fmt: skip


def test_replay_returns_the_same_answers_in_the_same_calls(log):
    with FeedbackReplay(log) as replay:
        assert ask_and_collect(replay, 6) == ask_and_collect(labels(), 6)


def test_replay_continues_from_its_saved_state(log):
    first, second = FeedbackReplay(log), FeedbackReplay(log)
    arrived = ask_and_collect(first, 3)
    second.load_state_dict(first.state_dict())
    assert arrived + ask_and_collect(second, 6, start=3) == ask_and_collect(labels(), 6)
    second.end()
    log.write_text(log.read_text().replace('"correct": true', '"correct": false', 1))
    with pytest.raises(InputError, match="is not the log that was being replayed"):
        FeedbackReplay(log).load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shown_label": 2}, "question 4 in batch 2 .*: shown_label 2 where the log has 1"),
        ({"position": 9}, "position 9 where the log has 12"),
    ],
)
def test_replay_of_another_question_is_refused(log, changes, message):
    replay = FeedbackReplay(log)
    with pytest.raises(InputError, match=message):
        replay.ask([query(4, **changes)])


def test_replay_of_a_longer_stream_is_refused(log):
    with pytest.raises(InputError, match=r"batch 6 asks question 12, but .* ends after 12 quest"):
        ask_and_collect(FeedbackReplay(log), 7)


def test_replay_of_a_shorter_stream_is_refused_at_the_end(log):
    replay = FeedbackReplay(log)
    ask_and_collect(replay, 3)
    with pytest.raises(InputError, match=r"the stream is over, but .* holds 2 further answers"):
        replay.end()


def test_replayed_answer_without_its_question_is_refused(log):
    replay = FeedbackReplay(log)
    for _ in range(2):
        replay.collect()
    with pytest.raises(InputError, match="answers question 0 in batch 2, where it has not been"):
        replay.collect()


def test_incomplete_log_is_refused_without_partial(log):
    """The answers to batch 2 are lost, one of them in the middle of a line."""
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:3], lines[3][:20]]))
    with pytest.raises(InputError, match="has no end: it was cut after 2 answers; finish the run"):
        FeedbackReplay(log)
    replay = FeedbackReplay(log, partial=True)
    with pytest.warns(UserWarning, match="cut after 2 answers; from batch 3 on, questions get no"):
        arrived = ask_and_collect(replay, 6)
    assert arrived == [[], [], ask_and_collect(labels(), 3)[2], [], [], []]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a log of answers"),
        ('{"format": 2}\n', "is not a log of answers"),
        ("hello\n", "line 1 of .* is not a line of a log"),
        ('{"bitta": "answers", "format": 2}\n{"id": 3}\n', "holds a line that is not an answer"),
        (
            '{"bitta": "answers", "format": 2}\n'
            '{"end": true, "collects": 1, "asked": 3, "answered": 3}\n',
            "holds 0 answers, but its last line counts 3",
        ),
    ],
)
def test_file_that_is_not_a_log_is_refused(tmp_path, content, message):
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        FeedbackReplay(path)
    with pytest.raises(InputError, match="cannot be read"):
        FeedbackReplay(tmp_path / "none.jsonl")


def test_recorder_continues_from_its_saved_state_and_cuts_later_lines(log, tmp_path):
    path = tmp_path / "parts.jsonl"
    first = FeedbackRecorder(labels(), path)
    arrived = ask_and_collect(first, 3)
    state = first.state_dict()
    ask_and_collect(first, 5, start=3)
    second = FeedbackRecorder(labels(), path)
    second.load_state_dict(state)
    arrived += ask_and_collect(second, 6, start=3)
    second.end()
    assert arrived == ask_and_collect(labels(), 6)
    assert path.read_bytes() == log.read_bytes()


def test_recorder_refuses_the_state_of_another_log_or_source(tmp_path):
    path = tmp_path / "log.jsonl"
    source = FeedbackRecorder(labels(), path, settings={"seed": 1})
    ask_and_collect(source, 3)
    state = source.state_dict()
    with pytest.raises(InputError, match="SimulatedLabels and other settings than SimulatedLabels"):
        FeedbackRecorder(labels(), path, settings={"seed": 2}).load_state_dict(state)
    path.write_text(path.read_text().replace("true", "false"))
    with pytest.raises(InputError, match="is not the log that was being written"):
        FeedbackRecorder(labels(), path, settings={"seed": 1}).load_state_dict(state)
    path.unlink()
    with pytest.raises(InputError, match="is not the log that was being written"):
        FeedbackRecorder(labels(), path, settings={"seed": 1}).load_state_dict(state)


def test_existing_log_is_not_overwritten_by_default(log):
    before = log.read_bytes()
    with pytest.raises(InputError, match="already holds a log of the same settings"):
        ask_and_collect(FeedbackRecorder(labels(), log), 1)
    with pytest.raises(InputError, match="already holds something else"):
        ask_and_collect(FeedbackRecorder(Simulated([0] * 9), log, overwrite=True), 1)
    assert log.read_bytes() == before
    with FeedbackRecorder(labels(), log, overwrite=True) as again:
        ask_and_collect(again, 6)
    assert log.read_bytes() == before


def test_path_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "log.jsonl"):
        with pytest.raises(InputError, match=r"the log .* cannot be written \("):
            ask_and_collect(FeedbackRecorder(labels(), path), 1)


def test_no_question_after_the_end_and_no_end_after_an_error(tmp_path):
    path = tmp_path / "log.jsonl"
    source = FeedbackRecorder(Simulated([0] * 9), path)
    ask_and_collect(source, 1)
    with pytest.raises(KeyError), source:
        raise KeyError
    with pytest.raises(InputError, match="has no end"):
        FeedbackReplay(path)
    source.end()
    source.end()
    with pytest.raises(FeedbackError, match="has been ended"):
        source.ask([query(2)])
    assert len(FeedbackReplay(path).state_dict()["digest"]) == 64


def test_session_with_a_recorder_continues_its_log(tmp_path):
    """The session is saved after two of four batches; a third one is lost and repeated."""
    truth = torch.arange(64) % 5
    stream = torch.rand(4, 8, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def recording(name):
        return FeedbackRecorder(Simulated(truth, flip=0.3, delay=1), tmp_path / name)

    with recording("whole") as log, Session(toy_classifier(), feedback=log) as session:
        for inputs in stream:
            session.step(inputs)
    with Session(toy_classifier(), feedback=recording("parts")) as session:
        for number, inputs in enumerate(stream[:3]):
            if number == 2:
                session.save(tmp_path / "saved")
            session.step(inputs)
    with recording("parts") as log:
        again = Session.load(tmp_path / "saved", toy_classifier(), feedback=log)
        for inputs in stream[2:]:
            again.step(inputs)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()
