"""The loop."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import bitta
from bitta import Human, Session, Simulated
from bitta.errors import FeedbackError, InputError, ModelError, SettingError
from bitta.seeding import generator
from bitta.testing import toy_classifier
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


def test_learning_does_not_depend_on_the_order_of_clicks():
    ends = []
    for order in (1, -1):
        session = Session(toy_classifier(), n_queries=3, correct_memory=2)
        for number in range(3):
            for query in session.predict(images(number)).queries[::order]:
                session.answer(query.id, correct=True)
            session.learn()
        ends.append(torch.cat([p.flatten() for p in session.model.parameters()]))
    assert torch.equal(*ends)


def test_asked_samples_stay_out_of_the_unlabelled_set():
    session = Session(toy_classifier(), n_queries=3)
    x = images()
    asked = {query.index for query in session.predict(x).queries}
    rest = [row for row in range(len(x)) if row not in asked]
    assert torch.equal(session._unlabelled, x[rest])


def test_feedback_is_ordered_by_batch_then_descending_row():
    def answer(step, index):
        query = Query(id=0, index=index, label=index, uncertainty=0, input=torch.zeros(2),
                      step=step, version=0, position=0)  # fmt: skip
        return Answer(query, correct=True)

    answers = [answer(1, 0), answer(0, 1), answer(1, 5), answer(0, 4)]
    feedback = Feedback.of(answers, like=torch.zeros(1, 2))
    assert feedback.labels.tolist() == [4, 1, 5, 0]


def test_a_query_knows_what_was_shown_and_by_which_version():
    session = Session(toy_classifier(), n_queries=2)
    session.step(images(0))
    query = session.predict(images(1)).queries[0]
    assert (query.step, query.version, query.position) == (1, 1, 8 + query.index)
    assert torch.equal(query.input, images(1)[query.index])


def test_answers_by_hand_need_a_human_source():
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


def test_unknown_names_get_the_nearest_one():
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


def test_a_refused_session_leaves_the_model_alone():
    model = toy_classifier().train()
    with pytest.raises(bitta.BittaError):
        Session(model, sites=["nowhere"])
    assert all(module.training for module in model.modules())


def test_loading_checks_the_feedback_source_and_the_model(tmp_path):
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
        Session.load(path, nn.Linear(2, 2), feedback=Simulated([0] * 99))


def test_loading_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match="no file"):
        Session.load(tmp_path / "none", toy_classifier())
    (tmp_path / "noise").write_bytes(b"not safetensors")
    with pytest.raises(InputError, match="not a readable safetensors"):
        Session.load(tmp_path / "noise", toy_classifier())


def test_a_predicate_for_sites_survives_saving(tmp_path):
    path = tmp_path / "s.safetensors"
    Session(toy_classifier(), sites=lambda name, _: name == "stage1").save(path)
    assert Session.load(path, toy_classifier()).adapter.network.sites == ("stage1",)


CONTINUE = """
import sys, torch
from bitta import Session, Simulated
from bitta.seeding import generator
from bitta.testing import toy_classifier
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


def test_a_session_goes_on_bit_for_bit_in_a_new_process(tmp_path):
    def live(steps, path):
        subprocess.run([sys.executable, "-c", CONTINUE, steps, str(path)], check=True)

    live("0,6", tmp_path / "whole")
    live("0,3", tmp_path / "parts")
    live("3,6", tmp_path / "parts")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()


def test_open_questions_survive_saving(tmp_path):
    session = Session(toy_classifier(), n_queries=2)
    first = session.predict(images()).queries[0]
    session.save(tmp_path / "s")
    loaded = Session.load(tmp_path / "s", toy_classifier())
    assert isinstance(loaded.source, Human)
    loaded.answer(first.id, correct=True)
    assert loaded.learn().terms["feedback"].isfinite().all()
