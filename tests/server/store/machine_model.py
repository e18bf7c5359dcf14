"""What the state machine compares the store with: lists that forget nothing and know no SQL."""

from dataclasses import dataclass, field, replace

from bitta.server.store import NewAnswer, NewQuestion
from server.store.made import Watch


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

    given: NewAnswer
    id: str
    at: int
    supersedes: str | None = None
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

    @property
    def told(self):
        version = self.version and f"{self.version[0]}.{self.version[1]}"
        return (self.id, self.supersedes, self.status, self.standing, self.undone, version)

    def retire(self):
        self.standing = False
        if self.status == "pending" and not self.taken:
            self.status = "superseded"

    def again(self):
        self.status = "pending" if self.standing else "superseded"
        self.taken, self.version = False, None


@dataclass
class State:
    """What a learner is: the steps that made it, and what they left in its memory."""

    lineage: int = 1
    step: int = 0
    way: list = field(default_factory=list)
    """Versions of the steps."""
    memory: list = field(default_factory=list)
    """Verdicts by whose they are, as a learner does what the store tells it."""

    @property
    def version(self):
        return f"{self.lineage}.{self.step}"

    def copy(self, **changed):
        return replace(self, way=list(self.way), memory=list(self.memory), **changed)


@dataclass
class Kept:
    """A snapshot of the plain model."""

    id: str
    reason: str
    state: State
    dropped: int | None = None


class Model:
    """Everything that the store should know, and the learner that it should know it of."""

    def __init__(self, watch: Watch):
        self.watch = watch
        self.n_served = 0
        self.asks: dict[str, Ask] = {}
        self.said: list[Said] = []
        self.live = State()
        self.newest = 1
        """The last lineage that was begun, lived in or not."""
        self.snapshots: list[Kept] = []
        self.overruling: set[str] = set()
        self.pictures: dict[bytes, int] = {}
        """Since when they are kept."""
        self.deleted: dict[bytes, int] = {}

    def kept(self):
        return [one for one in self.snapshots if one.dropped is None]

    def old(self, keep):
        """Snapshots that nobody asked for, but for the last so many."""
        return [one for one in self.kept() if one.reason == "interval"][:-keep]

    def keep(self, snapshot):
        self.snapshots.append(snapshot)
        return snapshot

    def learn(self, said):
        """Mark the answers and let them into the memory."""
        self.live.way.append((self.live.lineage, self.live.step))
        for one in said:
            one.status, one.taken, one.version = "applied", False, self.live.way[-1]
            if one.id in self.overruling:
                opposite = {"correct": "incorrect", "incorrect": "correct"}[one.given.verdict]
                self.live.memory.remove((one.whose, opposite))
            self.live.memory.append((one.whose, one.given.verdict))
        self.overruling.clear()

    def release(self):
        self.overruling.clear()
        for said in self.taken():
            said.again()

    def forget_since(self, state):
        """Let whatever another state never learned wait again; ids of what still stands."""
        lost = set(self.live.way) - set(state.way)
        gone = [s for s in self.said if s.status == "applied" and s.version in lost]
        for said in gone:
            said.again()
        self.release()
        return [said.id for said in gone if said.standing]

    def go_on_from(self, state, lineage):
        self.live = state.copy(lineage=lineage)
        self.newest = max(self.newest, lineage)

    def learned(self):
        """By whose it is, the last answer on the way to the weights."""
        on_the_way = [s for s in self.said if s.status == "applied" and s.version in self.live.way]
        on_the_way.sort(key=lambda said: self.live.way.index(said.version))
        return {said.whose: said for said in on_the_way}

    def pass_on(self, said):
        """What the memory holds is not learned again."""
        held = self.learned().get(said.whose)
        if held is not None and held.given.verdict == said.given.verdict:
            said.status, said.version = "applied", held.version
            held.status, held.version = "superseded", None

    def mine(self, said):
        """What else this person has said of the same prediction."""
        return [s for s in self.said if s is not said and s.whose == said.whose]

    def taken(self):
        return [said for said in self.said if said.taken]

    def free_to_take(self):
        return [s for s in self.waiting() if not any(one.taken for one in self.mine(s))]

    def waiting(self):
        return [s for s in self.said if s.used and s.status == "pending" and not s.taken]

    def standing(self, id_):
        return [s for s in self.said if s.given.prediction_id == id_ and s.standing]

    def last_word(self, id_, who):
        return next((s for s in self.standing(id_) if s.given.annotator_id == who), None)

    def say(self, said):
        """The last word of somebody, and an answer to what they were asked."""
        before = self.last_word(*said.whose)
        if before is not None:
            said.supersedes = before.id
            before.retire()
        id_, who = said.whose
        if id_ in self.asks:
            self.asks[id_].held.pop(who, None)
        self.said.append(said)
        self.settle(id_)

    def restore(self, said, *, standing, undone, supersedes_id=None):
        """Said elsewhere; it may have ended there, or before the last word here. If that ends."""
        if any(one.id == supersedes_id for one in self.mine(said)):
            said.supersedes = supersedes_id
        before = self.last_word(*said.whose)
        if standing and not undone and (before is None or before.at <= said.at):
            self.say(said)
            return before is not None
        self.said.append(said)
        self.end(said, undone=undone)
        return False

    def end(self, said, *, undone):
        said.undone = undone
        said.retire()
        self.settle(said.given.prediction_id)

    def expire(self):
        """Close what nobody answered in time."""
        over = [a for a in self.asks.values() if a.status == "open" and self.is_over(a)]
        for ask in over:
            ask.status = "expired"
            ask.held.clear()
        return {ask.new.prediction_id for ask in over}

    def is_over(self, ask):
        return ask.new.expires_at <= self.watch.at

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

    def free_for(self, who):
        """Ids of the questions that somebody may be given, the next one first."""
        free = [(self.rank(a, who), id_) for id_, a in self.asks.items() if self.free(a, who)]
        return [id_ for _, id_ in sorted(free)]

    def free(self, ask, who):
        open_ = ask.status == "open" and not self.is_over(ask)
        done = self.last_word(ask.new.prediction_id, who) is not None
        mine = who in self.holders(ask)
        return open_ and not done and (mine or self.others(ask, who) < ask.new.overlap)

    def rank(self, ask, who):
        new = ask.new
        return (who not in self.holders(ask), -new.step, new.reason != "audit", -new.uncertainty)

    def too_late(self, given, token):
        """Whether a first answer comes after the question's time, or instead of another's."""
        ask, who = self.asks.get(given.prediction_id), given.annotator_id
        if ask is None or self.last_word(given.prediction_id, who) is not None:
            return False
        if ask.status == "expired" or (ask.status == "open" and self.is_over(ask)):
            return True
        if token is None or who in self.holders(ask):
            return False
        return self.others(ask, who) >= ask.new.overlap
