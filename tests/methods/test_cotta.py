"""Tests of CoTTA."""

import math

import pytest
import torch
from torch import nn

from bitta import Session
from bitta.errors import InputError, SettingError
from bitta.losses import entropy
from bitta.methods import cotta
from bitta.nn import named_tensors, restore_stochastically, update_teacher
from bitta.seeding import RandomKey, generator
from bitta.testing import toy_classifier


class Brightness(nn.Module):
    """Model with two logits: a weight times the mean pixel, and 0."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, images):
        bright = self.weight * images.flatten(1).mean(1)
        return torch.stack([bright, torch.zeros_like(bright)], dim=1)


def images(number=0, n=6):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


def weights(wrapped):
    return {name: p.detach().clone() for name, p in wrapped.model.named_parameters()}


def black(x, *place, views):
    return torch.zeros_like(x).repeat(views, 1, 1, 1)


def answered_session(correct, **settings):
    """Return a session after one step with two answers. Teacher and student differ by then."""
    session = Session(toy_classifier(), "cotta", n_queries=2, n_augmentations=2, **settings)
    for number in range(2):
        for query in session.predict(images(number)).queries:
            session.answer(query.id, correct=correct)
        session.learn()
    return session


@pytest.mark.parametrize(("augment_below", "served"), [(0.5, 0.0), (0.51, 5.0)])
def test_teacher_averages_views_if_the_source_confidence_is_low(augment_below, served, monkeypatch):
    """Black images have logits (0, 0), confidence .5. Nine views of brightness 1 to 9 average 5."""
    brightness = iter(range(1, 10))

    def brighten(x, *place, views):
        return torch.cat([torch.full_like(x, next(brightness)) for _ in range(views)])

    monkeypatch.setattr(cotta, "augment_images", brighten)
    session = Session(Brightness(), "cotta", augment_below=augment_below, n_augmentations=9)
    logits = session.adapter.logits(torch.zeros(2, 3, 4, 4))
    assert logits.tolist() == [[served, 0.0]] * 2


def test_views_depend_on_the_version():
    session = Session(Brightness(), "cotta", augment_below=1.0, n_augmentations=2, seed=5)
    views = cotta.augment_images(images(), RandomKey((5, "cotta", 0)), "augment", 0, views=2)
    expected = sum(view.flatten(1).mean(1) for view in views.chunk(2)) / 2
    assert torch.allclose(session.adapter.logits(images())[:, 0], expected, atol=1e-6)


def test_source_model_decides_about_augmentation(monkeypatch):
    """White images: the source has a confidence of .731, a teacher with weight 100 one of 1."""
    monkeypatch.setattr(cotta, "augment_images", black)
    session = Session(Brightness(), "cotta", augment_below=0.74)
    with torch.no_grad():
        session.model.weight.fill_(100)
    assert session.adapter.logits(torch.ones(1, 3, 4, 4)).tolist() == [[0.0, 0.0]]


def test_anchor_equals_the_source_after_learning_reset_and_load(tmp_path):
    session = Session(toy_classifier(), "cotta", n_augmentations=2, lr=0.1)
    source = named_tensors(toy_classifier())

    def assert_source(held):
        assert all(map(torch.equal, named_tensors(held.adapter.source_model.model).values(),
                       source.values()))  # fmt: skip

    session.step(images())
    assert not torch.equal(session.model.head.weight, source["head.weight"])
    assert_source(session)
    session.save(tmp_path / "saved")
    assert_source(Session.load(tmp_path / "saved", toy_classifier(seed=9)))
    session.reset()
    assert_source(session)


def test_teacher_moves_a_thousandth_towards_the_student():
    session = Session(toy_classifier(), "cotta", n_augmentations=2, lr=0.1, restore=0.0)
    before = weights(session.adapter.wrapped)
    session.step(images())
    student = weights(session.adapter.trained_model)
    assert not torch.allclose(student["head.weight"], before["head.weight"], atol=0.05)
    for name, teacher in weights(session.adapter.wrapped).items():
        assert torch.allclose(teacher, 0.999 * before[name] + 0.001 * student[name], atol=1e-7)


def test_update_teacher_interpolates_parameters():
    """.75 of (1, 2) and .25 of (5, -2) are (2, 1); buffers stay."""
    teacher, student = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    with torch.no_grad():
        teacher.weight.copy_(torch.tensor([1.0, 2.0]))
        student.weight.copy_(torch.tensor([5.0, -2.0]))
        student.running_mean.fill_(7)
    update_teacher(teacher, student, rate=0.25)
    assert teacher.weight.tolist() == [2.0, 1.0]
    assert teacher.running_mean.tolist() == [0.0, 0.0]


def test_restore_rate_one_resets_the_student_but_not_the_teacher():
    session = Session(toy_classifier(), "cotta", n_augmentations=2, lr=0.1, restore=1.0)
    before = weights(session.adapter.wrapped)
    session.step(images())
    assert all(map(torch.equal, weights(session.adapter.trained_model).values(), before.values()))
    assert not torch.equal(session.model.head.weight, before["head.weight"])


def test_restored_weights_depend_on_the_version():
    settings = {"n_augmentations": 2, "lr": 0.1, "seed": 4}
    kept = Session(toy_classifier(), "cotta", restore=0.0, **settings)
    some = Session(toy_classifier(), "cotta", restore=0.3, **settings)
    for session in (kept, some):
        session.step(images())
    student = kept.adapter.trained_model.model
    assert not torch.equal(student.stem.weight, some.adapter.trained_model.model.stem.weight)
    restore_stochastically(
        student, named_tensors(toy_classifier()), rate=0.3, key=(4, "restore", 1)
    )
    for one, two in zip(
        student.parameters(), some.adapter.trained_model.model.parameters(), strict=True
    ):
        assert torch.equal(one, two)


@pytest.mark.parametrize("symmetric", [False, True])
def test_loss_of_equal_teacher_and_student_is_their_entropy(symmetric):
    session = Session(toy_classifier(), "cotta", augment_below=0.0, symmetric=symmetric)
    expected = entropy(session.adapter.logits(images())).mean().item()
    *_, losses = session.step(images())
    assert losses.mean() == {"consistency": pytest.approx(expected, rel=1e-5)}


def test_plain_and_symmetric_loss_have_the_expected_values(monkeypatch):
    """Teacher logits (ln 3, 0), so (.75, .25); student (0, 0), so (.5, .5).

    Teacher to student: ln 2, with gradient (.5 - .75, .5 - .25). Student to teacher:
    -(ln .75 + ln .25) / 2, with gradient (-.25, .25) ln 3, from -Σ softmax(z) log t at z = (0, 0).
    """
    there = torch.tensor([[3.0, 1.0]]).log()
    back = -(torch.tensor([0.75, 0.25]).log().mean())
    for symmetric, expected in ((False, 0.693147), (True, (0.693147 + back) / 2)):
        session = Session(Brightness(), "cotta", symmetric=symmetric)
        student = torch.zeros(1, 2, requires_grad=True)
        monkeypatch.setattr(session.adapter, "teacher_logits", lambda x, random_key: there)
        monkeypatch.setattr(session.adapter, "trained_model", lambda x, statistics, z=student: z)
        loss = session.adapter.unsupervised_terms(images(), None)["consistency"]
        assert loss.item() == pytest.approx(float(expected), abs=1e-5)
        loss.backward()
        pull = (-0.25 - 0.25 * math.log(3)) / 2 if symmetric else -0.25
        assert student.grad.tolist()[0] == pytest.approx([pull, -pull], abs=1e-5)


def test_answers_change_the_student():
    right, wrong = answered_session(True), answered_session(False)
    assert right.adapter.learns_from_feedback
    one, two = (weights(session.adapter.trained_model) for session in (right, wrong))
    assert not torch.allclose(one["head.weight"], two["head.weight"], atol=1e-5)


def test_answers_about_the_teacher_change_nothing():
    right, wrong = (answered_session(correct, preset="reference") for correct in (True, False))
    assert not right.adapter.learns_from_feedback
    for name in ("wrapped", "trained_model"):
        one, two = (weights(getattr(session.adapter, name)) for session in (right, wrong))
        assert all(map(torch.equal, one.values(), two.values()))


def test_reference_preset_uses_the_published_optimiser():
    adapter = Session(toy_classifier(), "cotta", preset="reference").adapter
    (group,) = adapter.optimiser.param_groups
    assert isinstance(adapter.optimiser, torch.optim.SGD)
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, True, 5e-4)
    assert isinstance(Session(toy_classifier(), "cotta").adapter.optimiser, torch.optim.Adam)


def test_inputs_that_are_not_images_need_augment_below_zero():
    table, model = torch.rand(4, 6, generator=generator(2)), nn.Linear(6, 3)
    with Session(model, "cotta") as session, pytest.raises(InputError, match="augment"):
        session.predict(table)
    with Session(model, "cotta", augment_below=0.0) as session:
        assert session.step(table)[0].probs.shape == (4, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("restore", 1.5), ("teacher_rate", -0.1), ("augment_below", 92.0), ("n_augmentations", 0),
     ("optimiser", "lion"), ("momentum", 1.0), ("weight_decay", -1.0)],
)  # fmt: skip
def test_settings_outside_their_range_are_refused(name, value):
    with pytest.raises(SettingError, match=name):
        Session(toy_classifier(), "cotta", **{name: value})
