"""Model of the store in plain lists, without SQL. The state machine compares the store with it."""

from dataclasses import dataclass, field, replace

from bitta.server.store import NewAnswer, NewQuestion
from server.store.factories import ManualClock


@dataclass
class ModelQuestion:
    """Question of the reference model."""

    new: NewQuestion
    status: str = "open"
    leases: dict = field(default_factory=dict)
    """Token and end of the lease by annotator."""


@dataclass
class ModelAnswer:
    """Answer of the reference model."""

    new: NewAnswer
    id: str
    at: int
    supersedes: str | None = None
    status: str = "pending"
    standing: bool = True
    undone: bool = False
    is_claimed: bool = False
    version: tuple | None = None
    """Lineage and step that learned it."""

    @property
    def is_verdict(self):
        return self.new.verdict != "skip"

    @property
    def subject(self):
        """Prediction and annotator. At most one answer of a subject stands."""
        return self.new.prediction_id, self.new.annotator_id

    @property
    def state(self):
        """Fields that the store must agree with."""
        version = self.version and f"{self.version[0]}.{self.version[1]}"
        return (self.id, self.supersedes, self.status, self.standing, self.undone, version)

    def end_standing(self):
        self.standing = False
        if self.status == "pending" and not self.is_claimed:
            self.status = "superseded"

    def make_pending(self):
        self.status = "pending" if self.standing else "superseded"
        self.is_claimed, self.version = False, None


@dataclass
class LearnerState:
    """Weights of a learner: the steps that led to them, and the memory after these steps."""

    lineage: int = 1
    step: int = 0
    steps: list = field(default_factory=list)
    """Lineage and number of each step."""
    memory: list = field(default_factory=list)
    """Subject and verdict of each answer in the memory."""

    @property
    def version(self):
        return f"{self.lineage}.{self.step}"

    def copy(self, **changed):
        return replace(self, steps=list(self.steps), memory=list(self.memory), **changed)


@dataclass
class ModelSnapshot:
    """Snapshot of the reference model."""

    id: str
    reason: str
    state: LearnerState
    dropped_at: int | None = None


class ReferenceModel:
    """Data that the store should have, and the learner that uses it."""

    def __init__(self, clock: ManualClock):
        self.clock = clock
        self.n_served = 0
        self.questions: dict[str, ModelQuestion] = {}
        self.answers: list[ModelAnswer] = []
        self.learner = LearnerState()
        self.newest_lineage = 1
        self.snapshots: list[ModelSnapshot] = []
        self.replacing: set[str] = set()
        """Claimed answers that contradict a learned one."""
        self.images: dict[bytes, int] = {}
        """Time of keeping by content."""
        self.deleted_images: dict[bytes, int] = {}
        """Time of deletion by content."""

    def kept_snapshots(self):
        return [one for one in self.snapshots if one.dropped_at is None]

    def outdated_snapshots(self, n_kept):
        """Return the kept snapshots of regular intervals, except for the last ones."""
        return [one for one in self.kept_snapshots() if one.reason == "interval"][:-n_kept]

    def add_snapshot(self, snapshot):
        self.snapshots.append(snapshot)
        return snapshot

    def learn(self, answers):
        """Mark the answers as applied and put them into the memory."""
        self.learner.steps.append((self.learner.lineage, self.learner.step))
        for one in answers:
            one.status, one.is_claimed, one.version = "applied", False, self.learner.steps[-1]
            if one.id in self.replacing:
                opposite = {"correct": "incorrect", "incorrect": "correct"}[one.new.verdict]
                self.learner.memory.remove((one.subject, opposite))
            self.learner.memory.append((one.subject, one.new.verdict))
        self.replacing.clear()

    def release(self):
        self.replacing.clear()
        for answer in self.claimed():
            answer.make_pending()

    def make_pending_after(self, state):
        """Make answers pending that `state` has not learned. Return the ids of standing ones."""
        lost = set(self.learner.steps) - set(state.steps)
        answers = [a for a in self.answers if a.status == "applied" and a.version in lost]
        for answer in answers:
            answer.make_pending()
        self.release()
        return [answer.id for answer in answers if answer.standing]

    def continue_from(self, state, lineage):
        self.learner = state.copy(lineage=lineage)
        self.newest_lineage = max(self.newest_lineage, lineage)

    def learned(self):
        """Return the last learned answer of each subject."""
        steps = self.learner.steps
        answers = [a for a in self.answers if a.status == "applied" and a.version in steps]
        answers.sort(key=lambda answer: steps.index(answer.version))
        return {answer.subject: answer for answer in answers}

    def replace_if_equal(self, answer):
        """Let an answer take the place of a learned one with the same verdict."""
        learned = self.learned().get(answer.subject)
        if learned is not None and learned.new.verdict == answer.new.verdict:
            answer.status, answer.version = "applied", learned.version
            learned.status, learned.version = "superseded", None

    def same_subject(self, answer):
        return [a for a in self.answers if a is not answer and a.subject == answer.subject]

    def claimed(self):
        return [answer for answer in self.answers if answer.is_claimed]

    def claimable(self):
        return [
            answer
            for answer in self.pending()
            if not any(other.is_claimed for other in self.same_subject(answer))
        ]

    def pending(self):
        return [
            answer
            for answer in self.answers
            if answer.is_verdict and answer.status == "pending" and not answer.is_claimed
        ]

    def standing(self, prediction_id):
        return [a for a in self.answers if a.new.prediction_id == prediction_id and a.standing]

    def standing_of(self, prediction_id, annotator):
        standing = self.standing(prediction_id)
        return next((a for a in standing if a.new.annotator_id == annotator), None)

    def add_answer(self, answer):
        """Add a standing answer, which ends the lease of its annotator."""
        previous = self.standing_of(*answer.subject)
        if previous is not None:
            answer.supersedes = previous.id
            previous.end_standing()
        prediction_id, annotator = answer.subject
        if prediction_id in self.questions:
            self.questions[prediction_id].leases.pop(annotator, None)
        self.answers.append(answer)
        self.update_question_status(prediction_id)

    def import_answer(self, answer, *, standing, undone, supersedes_id=None):
        """Add an answer of another store. Return True if it replaces a standing answer."""
        if any(one.id == supersedes_id for one in self.same_subject(answer)):
            answer.supersedes = supersedes_id
        previous = self.standing_of(*answer.subject)
        if standing and not undone and (previous is None or previous.at <= answer.at):
            self.add_answer(answer)
            return previous is not None
        self.answers.append(answer)
        self.end(answer, undone=undone)
        return False

    def end(self, answer, *, undone):
        answer.undone = undone
        answer.end_standing()
        self.update_question_status(answer.new.prediction_id)

    def expire_questions(self):
        """Expire open questions that are over. Return the ids of their predictions."""
        expired = [q for q in self.questions.values() if q.status == "open" and self.is_over(q)]
        for question in expired:
            question.status = "expired"
            question.leases.clear()
        return {question.new.prediction_id for question in expired}

    def is_over(self, question):
        return question.new.expires_at <= self.clock.at

    def update_question_status(self, prediction_id):
        question = self.questions.get(prediction_id)
        if question is not None and question.status != "expired":
            n_verdicts = sum(answer.is_verdict for answer in self.standing(prediction_id))
            question.status = "closed" if n_verdicts >= question.new.overlap else "open"

    def holders(self, question):
        """Return the annotators with a valid lease."""
        return {who for who, (_, until) in question.leases.items() if until > self.clock.at}

    def count_others(self, question, annotator):
        standing = self.standing(question.new.prediction_id)
        answered = {answer.new.annotator_id for answer in standing if answer.is_verdict}
        return len((answered | self.holders(question)) - {annotator})

    def available_to(self, annotator):
        """Return the predictions whose questions an annotator can get, the next one first."""
        ranked = [
            (self.rank(question, annotator), prediction_id)
            for prediction_id, question in self.questions.items()
            if self.is_available(question, annotator)
        ]
        return [prediction_id for _, prediction_id in sorted(ranked)]

    def is_available(self, question, annotator):
        is_open = question.status == "open" and not self.is_over(question)
        has_answered = self.standing_of(question.new.prediction_id, annotator) is not None
        is_held = annotator in self.holders(question)
        is_free = self.count_others(question, annotator) < question.new.overlap
        return is_open and not has_answered and (is_held or is_free)

    def rank(self, question, annotator):
        new, is_held = question.new, annotator in self.holders(question)
        return (not is_held, -new.window, new.reason != "audit", -new.uncertainty)

    def is_too_late(self, answer, token):
        """Return True for a first answer after the expiry, or after another got the question."""
        question, annotator = self.questions.get(answer.prediction_id), answer.annotator_id
        if question is None or self.standing_of(answer.prediction_id, annotator) is not None:
            return False
        if question.status == "expired" or (question.status == "open" and self.is_over(question)):
            return True
        if token is None or annotator in self.holders(question):
            return False
        return self.count_others(question, annotator) >= question.new.overlap
