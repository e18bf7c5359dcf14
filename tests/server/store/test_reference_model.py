"""Test that the store agrees with a reference model after any sequence of changes."""

import json
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bitta.server.store import (
    IdempotencyConflict,
    LearnedStep,
    NewImage,
    NewQuestion,
    QuestionExpired,
    Rollback,
    Store,
    UnknownPrediction,
)
from bitta.server.store.exports import export_records, parse_exported_answer
from server.store.factories import (
    SECOND,
    ManualClock,
    new_answer,
    new_snapshot,
    pending_answers,
    prediction_id,
    served_batch,
    temporary_database,
)
from server.store.reference_model import ModelAnswer, ModelQuestion, ModelSnapshot, ReferenceModel

pytestmark = pytest.mark.full

ANNOTATORS = st.sampled_from(["anna", "anna", "bert", "carl"])
VERDICTS = st.sampled_from(["correct", "incorrect", "skip"])
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Folder in memory, if there is one. This test does not need durable files."""
INDEX = st.integers(0, 10**6)
ANSWERS = st.lists(st.tuples(INDEX, ANNOTATORS, VERDICTS), min_size=1, max_size=5)
STATES = st.sampled_from([(True, False), (True, False), (False, False), (True, True)]).map(
    lambda state: dict(zip(("standing", "undone"), state, strict=True))
)


class StoreMachine(RuleBasedStateMachine):
    """State machine. Each rule changes the store and the model; the invariants compare them."""

    kind = "sqlite"

    def __init__(self):
        super().__init__()
        self.stack = ExitStack()
        self.url = self.stack.enter_context(temporary_database(self.kind))
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.clock = ManualClock()
        self.store = Store.open(self.url, self.folder, clock=self.clock)
        self.model = ReferenceModel(self.clock)
        self.exported: list[str] = []

    def teardown(self):
        self.store.close()
        self.stack.close()
        shutil.rmtree(self.folder)

    @initialize(after_rollback=st.booleans())
    def start_with_learned_answers(self, after_rollback):
        self.take_snapshot("source")
        self.serve(3)
        self.ask_question(0, 1, 0.9, "uncertain", 200, 1)
        self.ask_question(1, 1, 0.1, "audit", 200, 2)
        answers = [(0, "anna", "correct"), (1, "anna", "correct"), (2, "bert", "incorrect")]
        self.add_answers(answers, learn=True)
        self.take_snapshot("interval")
        if after_rollback:
            self.roll_back(0, is_confirmed=True)
            self.add_answers(answers[:1], learn=True)

    @precondition(lambda self: self.model.n_served < 4)
    @rule(n=st.integers(1, 2))
    def serve(self, n):
        first = self.model.n_served
        self.store.log_served_batch(served_batch(range(first, first + n)))
        self.model.n_served += n

    @rule(
        index=INDEX,
        window=st.integers(0, 2),
        uncertainty=st.sampled_from([0.1, 0.9]),
        reason=st.sampled_from(["uncertain", "audit"]),
        seconds=st.sampled_from([50, 200]),
        overlap=st.integers(1, 2),
    )
    def ask_question(self, index, window, uncertainty, reason, seconds, overlap):
        number = index % self.model.n_served
        if prediction_id(number) in self.model.questions:
            return
        until = self.clock.at + seconds * SECOND
        new = NewQuestion(
            prediction_id(number), window, number, uncertainty, reason, until, overlap
        )
        self.store.add_questions([new]).result()
        self.model.questions[prediction_id(number)] = ModelQuestion(new)
        self.model.update_question_status(prediction_id(number))

    @rule(annotator=ANNOTATORS)
    def lease(self, annotator):
        held = self.store.lease_question(annotator, seconds=60).result()
        free = self.model.available_to(annotator)
        assert (held and held.question.prediction_id) == (free[0] if free else None)
        if held is None:
            return
        assert held.left == len(free)
        question = self.model.questions[free[0]]
        if annotator in self.model.holders(question):
            assert held.lease.token == question.leases[annotator][0]
        until = min(self.clock.at + 60 * SECOND, question.new.expires_at)
        assert held.lease.until == until
        question.leases[annotator] = (held.lease.token, until)

    @rule(answers=ANSWERS, learn=st.booleans())
    def add_answers(self, answers, learn):
        """Add several answers, often with a step: few sequences would learn from any otherwise."""
        for index, annotator, verdict in answers:
            number = index % self.model.n_served
            question = self.model.questions.get(prediction_id(number))
            lease = question and question.leases.get(annotator)
            token = lease[0] if lease and index % 2 else None
            new = new_answer(number, verdict, by=annotator, lease=token)
            if self.model.is_too_late(new, token):
                assert_refused(self.store.add_answer(new), QuestionExpired)
            else:
                record = self.store.add_answer(new).result()
                self.model.add_answer(ModelAnswer(new, record.id, self.clock.at))
        if learn:
            self.claim(None, learn=True)

    @rule(index=INDEX)
    def repeat_answer(self, index):
        answer = self.pick_answer(index)
        record = self.store.add_answer(answer.new).result()
        assert (record.id, record.repeated) == (answer.id, True)
        assert_refused(
            self.store.add_answer(replace(answer.new, comment="other")), IdempotencyConflict
        )

    @rule(index=INDEX)
    def undo(self, index):
        answer = self.pick_answer(index)
        undone = self.store.undo_answer(answer.id, by="olga").result()
        assert undone.applied == (answer.status == "applied" or answer.is_claimed)
        if not answer.undone:
            self.model.end(answer, undone=True)

    @rule(
        index=INDEX,
        annotator=st.none() | ANNOTATORS,
        verdict=VERDICTS,
        seconds=st.sampled_from([-40, 0, 40]),
        state=STATES,
        after=st.sampled_from([None, 0, 1]),
    )
    def import_answer(self, index, annotator, verdict, seconds, state, after):
        """Import an answer of another store, given before or after the standing one."""
        id_, by = self.pick_answer(index).subject
        at = self.clock.at + seconds * SECOND
        new = new_answer(int(id_[1:]), verdict, by=annotator or by, answered_at=at)
        answer = ModelAnswer(new, f"I{len(self.model.answers):025d}", at)
        replaced = None if after is None else self.pick_answer(index + after).id
        fields = state | {"supersedes_id": replaced}
        result = self.import_line(exported_line(answer, **fields)).result()
        assert not result.record.repeated
        assert result.replaced_standing_answer == self.model.import_answer(answer, **fields)

    @rule(index=INDEX, state=STATES)
    def import_known_answer(self, index, state):
        """Import a stored answer, which may have ended in the other store."""
        answer = self.pick_answer(index)
        result = self.import_line(exported_line(answer, **state)).result()
        assert (result.record.id, result.record.repeated) == (answer.id, True)
        ends = state["undone"] or not state["standing"]
        assert result.replaced_standing_answer == (answer.standing and ends)
        if ends:
            self.model.end(answer, undone=state["undone"] or answer.undone)
        other = {"idempotency_key": "another"}
        for error_type, changed in (
            (IdempotencyConflict, {"comment": "other"}),
            (IdempotencyConflict, {"answered_at": answer.at + 1}),
            (IdempotencyConflict, other),
            (UnknownPrediction, other | {"id": None, "prediction_id": prediction_id(999)}),
        ):
            assert_refused(self.import_line(exported_line(answer, **changed)), error_type)

    @rule()
    def import_own_export(self):
        """Import an earlier export of the same store, which changes nothing."""
        for line in self.exported:
            result = self.import_line(line).result()
            assert (result.record.repeated, result.replaced_standing_answer) == (True, False)
        self.exported = list(export_records("jsonl", self.store.all_feedback()))

    @rule(limit=st.sampled_from([None, None, 2]), learn=st.booleans())
    def claim(self, limit, learn):
        received = self.store.claim_answers(limit).result()
        for answer in self.model.claimable():
            self.model.replace_if_equal(answer)
        claimed = self.model.claimable()[:limit]
        assert [one.feedback_id for one in received] == [answer.id for answer in claimed]
        for answer in claimed:
            answer.is_claimed = True
        self.model.replacing |= {one.feedback_id for one in received if one.replaces_answer}
        if learn:
            self.learn()

    @rule()
    def learn(self):
        self.model.learner.step += 1
        claimed = self.model.claimed()
        step = LearnedStep(self.model.learner.version, [answer.id for answer in claimed], {}, 0.1)
        self.store.log_learned_step(step).result()
        self.model.learn(claimed)

    @rule()
    def release(self):
        self.store.release_answers().result()
        self.model.release()

    @rule(reason=st.sampled_from(["interval", "interval", "asked"]), n=st.integers(1, 2))
    def take_snapshot(self, reason, n=2):
        """Take a snapshot, and drop those of regular intervals except for the last `n`."""
        new = new_snapshot(len(self.model.snapshots), self.model.learner.version, reason)
        self.store.add_snapshot(new).result()
        self.model.add_snapshot(ModelSnapshot(new.id, reason, self.model.learner.copy()))
        self.drop(self.model.outdated_snapshots(n))

    @rule(index=INDEX, is_confirmed=st.booleans())
    def roll_back(self, index, is_confirmed):
        """Return to any snapshot. Without a confirmation the learner drops the new snapshot."""
        self.release()
        kept = self.model.kept_snapshots()
        to = kept[index % len(kept)]
        begun = self.begin_lineage(to, repeats_answers=False)
        if is_confirmed:
            self.model.continue_from(begun.state, begun.state.lineage)
        else:
            self.drop([begun])

    @rule()
    def fail_step(self):
        """Fail during a step. Answers after the last snapshot become pending."""
        to = self.model.kept_snapshots()[-1]
        begun = self.begin_lineage(to, repeats_answers=True)
        pending_again = self.store.last_event(["rollback"]).body["pending_again"]
        assert pending_again == self.model.make_pending_after(to.state)
        self.model.continue_from(begun.state, begun.state.lineage)

    @rule(seconds=st.sampled_from([1, 30, 70]), expire=st.booleans())
    def move_clock(self, seconds, expire):
        self.clock.move(seconds)
        if expire:
            assert set(self.store.expire_questions().result()) == self.model.expire_questions()

    @rule()
    def restart(self):
        self.store.close()
        self.store = Store.open(self.url, self.folder, clock=self.clock)
        self.model.release()

    @rule(n_lost=st.integers(0, 2), in_order=st.booleans())
    def restart_from_snapshot(self, n_lost, in_order):
        """Restart from the newest snapshot with a file. Snapshots of rollbacks are never lost."""
        self.restart()
        lost = self.model.kept_snapshots()[1:][::-1][:n_lost]
        lost = list(takewhile(lambda one: one.reason != "rollback", lost))
        self.drop(lost)
        to = self.model.kept_snapshots()[-1]
        same = in_order and not lost and to.state.lineage == self.model.learner.lineage
        lineage = None if same else self.model.newest_lineage + 1
        recovered = self.store.log_restart(to.id, lineage=lineage).result()
        assert list(recovered.pending_again) == self.model.make_pending_after(to.state)
        self.model.continue_from(to.state, lineage or to.state.lineage)

    @rule(content=st.sampled_from([b"cat", b"dog"]))
    def keep_image(self, content):
        for _ in range(2):
            (record,) = self.store.keep_images([NewImage(content, (1, 3), "uint8")]).result()
            self.model.images.setdefault(content, self.clock.at)
            assert (record.kept_at, record.deleted_at) == (self.model.images[content], None)
            self.clock.move(1)

    @rule()
    def delete_images(self):
        for content in (b"cat", b"dog"):
            deleted = self.store.delete_image(sha256(content).hexdigest(), by="olga").result()
            assert deleted == (content in self.model.images)
            if deleted:
                del self.model.images[content]
                self.model.deleted_images[content] = self.clock.at

    @invariant()
    def same_answers(self):
        stored = list(self.store.all_feedback())
        assert [record_state(one) for one in stored] == [
            answer.state for answer in self.model.answers
        ]
        waiting = [answer.id for answer in self.model.pending()]
        assert [one.feedback_id for one in pending_answers(self.store)] == waiting

    @invariant()
    def memory_holds_the_last_learned_answers(self):
        memory, learned = self.model.learner.memory, self.model.learned()
        held = {subject: answer.new.verdict for subject, answer in learned.items()}
        assert sorted(memory) == sorted(held.items())
        for answer in self.model.answers:
            if answer.standing and answer.version in self.model.learner.steps:
                assert learned[answer.subject] is answer

    @invariant()
    def same_snapshots(self):
        stored = self.store.snapshots(include_dropped=True)
        rows = [(one.id, one.model_version, one.dropped_at) for one in stored]
        assert rows == [(one.id, one.state.version, one.dropped_at) for one in self.model.snapshots]
        kept = [one.id for one in self.model.kept_snapshots()]
        assert [one.id for one in self.store.snapshots()] == kept
        assert self.store.newest_lineage() == self.model.newest_lineage

    @invariant()
    def same_images(self):
        files = [path.read_bytes() for path in self.folder.glob("images/*/*/*")]
        assert sorted(files) == sorted(self.model.images)
        for content in self.model.images.keys() | self.model.deleted_images.keys():
            record = self.store.find_image(sha256(content).hexdigest())
            since = self.model.images.get(content)
            assert record.deleted_at == (None if since else self.model.deleted_images[content])
            assert since in (None, record.kept_at)

    @invariant()
    def same_questions(self):
        stored = {one.prediction_id: one.status for one in self.store.questions(limit=1000)}
        assert stored == {id_: question.status for id_, question in self.model.questions.items()}

    @invariant()
    def overlap_limits_the_leases(self):
        for question in self.model.questions.values():
            assert len(self.model.holders(question)) <= question.new.overlap

    def begin_lineage(self, to, *, repeats_answers):
        """Log a rollback to a snapshot, with the first snapshot of the new lineage."""
        state = to.state.copy(lineage=self.model.newest_lineage + 1)
        new = new_snapshot(len(self.model.snapshots), state.version, "rollback")
        rollback = Rollback(to.id, new, self.model.learner.version, "?", "olga", repeats_answers)
        self.store.log_rollback(rollback).result()
        self.model.newest_lineage = state.lineage
        return self.model.add_snapshot(ModelSnapshot(new.id, "rollback", state))

    def drop(self, snapshots):
        self.store.drop_snapshots([one.id for one in snapshots]).result()
        for one in snapshots:
            one.dropped_at = self.clock.at

    def import_line(self, line):
        return self.store.import_answer(parse_exported_answer(line))

    def pick_answer(self, index):
        return self.model.answers[index % len(self.model.answers)]


def exported_line(answer, **changed):
    """Return the line of an answer in an export."""
    return json.dumps(asdict(answer.new) | {"id": answer.id, "answered_at": answer.at} | changed)


def record_state(record):
    """Return the fields that `ModelAnswer.state` holds."""
    state = (record.status, record.standing, record.undone, record.applied_in_version)
    return (record.id, record.supersedes_id, *state)


def assert_refused(change, error_type):
    error = change.exception()
    assert isinstance(error, error_type), error


def test_store_agrees_with_the_reference_model(kind):
    machine = type("Machine", (StoreMachine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
