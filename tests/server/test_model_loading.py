"""Loading of the served model, and its refusal."""

import sys

import pytest
from torch import nn

from bitta.errors import InputError, SettingError
from bitta.server.model_loading import load_served_model

FACTORY = """
from torch import nn

def make():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(4, 2))
"""


@pytest.fixture
def factory(tmp_path, monkeypatch):
    (tmp_path / "servedmodels.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    yield "servedmodels:make"
    sys.modules.pop("servedmodels", None)


def test_weights_with_card_give_classes_shape_and_name():
    model = load_served_model("embedded:cifar10-resnet8")
    assert model.input_shape == (3, 32, 32)
    assert model.classes[3] == "cat"
    assert model.name == "cifar10-resnet8"
    assert isinstance(model.module, nn.Module)


def test_factory_uses_given_classes_and_shape(factory, tmp_path):
    classes = tmp_path / "classes.txt"
    classes.write_text("ham\nspam\n\n")
    model = load_served_model(factory, classes=classes, input_shape=(3, 16, 16))
    assert (model.classes, model.name) == (("ham", "spam"), "make")


@pytest.mark.parametrize(
    ("names", "shape", "message"),
    [
        ("ham\nspam", None, "give --input-shape"),
        (None, (3, 16, 16), "give --classes FILE"),
        ("ham\nspam\neggs", (3, 16, 16), "has 2 outputs, but 3 class names were given"),
        ("ham\nham", (3, 16, 16), "contains 'ham' more than once"),
        ("ham\nspam", (1, 16, 16), "cannot read images of"),
    ],
)
def test_missing_or_wrong_information_is_refused(factory, tmp_path, names, shape, message):
    path = None
    if names is not None:
        path = tmp_path / "classes.txt"
        path.write_text(names)
    with pytest.raises((SettingError, InputError), match=message):
        load_served_model(factory, classes=path, input_shape=shape)
