"""The store does what a plain dictionary would do, in any order of events."""

import json
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import takewhile
from pathlib import Path

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
from server.store.machine_model import Ask, Kept, Model, Said
from server.store.made import SECOND, Watch, database, given, name, served, snapshot

PEOPLE = st.sampled_from(["anna", "anna", "bert", "carl"])
VERDICTS = st.sampled_from(["correct", "incorrect", "skip"])
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Whether a disk keeps what it was told to is not what is tried here."""
PICK = st.integers(0, 10**6)
WORDS = st.lists(st.tuples(PICK, PEOPLE, VERDICTS), min_size=1, max_size=5)
FATES = st.sampled_from([(True, False), (True, False), (False, False), (True, True)]).map(
    lambda fate: dict(zip(("standing", "undone"), fate, strict=True))
)


class Plain(RuleBasedStateMachine):
    """Each rule changes the store and the model; what they tell must be the same."""

    kind = "sqlite"

    def __init__(self):
        super().__init__()
        self.stack = ExitStack()
        self.url = self.stack.enter_context(database(self.kind))
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.watch = Watch()
        self.store = Store.open(self.url, self.folder, clock=self.watch)
        self.model = Model(self.watch)
        self.exported: list[str] = []

    def teardown(self):
        self.store.close()
        self.stack.close()
        shutil.rmtree(self.folder)

    @initialize(gone_back=st.booleans())
    def begin(self, gone_back):
        """With something learned and kept, so that whatever comes next can matter to it."""
        self.keep("source")
        self.serve(3)
        self.ask(0, 1, 0.9, "uncertain", 200, 1)
        self.ask(1, 1, 0.1, "audit", 200, 2)
        words = [(0, "anna", "correct"), (1, "anna", "correct"), (2, "bert", "incorrect")]
        self.answer(words, learn=True)
        self.keep("interval")
        if gone_back:
            self.go_back(0, heard=True)
            self.answer(words[:1], learn=True)

    @precondition(lambda self: self.model.n_served < 4)
    @rule(n=st.integers(1, 2))
    def serve(self, n):
        first = self.model.n_served
        self.store.log_served_batch(served(range(first, first + n)))
        self.model.n_served += n

    @rule(
        pick=PICK,
        step=st.integers(0, 2),
        uncertainty=st.sampled_from([0.1, 0.9]),
        reason=st.sampled_from(["uncertain", "audit"]),
        seconds=st.sampled_from([50, 200]),
        overlap=st.integers(1, 2),
    )
    def ask(self, pick, step, uncertainty, reason, seconds, overlap):
        number = pick % self.model.n_served
        if name(number) in self.model.asks:
            return
        until = self.watch.at + seconds * SECOND
        new = NewQuestion(name(number), step, number, uncertainty, reason, until, overlap)
        self.store.add_questions([new]).result()
        self.model.asks[name(number)] = Ask(new)
        self.model.settle(name(number))

    @rule(who=PEOPLE)
    def lease(self, who):
        held = self.store.lease_question(who, seconds=60).result()
        free = self.model.free_for(who)
        assert (held and held.question.prediction_id) == (free[0] if free else None)
        if held is None:
            return
        assert held.left == len(free)
        ask = self.model.asks[free[0]]
        if who in self.model.holders(ask):
            assert held.lease.token == ask.held[who][0]
        until = min(self.watch.at + 60 * SECOND, ask.new.expires_at)
        assert held.lease.until == until
        ask.held[who] = (held.lease.token, until)

    @rule(words=WORDS, learn=st.booleans())
    def answer(self, words, learn):
        """Some at once, maybe with the step: one that learns from nothing shows little."""
        for pick, who, verdict in words:
            number = pick % self.model.n_served
            ask = self.model.asks.get(name(number))
            token = ask.held[who][0] if ask and who in ask.held and pick % 2 else None
            new = given(number, verdict, by=who, lease=token)
            if self.model.too_late(new, token):
                refused(self.store.add_answer(new), QuestionExpired)
            else:
                record = self.store.add_answer(new).result()
                self.model.say(Said(new, record.id, self.watch.at))
        if learn:
            self.take(None, learn=True)

    @rule(pick=PICK)
    def repeat(self, pick):
        said = self.one_said(pick)
        record = self.store.add_answer(said.given).result()
        assert (record.id, record.repeated) == (said.id, True)
        refused(self.store.add_answer(replace(said.given, comment="other")), IdempotencyConflict)

    @rule(pick=PICK)
    def undo(self, pick):
        said = self.one_said(pick)
        undone = self.store.undo_answer(said.id, by="olga").result()
        assert undone.applied == (said.status == "applied" or said.taken)
        if not said.undone:
            self.model.end(said, undone=True)

    @rule(
        pick=PICK,
        who=st.none() | PEOPLE,
        verdict=VERDICTS,
        seconds=st.sampled_from([-40, 0, 40]),
        fate=FATES,
        after=st.sampled_from([None, 0, 1]),
    )
    def restore(self, pick, who, verdict, seconds, fate, after):
        """An answer of another store, given before or after the last word that is here."""
        id_, by = self.one_said(pick).whose
        at = self.watch.at + seconds * SECOND
        new = given(int(id_[1:]), verdict, by=who or by, answered_at=at)
        said = Said(new, f"I{len(self.model.said):025d}", at)
        replaced = None if after is None else self.one_said(pick + after).id
        told = fate | {"supersedes_id": replaced}
        restored = self.store.import_answer(parse_exported_answer(line_of(said, **told))).result()
        assert not restored.record.repeated
        assert restored.has_ended_answer == self.model.restore(said, **told)

    @rule(pick=PICK, fate=FATES)
    def restore_again(self, pick, fate):
        """One that is here, and that may have ended there."""
        said = self.one_said(pick)
        restored = self.store.import_answer(parse_exported_answer(line_of(said, **fate))).result()
        assert (restored.record.id, restored.record.repeated) == (said.id, True)
        ends = fate["undone"] or not fate["standing"]
        assert restored.has_ended_answer == (said.standing and ends)
        if ends:
            self.model.end(said, undone=fate["undone"] or said.undone)
        other = {"idempotency_key": "another"}
        for kind, changed in (
            (IdempotencyConflict, {"comment": "other"}),
            (IdempotencyConflict, {"answered_at": said.at + 1}),
            (IdempotencyConflict, other),
            (UnknownPrediction, other | {"id": None, "prediction_id": name(999)}),
        ):
            refused(self.store.import_answer(parse_exported_answer(line_of(said, **changed))), kind)

    @rule()
    def import_own(self):
        """What was exported before brings nothing back and ends nothing."""
        for line in self.exported:
            restored = self.store.import_answer(parse_exported_answer(line)).result()
            assert (restored.record.repeated, restored.has_ended_answer) == (True, False)
        self.exported = list(export_records("jsonl", self.store.all_feedback()))

    @rule(limit=st.sampled_from([None, None, 2]), learn=st.booleans())
    def take(self, limit, learn):
        taken = self.store.claim_answers(limit).result()
        for said in self.model.free_to_take():
            self.model.pass_on(said)
        mine = self.model.free_to_take()[:limit]
        assert [one.feedback_id for one in taken] == [said.id for said in mine]
        for said in mine:
            said.taken = True
        self.model.overruling |= {one.feedback_id for one in taken if one.replaces_answer}
        if learn:
            self.learn()

    @rule()
    def learn(self):
        self.model.live.step += 1
        mine = self.model.taken()
        step = LearnedStep(self.model.live.version, [said.id for said in mine], {}, 0.1)
        self.store.log_learned_step(step).result()
        self.model.learn(mine)

    @rule(everything=st.booleans())
    def release(self, everything):
        mine = [said.id for said in self.model.taken()]
        (
            self.store.release_all_answers() if everything else self.store.release_answers(mine)
        ).result()
        self.model.release()

    @rule(reason=st.sampled_from(["interval", "interval", "asked"]), n=st.integers(1, 2))
    def keep(self, reason, n=2):
        """Of those that nobody asked for, the last `n` stay."""
        new = snapshot(len(self.model.snapshots), self.model.live.version, reason)
        self.store.add_snapshot(new).result()
        self.model.keep(Kept(new.id, reason, self.model.live.copy()))
        self.drop(self.model.old(keep=n))

    @rule(pick=PICK, heard=st.booleans())
    def go_back(self, pick, heard):
        """To any snapshot, as an operator may; where it is not heard of, nothing has happened."""
        self.release(everything=True)
        kept = self.model.kept()
        to = kept[pick % len(kept)]
        begun = self.roll_back(to, again=False)
        if heard:
            self.model.go_on_from(begun.state, begun.state.lineage)
        else:
            self.drop([begun])

    @rule()
    def fail(self):
        """In the middle of a step: what the last snapshot does not hold is learned again."""
        to = self.model.kept()[-1]
        begun = self.roll_back(to, again=True)
        reentered = self.store.last_event(["rollback"]).body["reentered"]
        assert reentered == self.model.forget_since(to.state)
        self.model.go_on_from(begun.state, begun.state.lineage)

    @rule(seconds=st.sampled_from([1, 30, 70]), expire=st.booleans())
    def wait(self, seconds, expire):
        self.watch.move(seconds)
        if expire:
            assert set(self.store.expire_questions().result()) == self.model.expire()

    @rule()
    def restart(self):
        self.store.close()
        self.store = Store.open(self.url, self.folder, clock=self.watch)
        self.model.release()

    @rule(n_lost=st.integers(0, 2), in_order=st.booleans())
    def recover(self, n_lost, in_order):
        """From the newest snapshot whose file is there; that of a rollback is."""
        self.restart()
        lost = self.model.kept()[1:][::-1][:n_lost]
        lost = list(takewhile(lambda one: one.reason != "rollback", lost))
        self.drop(lost)
        to = self.model.kept()[-1]
        same = in_order and not lost and to.state.lineage == self.model.live.lineage
        lineage = None if same else self.model.newest + 1
        recovered = self.store.log_restart(to.id, lineage=lineage).result()
        assert list(recovered.pending_again) == self.model.forget_since(to.state)
        self.model.go_on_from(to.state, lineage or to.state.lineage)

    @rule(content=st.sampled_from([b"cat", b"dog"]))
    def keep_image(self, content):
        for _ in range(2):
            (record,) = self.store.keep_images([NewImage(content, (1, 3), "uint8")]).result()
            self.model.pictures.setdefault(content, self.watch.at)
            assert (record.kept_at, record.deleted_at) == (self.model.pictures[content], None)
            self.watch.move(1)

    @rule()
    def delete_images(self):
        for content in (b"cat", b"dog"):
            deleted = self.store.delete_image(sha256(content).hexdigest(), by="olga").result()
            assert deleted == (content in self.model.pictures)
            if deleted:
                del self.model.pictures[content]
                self.model.deleted[content] = self.watch.at

    @invariant()
    def same_answers(self):
        stored = list(self.store.all_feedback())
        assert [told(one) for one in stored] == [said.told for said in self.model.said]
        waiting = [said.id for said in self.model.waiting()]
        assert [one.feedback_id for one in self.store.pending_answers()] == waiting

    @invariant()
    def the_memory_is_what_was_said_last_on_the_way_to_it(self):
        memory, learned = self.model.live.memory, self.model.learned()
        held = {whose: said.given.verdict for whose, said in learned.items()}
        assert sorted(memory) == sorted(held.items())
        for said in self.model.said:
            if said.standing and said.version in self.model.live.way:
                assert learned[said.whose] is said

    @invariant()
    def same_snapshots(self):
        stored = self.store.snapshots(include_dropped=True)
        told = [(one.id, one.model_version, one.dropped_at) for one in stored]
        assert told == [(one.id, one.state.version, one.dropped) for one in self.model.snapshots]
        kept = [one.id for one in self.model.kept()]
        assert [one.id for one in self.store.snapshots()] == kept
        assert self.store.newest_snapshot().id == kept[-1]
        assert self.store.newest_lineage() == self.model.newest

    @invariant()
    def same_images(self):
        files = [path.read_bytes() for path in self.folder.glob("images/*/*/*")]
        assert sorted(files) == sorted(self.model.pictures)
        for content in self.model.pictures.keys() | self.model.deleted.keys():
            record = self.store.find_image(sha256(content).hexdigest())
            since = self.model.pictures.get(content)
            assert record.deleted_at == (None if since else self.model.deleted[content])
            assert since in (None, record.kept_at)

    @invariant()
    def same_questions(self):
        stored = {one.prediction_id: one.status for one in self.store.questions(limit=1000)}
        assert stored == {id_: ask.status for id_, ask in self.model.asks.items()}

    @invariant()
    def nobody_beyond_overlap(self):
        for ask in self.model.asks.values():
            assert len(self.model.holders(ask)) <= ask.new.overlap

    def roll_back(self, to, *, again):
        """Begin a lineage from a snapshot, with one of its own."""
        state = to.state.copy(lineage=self.model.newest + 1)
        new = snapshot(len(self.model.snapshots), state.version, "rollback")
        rollback = Rollback(to.id, new, self.model.live.version, "?", "olga", again)
        self.store.log_rollback(rollback).result()
        self.model.newest = state.lineage
        return self.model.keep(Kept(new.id, "rollback", state))

    def drop(self, snapshots):
        self.store.drop_snapshots([one.id for one in snapshots]).result()
        for one in snapshots:
            one.dropped = self.watch.at

    def one_said(self, pick):
        return self.model.said[pick % len(self.model.said)]


def line_of(said, **changed):
    """An answer as a file has it."""
    return json.dumps(asdict(said.given) | {"id": said.id, "answered_at": said.at} | changed)


def told(record):
    """What the model says too."""
    fate = (record.status, record.standing, record.undone, record.applied_in_version)
    return (record.id, record.supersedes_id, *fate)


def refused(change, kind):
    error = change.exception()
    assert isinstance(error, kind), error


def test_the_store_is_a_dictionary_that_lasts(kind):
    machine = type("Machine", (Plain,), {"kind": kind})
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
