"""Contract of all methods, as check functions that raise AssertionError.

Run it on a method of your own:

>>> from bitta.testing import check_method
>>> check_method("tent", norms=["group"])
"""

import io
import math
import random
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bitta.errors import FeedbackError
from bitta.feedback import Simulated
from bitta.methods.base import Adapter
from bitta.nn import named_tensors
from bitta.seeding import generator
from bitta.session import Session
from bitta.testing.toy_models import N_CLASSES, NORMS, Norm, needed_settings, toy_classifier
from bitta.types import Prediction, State

BATCH = 6
_EXECUTION_SETTINGS = ("eager", "precision")


@dataclass(frozen=True)
class Subject:
    """Method to check, with the norm family of its toy model and settings."""

    method: str | type[Adapter[Any]]
    norm: Norm = "batch"
    n_queries: int = 2
    device: str = "cpu"
    settings: dict[str, Any] = field(default_factory=dict)

    def session(self, model: nn.Module | None = None, **changed: Any) -> Session:
        """Return a new session, on a new model or the given one."""
        options = {"n_queries": self.n_queries, "window": 0, "seed": 3, **self.settings}
        return Session(model or self.model(), self.method, **(options | changed))

    def load(self, path: Path) -> Session:
        """Load a saved session on another model and the same execution path."""
        method = {} if isinstance(self.method, str) else {"method": self.method}
        execution = {
            name: self.settings[name] for name in _EXECUTION_SETTINGS if name in self.settings
        }
        return Session.load(path, self.model(seed=99), **method, **execution)

    def model(self, seed: int = 0) -> nn.Module:
        """Return a new model of the norm family."""
        return toy_classifier(self.norm, seed=seed).to(self.device)

    def batch(self, number: int, n: int = BATCH) -> Tensor:
        """Return a batch of a stream whose brightness increases."""
        images = torch.rand(n, 3, 8, 8, generator=generator(7, "contract", number))
        return (images * (1 + 0.1 * number)).to(self.device)


def run_steps(
    session: Session, subject: Subject, n: int, start: int = 0, *, size: int = BATCH
) -> list[Prediction]:
    """Make n steps. The answers say that predictions of even rows are correct."""
    predictions = []
    for number in range(start, start + n):
        prediction = session.predict(subject.batch(number, size))
        for query in prediction.queries:
            session.answer(query.id, correct=query.index % 2 == 0)
        session.learn()
        predictions.append(prediction)
    return predictions


def list_questions(prediction: Prediction) -> list[tuple[int, int, int]]:
    """Return id, row and label of each question."""
    return [(query.id, query.index, query.shown_label) for query in prediction.queries]


def copy_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all tensors of a model."""
    return {name: tensor.detach().clone() for name, tensor in named_tensors(model).items()}


def flatten_state(tree: State) -> dict[str, Any]:
    """Return a flat copy of a state tree."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": leaf for key, leaf in flatten_state(value).items()}
        else:
            flat[name] = value.detach().clone() if isinstance(value, Tensor) else value
    return flat


def is_equal(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Return True if names and values are equal, bit for bit."""
    return one.keys() == two.keys() and all(
        torch.equal(value, two[name]) if isinstance(value, Tensor) else value == two[name]
        for name, value in one.items()
    )


def list_flags(model: nn.Module) -> list[tuple[Any, ...]]:
    """Return everything that a session changes and restores: modes, hooks, forwards, gradients."""
    modules = [
        (
            name,
            module.training,
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
            sorted(set(module.__dict__) & {"forward"}),
            getattr(module, "momentum", None),
            getattr(module, "track_running_stats", None),
        )
        for name, module in model.named_modules()
    ]
    return modules + [(name, p.requires_grad, p.grad) for name, p in model.named_parameters()]


Check = Callable[[Subject], None]


def check_method(
    method: str | type[Adapter[Any]],
    *,
    norms: Sequence[Norm] = NORMS,
    device: str = "cpu",
    **settings: Any,
) -> None:
    """Run all checks on one method, with and without questions."""
    with TemporaryDirectory() as folder:
        for norm, n_queries in product(norms, (2, 0)):
            needed = {**needed_settings(method, norm, folder), **settings}
            _run_checks(Subject(method, norm, n_queries, device=device, settings=needed))


def _run_checks(subject: Subject) -> None:
    for check in CHECKS:
        if not subject.n_queries and check in CHECKS_WITH_ANSWERS:
            continue
        try:
            check(subject)
        except AssertionError as error:
            situation = f"{subject.norm} norm, {subject.n_queries} questions a batch"
            raise AssertionError(f"{check.__name__} ({situation}): {error}") from error


def predict_changes_nothing(subject: Subject) -> None:
    """`predict` and `policy` change no tensor and return the same result twice."""
    with subject.session() as session:
        run_steps(session, subject, 2)
        adapter, images = session.adapter, subject.batch(9)
        before = flatten_state(adapter.state_dict())
        first, second = adapter.predict(images), adapter.predict(images)
        assert torch.equal(first.probs, second.probs), "predict gave two results"
        assert torch.equal(adapter.policy(images), adapter.policy(images)), "policy changed"
        after = flatten_state(adapter.state_dict())
        for name in ("forwards", "can_fan_out"):
            del before[name], after[name]
        assert is_equal(before, after), "predict or policy changed the method's state"


def predictions_are_distributions(subject: Subject) -> None:
    """Probabilities of predictions and policy sum to one. Labels have the highest probability."""
    with subject.session() as session:
        prediction = session.predict(subject.batch(0))
        policy = session.adapter.policy(subject.batch(0))
        for probs in (prediction.probs, policy):
            assert probs.shape == (BATCH, N_CLASSES)
            assert torch.allclose(probs.sum(-1).cpu(), torch.ones(BATCH), atol=1e-5)
        assert torch.equal(prediction.labels, prediction.probs.argmax(-1))
        assert torch.equal(prediction.confidence, prediction.probs.amax(-1))


def any_feedback_keeps_weights_finite(subject: Subject) -> None:
    """Weights and losses stay finite without answers and with any mix of verdicts."""
    patterns: dict[str, Callable[[int], bool | None]] = {
        "none": lambda _: None,
        "only correct": lambda _: True,
        "only incorrect": lambda _: False,
        "mixed": lambda place: place % 2 == 0,
        "single": lambda place: True if place == 0 else None,
    }
    for name, verdict in patterns.items():
        with subject.session() as session:
            for number in range(4):
                prediction = session.predict(subject.batch(number))
                for place, query in enumerate(prediction.queries):
                    correct = verdict(place)
                    if correct is not None:
                        session.answer(query.id, correct=correct)
                losses = session.learn()
                assert all(map(math.isfinite, losses.mean().values())), f"{name}: loss"
            _assert_finite(session, name)


def batch_sizes_vary(subject: Subject) -> None:
    """Batches of any size are served, including those with a question about every image."""
    with subject.session() as session:
        for number, n in enumerate((BATCH, 1, 1, 3, BATCH, 2)):
            prediction = session.predict(subject.batch(number, n))
            assert len(prediction.labels) == n
            assert len(prediction.queries) == min(session.budget.n_queries, n)
            for query in prediction.queries:
                session.answer(query.id, correct=number % 2 == 0)
            session.learn()
        _assert_finite(session, "varying batches")


def answers_change_the_weights(subject: Subject) -> None:
    """Verdicts, also late ones, change the weights if and only if `learns_from_feedback`."""
    for is_late in (False, True):
        weights = []
        for correct in (True, False):
            with subject.session() as session:
                asked = session.predict(subject.batch(0)).queries
                if is_late:
                    session.learn()
                    session.predict(subject.batch(1))
                for query in asked:
                    session.answer(query.id, correct=correct)
                session.learn()
                weights.append(copy_tensors(session.model))
        learns = session.adapter.learns_from_feedback
        effect = "answers change nothing" if learns else "answers change the model"
        assert is_equal(*weights) != learns, f"{effect}, but learns_from_feedback is {learns}"


def repeated_answers_replace_and_unknown_fail(subject: Subject) -> None:
    """A repeated answer is accepted. Another verdict replaces it until it was learned from.

    After that, another verdict is refused. An answer to an unknown question is refused, too.
    """
    with subject.session() as session:
        query = session.predict(subject.batch(0)).queries[0]
        session.answer(query.id, correct=True)
        session.answer(query.id, correct=False)
        session.answer(query.id, correct=False)
        session.learn()
        session.answer(query.id, correct=False)
        assert not session.feedback_source.collect(), "an answer was collected twice"
        _assert_refused(session, query.id, correct=True)
        _assert_refused(session, 10_000, correct=True)
        session.predict(subject.batch(1))
        session.learn()
        _assert_finite(session, "repeated answers")


def forgotten_samples_leave_the_memories(subject: Subject) -> None:
    """`forget` removes the samples with the given ids from the state and changes nothing else."""
    with subject.session() as session:
        first, second = session.predict(subject.batch(0)).queries[:2]
        for query in (first, second):
            session.answer(query.id, correct=query is first)
        session.learn()
        adapter, weights = session.adapter, copy_tensors(session.model)
        before = flatten_state(adapter.state_dict())
        adapter.forget([10_000])
        assert is_equal(before, flatten_state(adapter.state_dict())), (
            "an unknown id changed the state"
        )
        was_stored = _holds(adapter.state_dict(), second.input)
        adapter.forget([first.id])
        after = adapter.state_dict()
        assert not _holds(after, first.input), "the state holds a forgotten sample"
        assert _holds(after, second.input) == was_stored, "another sample was forgotten, too"
        assert is_equal(weights, copy_tensors(session.model)), "forget changed the weights"
        run_steps(session, subject, 2, 1)
        _assert_finite(session, "forgotten samples")


def learning_without_a_batch_is_harmless(subject: Subject) -> None:
    """`learn` does nothing before the first batch and when it is called twice."""
    with subject.session() as session:
        assert not session.learn().terms
        run_steps(session, subject, 2)
        before = copy_tensors(session.model)
        assert not session.learn().terms
        assert is_equal(before, copy_tensors(session.model)), "an empty learn changed the model"


def same_seed_same_trajectory(subject: Subject) -> None:
    """Two sessions with one seed agree bit for bit and do not use global random state."""
    states = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())  # type: ignore[index]
    with subject.session() as one, subject.session() as two:
        run_steps(one, subject, 4)
        run_steps(two, subject, 4)
        assert is_equal(copy_tensors(one.model), copy_tensors(two.model)), (
            "one seed gave two trajectories; draw random numbers by bitta.seeding"
        )
    assert torch.equal(states[0], torch.get_rng_state()), "torch's global random state was used"
    assert (states[1] == np.random.get_state()[1]).all(), "numpy's global random state was used"  # type: ignore[index]
    assert states[2] == random.getstate(), "Python's global random state was used"


def loaded_session_makes_the_same_steps(subject: Subject) -> None:
    """A session saved between predict and learn and loaded elsewhere makes the same steps."""
    with TemporaryDirectory() as folder, subject.session() as session:
        run_steps(session, subject, 3)
        asked = session.predict(subject.batch(3)).queries
        path = Path(folder) / "session.safetensors"
        session.save(path)
        with subject.load(path) as other:
            for resumed in (session, other):
                for query in asked:
                    resumed.answer(query.id, correct=query.index % 2 == 0)
                resumed.learn()
            one, two = run_steps(session, subject, 3, 4), run_steps(other, subject, 3, 4)
            assert all(
                torch.equal(a.probs, b.probs) and list_questions(a) == list_questions(b)
                for a, b in zip(one, two, strict=True)
            ), "a loaded session made other predictions"
            assert is_equal(copy_tensors(session.model), copy_tensors(other.model)), (
                "weights differ after loading"
            )


def reset_is_exact(subject: Subject) -> None:
    """After a reset, also between predict and learn, the first steps repeat bit for bit."""
    # Random questions depend on the position in the stream, which a reset does not change.
    with subject.session(selection="mc_confidence", audits=0, paired_audits=0) as session:
        source = copy_tensors(session.model)
        first = run_steps(session, subject, 4)
        session.predict(subject.batch(5))
        session.reset()
        session.learn()
        assert is_equal(source, copy_tensors(session.model)), "reset did not restore the source"
        again = run_steps(session, subject, 4)
        assert all(torch.equal(a.probs, b.probs) for a, b in zip(first, again, strict=True))


def model_is_restored(subject: Subject) -> None:
    """Hooks, modes, `requires_grad` and BatchNorm flags are restored, also after an exception."""
    model = subject.model().train()
    frozen = next(model.parameters()).requires_grad_(False)
    before = list_flags(model)

    def raise_error(*_: Any) -> None:
        raise ArithmeticError

    try:
        with subject.session(model) as session:
            run_steps(session, subject, 2)
            broken = model.get_submodule("stage2").register_forward_hook(raise_error)
            session.predict(subject.batch(2))
    except ArithmeticError:
        broken.remove()
    else:
        raise AssertionError("the model's own error was swallowed")
    assert list_flags(model) == before, "the model was not restored"
    assert not frozen.requires_grad


def copy_leaves_the_model_unchanged(subject: Subject) -> None:
    """With `copy=True` the caller's model does not change."""
    model = subject.model()
    before = copy_tensors(model)
    with subject.session(model, copy=True) as session:
        run_steps(session, subject, 3)
    assert is_equal(before, copy_tensors(model)), "the caller's model changed"


def wrong_and_late_answers_keep_weights_finite(subject: Subject) -> None:
    """Wrong, late and missing answers keep the model finite. Nothing is printed."""
    truth = torch.arange(BATCH * 6) % N_CLASSES
    annotator = Simulated(truth, flip=0.5, delay=2, answer_every=2)
    with subject.session(feedback=annotator) as session, redirect_stdout(io.StringIO()) as printed:
        for number in range(6):
            session.step(subject.batch(number))
        _assert_finite(session, "simulated feedback")
    assert not printed.getvalue(), "a method printed"


def window_is_learned_from_once_complete(subject: Subject) -> None:
    """Questions and learning happen once per window. A session saved inside a window continues."""
    with TemporaryDirectory() as folder, subject.session(window=BATCH) as session:
        served = run_steps(session, subject, 2 * BATCH + 2, size=1)
        asked = [number for number, prediction in enumerate(served) if prediction.queries]
        assert all(len(prediction.labels) == 1 for prediction in served)
        assert session.budget.n_queries == 0 or asked == [BATCH - 1, 2 * BATCH - 1]
        path = Path(folder) / "session.safetensors"
        session.save(path)
        with subject.load(path) as other:
            start = len(served)
            one = run_steps(session, subject, BATCH, start, size=1)
            two = run_steps(other, subject, BATCH, start, size=1)
            assert all(
                torch.equal(a.probs, b.probs) and list_questions(a) == list_questions(b)
                for a, b in zip(one, two, strict=True)
            ), "a session loaded inside a window made other predictions"
            _assert_finite(session, "a window")


CHECKS: tuple[Check, ...] = (
    predict_changes_nothing,
    predictions_are_distributions,
    any_feedback_keeps_weights_finite,
    batch_sizes_vary,
    answers_change_the_weights,
    repeated_answers_replace_and_unknown_fail,
    forgotten_samples_leave_the_memories,
    learning_without_a_batch_is_harmless,
    same_seed_same_trajectory,
    loaded_session_makes_the_same_steps,
    reset_is_exact,
    model_is_restored,
    copy_leaves_the_model_unchanged,
    wrong_and_late_answers_keep_weights_finite,
    window_is_learned_from_once_complete,
)

CHECKS_WITH_ANSWERS: tuple[Check, ...] = (
    any_feedback_keeps_weights_finite,
    answers_change_the_weights,
    repeated_answers_replace_and_unknown_fail,
    forgotten_samples_leave_the_memories,
)
"""Checks that need questions."""


def _holds(state: State, sample: Tensor) -> bool:
    """Return True if any tensor of the state has this sample as a row."""
    stacked = [
        leaf
        for leaf in flatten_state(state).values()
        if isinstance(leaf, Tensor) and leaf.shape[1:] == sample.shape and len(leaf)
    ]
    return any(bool((leaf == sample).flatten(1).all(1).any()) for leaf in stacked)


def _assert_finite(session: Session, situation: str) -> None:
    for name, tensor in named_tensors(session.model).items():
        assert tensor.isfinite().all(), f"{situation}: {name} is not finite"


def _assert_refused(session: Session, query_id: int, *, correct: bool) -> None:
    try:
        session.answer(query_id, correct=correct)
    except FeedbackError:
        return
    raise AssertionError(f"an answer to question {query_id} should have been refused")
