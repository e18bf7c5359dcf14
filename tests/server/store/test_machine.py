"""The store does what a plain dictionary would do, in any order of events."""

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
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

from bitta.server.store import Conflict, Expired, LearnedStep, NewQuestion, Store
from server.store.made import SECOND, Watch, database, given, name, served, snapshot

PEOPLE = st.sampled_from(["anna", "bert", "carl"])
VERDICTS = st.sampled_from(["correct", "incorrect", "skip"])
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Whether a disk keeps what it was told to is not what is tried here."""
PICK = st.integers(0, 10**6)


@dataclass
class Ask:
    """A question of the plain model."""

    new: NewQuestion
    status: str = "open"
    held: dict = field(default_factory=dict)
    """Annotator to token and moment."""


@dataclass
class Said:
    """An answer of the plain model."""

    given: object
    id: str
    supersedes: str | None
    status: str = "pending"
    standing: bool = True
    undone: bool = False
    taken: bool = False
    version: tuple | None = None

    @property
    def used(self):
        return self.given.verdict != "skip"

    @property
    def whose(self):
        return self.given.prediction_id, self.given.annotator_id

    def retire(self):
        self.standing = False
        if self.status == "pending" and not self.taken:
            self.status = "superseded"

    def again(self):
        self.status = "pending" if self.standing else "superseded"
        self.taken, self.version = False, None


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
        self.n_served = 0
        self.asks: dict[str, Ask] = {}
        self.said: list[Said] = []
        self.snapshots: list[tuple] = []
        self.step = 0
        self.memory: list[tuple] = []
        """Verdicts by whose they are, as a learner does what the store tells it."""
        self.overruling: set[str] = set()

    def teardown(self):
        self.store.close()
        self.stack.close()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self):
        self.serve(3)
        self.ask(0, 1, 0.9, "uncertain", 200, 1)
        self.ask(1, 1, 0.1, "audit", 200, 2)

    @precondition(lambda self: self.n_served < 6)
    @rule(n=st.integers(1, 3))
    def serve(self, n):
        self.store.served(served(range(self.n_served, self.n_served + n)))
        self.n_served += n

    @precondition(lambda self: self.n_served)
    @rule(
        pick=PICK,
        step=st.integers(0, 2),
        uncertainty=st.sampled_from([0.1, 0.9]),
        reason=st.sampled_from(["uncertain", "audit"]),
        seconds=st.sampled_from([50, 200]),
        overlap=st.integers(1, 2),
    )
    def ask(self, pick, step, uncertainty, reason, seconds, overlap):
        number = pick % self.n_served
        if name(number) in self.asks:
            return
        until = self.watch.at + seconds * SECOND
        new = NewQuestion(name(number), step, number, uncertainty, reason, until, overlap)
        self.store.asked([new]).result()
        self.asks[name(number)] = Ask(new)
        self.settle(name(number))

    @rule(who=PEOPLE)
    def lease(self, who):
        held = self.store.lease(who, seconds=60).result()
        free = sorted(
            (self.rank(ask, who), id_) for id_, ask in self.asks.items() if self.free(ask, who)
        )
        assert (held and held.question.prediction_id) == (free[0][1] if free else None)
        if held is None:
            return
        assert held.left == len(free)
        mine = self.asks[held.question.prediction_id].held
        if who in self.holders(self.asks[held.question.prediction_id]):
            assert held.token == mine[who][0]
        until = min(self.watch.at + 60 * SECOND, held.question.expires_at)
        assert held.until == until
        mine[who] = (held.token, until)

    @precondition(lambda self: self.n_served)
    @rule(pick=PICK, who=PEOPLE, verdict=VERDICTS, with_lease=st.booleans())
    def answer(self, pick, who, verdict, with_lease):
        id_ = name(pick % self.n_served)
        ask = self.asks.get(id_)
        token = ask.held[who][0] if ask and who in ask.held and with_lease else None
        new = given(pick % self.n_served, verdict, by=who, lease=token)
        before = next((s for s in self.standing(id_) if s.given.annotator_id == who), None)
        if before is None and ask is not None and self.too_late(ask, who, token):
            self.refused(new, Expired)
            return
        record = self.store.answer(new).result()
        assert record.supersedes_id == (before.id if before else None)
        if before is not None:
            before.retire()
        self.said.append(Said(new, record.id, record.supersedes_id))
        if ask is not None:
            ask.held.pop(who, None)
            self.settle(id_)

    @precondition(lambda self: self.said)
    @rule(pick=PICK)
    def repeat(self, pick):
        said = self.said[pick % len(self.said)]
        record = self.store.answer(said.given).result()
        assert (record.id, record.repeated) == (said.id, True)

    @precondition(lambda self: self.said)
    @rule(pick=PICK)
    def repeat_otherwise(self, pick):
        old = self.said[pick % len(self.said)].given
        number = int(old.prediction_id[1:])
        by, key = old.annotator_id, old.idempotency_key
        self.refused(given(number, old.verdict, by=by, key=key, comment="other"), Conflict)

    @precondition(lambda self: self.said)
    @rule(pick=PICK)
    def undo(self, pick):
        said = self.said[pick % len(self.said)]
        undone = self.store.undo(said.id, by="olga").result()
        assert undone.applied == (said.status == "applied" or said.taken)
        assert undone.repeated == said.undone
        if not said.undone:
            said.undone = True
            said.retire()
            self.settle(said.given.prediction_id)

    @rule(limit=st.sampled_from([None, 1, 2]))
    def take(self, limit):
        taken = self.store.take(limit).result()
        for said in self.free_to_take():
            self.pass_on(said)
        mine = self.free_to_take()[:limit]
        assert [one.feedback_id for one in taken] == [said.id for said in mine]
        for said in mine:
            said.taken = True
        self.overruling |= {one.feedback_id for one in taken if one.overrules}

    @rule()
    def learn(self):
        self.step += 1
        mine = [said for said in self.said if said.taken]
        version = f"1.{self.step}"
        self.store.learned(LearnedStep(version, [said.id for said in mine], {}, 0.1)).result()
        for said in mine:
            said.status, said.taken, said.version = "applied", False, (1, self.step)
            if said.id in self.overruling:
                opposite = {"correct": "incorrect", "incorrect": "correct"}[said.given.verdict]
                self.memory.remove((said.whose, opposite))
            self.memory.append((said.whose, said.given.verdict))
        self.overruling.clear()

    @rule()
    def release(self):
        mine = [said for said in self.said if said.taken]
        self.store.release([said.id for said in mine]).result()
        self.overruling.clear()
        for said in mine:
            said.again()

    @rule()
    def keep(self):
        new = snapshot(len(self.snapshots), f"1.{self.step}")
        self.store.snapshot(new).result()
        self.snapshots.append((new.id, self.step, list(self.memory)))

    @rule(seconds=st.sampled_from([1, 30, 70]))
    def wait(self, seconds):
        self.watch.move(seconds)

    @rule()
    def expire(self):
        over = {
            id_
            for id_, ask in self.asks.items()
            if ask.status == "open" and ask.new.expires_at <= self.watch.at
        }
        assert set(self.store.expire().result()) == over
        for id_ in over:
            self.asks[id_].status = "expired"
            self.asks[id_].held.clear()

    @rule()
    def restart(self):
        self.store.close()
        self.store = Store.open(self.url, self.folder, clock=self.watch)
        self.overruling.clear()
        for said in self.said:
            if said.taken:
                said.again()

    @precondition(lambda self: self.snapshots)
    @rule()
    def recover(self):
        self.restart()
        id_, step, memory = self.snapshots[-1]
        after = [s for s in self.said if s.status == "applied" and s.version[1] > step]
        recovered = self.store.recovered(id_).result()
        assert recovered.reentered == tuple(said.id for said in after if said.standing)
        for said in after:
            said.again()
        self.step, self.memory = step, list(memory)

    @invariant()
    def same_answers(self):
        stored = list(self.store.all_feedback())
        assert [self.told(record) for record in stored] == [self.plain(said) for said in self.said]
        assert [one.feedback_id for one in self.store.pending()] == [s.id for s in self.waiting()]

    @invariant()
    def nobody_is_in_the_memory_twice_about_the_same(self):
        held = [whose for whose, _ in self.memory]
        assert len(set(held)) == len(held)

    @invariant()
    def the_last_word_is_in_the_memory_once_it_was_learned(self):
        for said in self.said:
            if said.standing and said.status == "applied":
                assert (said.whose, said.given.verdict) in self.memory

    @invariant()
    def same_questions(self):
        stored = {one.prediction_id: one.status for one in self.store.questions(limit=1000)}
        assert stored == {id_: ask.status for id_, ask in self.asks.items()}

    @invariant()
    def nobody_beyond_overlap(self):
        for ask in self.asks.values():
            assert len(self.holders(ask)) <= ask.new.overlap

    @staticmethod
    def told(record):
        version = record.applied_in_version
        return (record.id, record.status, record.standing, record.undone, version)

    @staticmethod
    def plain(said):
        version = said.version and f"{said.version[0]}.{said.version[1]}"
        return (said.id, said.status, said.standing, said.undone, version)

    def pass_on(self, said):
        learned = [s for s in self.mine(said) if s.status == "applied"]
        held = max(learned, key=lambda s: s.version, default=None)
        if held is not None and held.given.verdict == said.given.verdict:
            said.status, said.version = "applied", held.version
            held.status, held.version = "superseded", None

    def mine(self, said):
        """What else this person has said of the same prediction."""
        return [s for s in self.said if s is not said and s.whose == said.whose]

    def free_to_take(self):
        return [s for s in self.waiting() if not any(one.taken for one in self.mine(s))]

    def waiting(self):
        return [s for s in self.said if s.used and s.status == "pending" and not s.taken]

    def standing(self, id_):
        return [s for s in self.said if s.given.prediction_id == id_ and s.standing]

    def settle(self, id_):
        ask = self.asks.get(id_)
        if ask is not None and ask.status != "expired":
            n = sum(said.used for said in self.standing(id_))
            ask.status = "closed" if n >= ask.new.overlap else "open"

    def holders(self, ask):
        return {who for who, (_, until) in ask.held.items() if until > self.watch.at}

    def others(self, ask, who):
        answered = {s.given.annotator_id for s in self.standing(ask.new.prediction_id) if s.used}
        return len((answered | self.holders(ask)) - {who})

    def free(self, ask, who):
        open_ = ask.status == "open" and ask.new.expires_at > self.watch.at
        done = any(s.given.annotator_id == who for s in self.standing(ask.new.prediction_id))
        mine = who in self.holders(ask)
        return open_ and not done and (mine or self.others(ask, who) < ask.new.overlap)

    def rank(self, ask, who):
        new = ask.new
        return (who not in self.holders(ask), -new.step, new.reason != "audit", -new.uncertainty)

    def too_late(self, ask, who, token):
        if ask.status == "expired":
            return True
        if ask.status == "open" and ask.new.expires_at <= self.watch.at:
            return True
        if token is None or who in self.holders(ask):
            return False
        return self.others(ask, who) >= ask.new.overlap

    def refused(self, new, kind):
        error = self.store.answer(new).exception()
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
