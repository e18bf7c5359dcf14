"""Tests of Session."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import bitta
from bitta import Human, Session, Simulated
from bitta.errors import FeedbackError, InputError, ModelError, SettingError
from bitta.methods.tent import Tent
from bitta.seeding import generator
from bitta.testing import check_method, toy_classifier
from bitta.types import Answer, Feedback, Query


def images(number=0, n=8):
    return torch.rand(n, 3, 8, 8, generator=generator(1, number))


def test_step_is_predict_collect_and_learn():
    truth = torch.arange(40) % 5
    one = Session(toy_classifier(), feedback=Simulated(truth))
    two = Session(toy_classifier(), feedback=Simulated(truth))
    for number in range(3):
        one.step(images(number))
        two.predict(images(number))
        two.learn()
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_order_of_answers_does_not_change_what_is_learned():
    ends = []
    for order in (1, -1):
        session = Session(toy_classifier(), n_queries=3, correct_memory=2)
        for number in range(3):
            for query in session.predict(images(number)).queries[::order]:
                session.answer(query.id, correct=True)
            session.learn()
        ends.append(torch.cat([p.flatten() for p in session.model.parameters()]))
    assert torch.equal(*ends)


def test_queried_samples_are_not_in_the_unlabelled_set():
    session = Session(toy_classifier(), n_queries=3)
    x = images()
    asked = {query.index for query in session.predict(x).queries}
    rest = [row for row in range(len(x)) if row not in asked]
    assert torch.equal(session._unlabelled, x[rest])


def test_feedback_is_ordered_by_batch_then_descending_row():
    def answer(step, index):
        query = Query(id=0, index=index, served_label=index, shown_label=index, uncertainty=0,
                      input=torch.zeros(2), step=step, version=0, position=0)  # fmt: skip
        return Answer(query, correct=True)

    answers = [answer(1, 0), answer(0, 1), answer(1, 5), answer(0, 4)]
    feedback = Feedback.from_answers(answers, like=torch.zeros(1, 2))
    assert feedback.correct.labels.tolist() == [4, 1, 5, 0]
    assert not len(feedback.incorrect.labels)


def test_query_holds_the_input_and_the_model_version():
    session = Session(toy_classifier(), n_queries=2)
    session.step(images(0))
    query = session.predict(images(1)).queries[0]
    assert (query.step, query.version, query.position) == (1, 1, 8 + query.index)
    assert torch.equal(query.input, images(1)[query.index])


def test_answer_without_a_human_source_is_refused():
    session = Session(toy_classifier(), feedback=Simulated([0] * 8))
    with pytest.raises(FeedbackError, match="answers come from Simulated"):
        session.answer(0, correct=True)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "torch.uint8 tensor"),
        (torch.zeros(0, 3, 8, 8), "hold no sample"),
        ([1, 2], "are a list"),
        (torch.zeros(3), r"shape \(3,\)"),
    ],
)
def test_bad_inputs_are_refused(inputs, message):
    with pytest.raises(InputError, match=message):
        Session(toy_classifier()).predict(inputs)


def test_error_for_an_unknown_name_suggests_the_nearest_one():
    with pytest.raises(SettingError, match="unknown method 'tnet'; did you mean 'tent'"):
        Session(toy_classifier(), "tnet")
    with pytest.raises(SettingError, match="did you mean 'dropout'"):
        Session(toy_classifier(), dropuot=0.1)
    with pytest.raises(SettingError, match="did you mean 'reference'"):
        Session(toy_classifier(), preset="refrence")
    with pytest.raises(SettingError, match="has no presets"):
        Session(toy_classifier(), "source", preset="reference")
    with pytest.raises(ModelError, match="model is a str"):
        Session("resnet50")


def test_failed_construction_leaves_the_model_unchanged():
    model = toy_classifier().train()
    with pytest.raises(bitta.BittaError):
        Session(model, sites=["nowhere"])
    assert all(module.training for module in model.modules())


def test_loading_with_another_feedback_source_or_model_is_refused(tmp_path):
    path = tmp_path / "s.safetensors"
    session = Session(toy_classifier(), feedback=Simulated([0] * 99))
    session.step(images())
    session.save(path)
    with pytest.raises(InputError, match="saved with Simulated feedback"):
        Session.load(path, toy_classifier())
    narrow = toy_classifier(width=4).train()
    with pytest.raises(InputError, match="belong to another model"):
        Session.load(path, narrow, feedback=Simulated([0] * 99))
    assert narrow.training
    with pytest.raises(InputError, match="belong to another model"):
        Session.load(path, toy_classifier("group"), feedback=Simulated([0] * 99))
    with pytest.raises(InputError, match=r"torch\.float32 .* there and torch\.float64"):
        Session.load(path, toy_classifier().double(), feedback=Simulated([0] * 99))
    with pytest.raises(InputError, match="annotator was saved with"):
        Session.load(path, toy_classifier(), feedback=Simulated([0] * 99, flip=0.1))


@pytest.mark.parametrize("method", ["tent", "bitta"])
def test_model_without_trainable_parameters_is_refused_and_unchanged(method):
    model = nn.Sequential(nn.Flatten(), nn.Tanh()).train()
    message = "nothing to train"
    with pytest.raises(ModelError, match=message):
        Session(model, method, dropout=0)
    assert model.training


def test_frozen_parameters_stay_frozen_unless_all_are():
    model = toy_classifier()
    model.stem.requires_grad_(False)
    before = model.stem.weight.clone()
    with Session(model, n_queries=2, lr=0.1) as session:
        session.step(images())
    assert torch.equal(model.stem.weight, before)
    assert not model.stem.weight.requires_grad
    served = toy_classifier().requires_grad_(False)
    with Session(served, n_queries=2, lr=0.1) as session:
        session.step(images())
    assert not torch.equal(served.stem.weight, before)
    assert not any(parameter.requires_grad for parameter in served.parameters())


def test_autograd_of_the_caller_does_not_affect_the_session():
    encoder = nn.Conv2d(3, 3, 1)
    session = Session(toy_classifier(), n_queries=2, feedback=Simulated([0] * 99))
    session.step(encoder(images()))
    assert encoder.weight.grad is None
    with torch.no_grad():
        losses = session.step(images())[2]
    assert losses.terms


def test_predict_on_a_closed_session_is_refused():
    session = Session(toy_classifier())
    session.close()
    session.close()
    with pytest.raises(ModelError, match="this session is closed"):
        session.predict(images())


def test_new_session_takes_over_the_model_of_an_open_one():
    model = toy_classifier().train()
    first = Session(model, "tent")
    first.step(images())
    with Session(model, "bitta") as second:
        second.step(images())
        with pytest.raises(ModelError, match="taken its model over"):
            first.predict(images())
        first.close()
        assert not model.training
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_inputs_that_are_not_finite_are_refused_and_change_nothing():
    session = Session(toy_classifier())
    before = session.model.norm.running_mean.clone()
    with pytest.raises(InputError, match="not finite"):
        session.predict(torch.full((2, 3, 8, 8), torch.nan))
    assert torch.equal(session.model.norm.running_mean, before)


@pytest.mark.parametrize("logits", [0, 1, lambda output: output[1]], ids=["0", "1", "function"])
def test_position_of_the_logits_is_saved_unless_it_is_a_function(tmp_path, logits):
    class Pair(type(toy_classifier())):
        def forward(self, x):
            scores = super().forward(x)
            return (scores, scores)

    def model():
        pair = toy_classifier()
        pair.__class__ = Pair
        return pair

    session = Session(model(), n_queries=1, logits=logits)
    session.step(images())
    session.save(tmp_path / "s")
    again = {"logits": logits} if callable(logits) else {}
    one = session.predict(images(1)).probs
    assert torch.equal(one, Session.load(tmp_path / "s", model(), **again).predict(images(1)).probs)


def test_answer_after_a_reset_is_learned_from():
    session = Session(toy_classifier(), n_queries=1)
    query = session.predict(images()).queries[0]
    session.reset()
    session.answer(query.id, correct=True)
    assert session.learn().terms["feedback"].isfinite().all()


def test_reset_of_a_closed_session_is_refused():
    model = toy_classifier()
    with Session(model, n_queries=0, lr=0.1) as session:
        session.step(images())
    learned = model.stem.weight.clone()
    with pytest.raises(ModelError, match="closed"):
        session.reset()
    assert torch.equal(model.stem.weight, learned)


@pytest.mark.parametrize("verdict", ["no", None, 1, 0.0])
def test_verdict_that_is_not_a_bool_is_refused(verdict):
    session = Session(toy_classifier(), n_queries=1)
    query = session.predict(images()).queries[0]
    with pytest.raises(FeedbackError, match="allowed: True or False"):
        session.answer(query.id, correct=verdict)
    session.answer(query.id, correct=np.True_)


def test_inputs_of_another_shape_are_refused():
    session = Session(toy_classifier())
    session.step(images())
    with pytest.raises(InputError, match=r"now \(3, 16, 16\) and were \(3, 8, 8\)"):
        session.predict(torch.rand(2, 3, 16, 16))


def test_session_learns_inside_inference_mode():
    session = Session(toy_classifier(), n_queries=2, feedback=Simulated([0] * 99))
    with torch.inference_mode():
        for number in range(2):
            losses = session.step(images(number) * 1.0)[2]
    assert losses.terms["feedback"].isfinite().all()


def test_annotator_of_another_session_is_refused():
    annotator = Simulated([0] * 99, delay=2)
    Session(toy_classifier(), feedback=annotator).step(images())
    with pytest.raises(FeedbackError, match="one per session"):
        Session(toy_classifier(), feedback=annotator).step(images())


def test_method_that_is_not_an_adapter_is_refused():
    for method in (None, nn.Linear):
        with pytest.raises(SettingError, match="subclass of Adapter"):
            Session(toy_classifier(), method)
    with pytest.raises(SettingError, match="seed is 'a'"):
        Session(toy_classifier(), seed="a")


def test_custom_method_class_works_without_the_method_table(tmp_path):
    class CustomTent(Tent):
        """Tent, under another name."""

    with Session(toy_classifier(), CustomTent, lr=0.01) as session:
        session.step(images())
        session.save(tmp_path / "s")
    assert (
        Session.load(tmp_path / "s", toy_classifier(), method=CustomTent).adapter.config.lr == 0.01
    )
    with pytest.raises(InputError, match="give method=CustomTent again"):
        Session.load(tmp_path / "s", toy_classifier())
    check_method(CustomTent, norms=["batch"])
    with pytest.raises(SettingError, match="unknown norm 'foo'"):
        check_method(CustomTent, norms=["foo"])


def test_capacity_of_human_feedback_is_saved(tmp_path):
    session = Session(toy_classifier(), n_queries=8, feedback=Human(capacity=4))
    session.predict(images())
    session.save(tmp_path / "s")
    assert Session.load(tmp_path / "s", toy_classifier()).feedback_source.capacity == 4


def test_loading_a_missing_or_foreign_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no file"):
        Session.load(tmp_path / "none", toy_classifier())
    (tmp_path / "noise").write_bytes(b"not safetensors")
    with pytest.raises(InputError, match="not a readable safetensors"):
        Session.load(tmp_path / "noise", toy_classifier())


def test_sites_given_as_a_predicate_are_saved_as_names(tmp_path):
    path = tmp_path / "s.safetensors"
    Session(toy_classifier(), sites=lambda name, _: name == "stage1").save(path)
    assert Session.load(path, toy_classifier()).adapter.wrapped.sites == ("stage1",)


CONTINUE = """
import sys, torch
from bitta import Session, Simulated
from bitta.methods.tent import Tent
from bitta.seeding import generator
from bitta.testing import check_method, toy_classifier
torch.set_num_threads(1)
truth = torch.arange(400) % 5
steps, path = [int(step) for step in sys.argv[1].split(",")], sys.argv[2]
feedback = Simulated(truth, flip=.2, delay=2)
if steps[0] == 0:
    session = Session(toy_classifier(), feedback=feedback, n_queries=2, seed=4, restore=.1)
else:
    session = Session.load(path, toy_classifier(seed=5), feedback=feedback)
for step in range(*steps):
    session.step(torch.rand(8, 3, 8, 8, generator=generator(1, step)))
session.save(path)
"""


@pytest.mark.full
def test_session_continues_bit_for_bit_in_a_new_process(tmp_path):
    def live(steps, path):
        subprocess.run([sys.executable, "-c", CONTINUE, steps, str(path)], check=True)

    live("0,6", tmp_path / "whole")
    live("0,3", tmp_path / "parts")
    live("3,6", tmp_path / "parts")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()


def test_open_questions_are_saved(tmp_path):
    session = Session(toy_classifier(), n_queries=2)
    first = session.predict(images()).queries[0]
    session.save(tmp_path / "s")
    loaded = Session.load(tmp_path / "s", toy_classifier())
    assert isinstance(loaded.feedback_source, Human)
    loaded.answer(first.id, correct=True)
    assert loaded.learn().terms["feedback"].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_models_of_other_precisions_adapt_with_fan_out(dtype):
    session = Session(toy_classifier().to(dtype), n_queries=2, feedback=Simulated([0] * 99))
    prediction, _, losses = session.step(images())
    assert session.adapter.wrapped.can_fan_out is True
    assert prediction.probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert losses.terms["feedback"].isfinite().all()


def test_settings_of_numpy_types_can_be_saved(tmp_path):
    source = Simulated(torch.zeros(8), flip=np.float32(0.5), seed=np.int64(1))
    settings = {"n_queries": np.int64(1), "every": np.int64(1), "price": np.float32(2)}
    with Session(toy_classifier(), feedback=source, window=np.int64(8), **settings) as session:
        session.step(images())
        session.save(tmp_path / "s.safetensors")


@pytest.mark.parametrize("feedback", [lambda query: True, Simulated])
def test_feedback_that_is_not_a_source_is_refused(feedback):
    with pytest.raises(SettingError, match=r"feedback is <.*a source that answers is needed"):
        Session(toy_classifier(), feedback=feedback)
