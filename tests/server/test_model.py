"""What a server serves, and what it refuses to."""

import sys

import pytest
from torch import nn

from bitta.errors import InputError, SettingError
from bitta.server.model import load_served_model

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


def test_weights_tell_classes_shape_and_name():
    model = load_served_model("embedded:cifar10-resnet8")
    assert model.input_shape == (3, 32, 32)
    assert model.classes[3] == "cat"
    assert model.name == "cifar10-resnet8"
    assert isinstance(model.module, nn.Module)


def test_any_module_with_what_it_cannot_tell(factory, tmp_path):
    classes = tmp_path / "classes.txt"
    classes.write_text("ham\nspam\n\n")
    model = load_served_model(factory, classes=classes, input_shape=(3, 16, 16))
    assert (model.classes, model.name) == (("ham", "spam"), "make")


@pytest.mark.parametrize(
    ("names", "shape", "said"),
    [
        ("ham\nspam", None, "give --input-shape"),
        (None, (3, 16, 16), "give --classes FILE"),
        ("ham\nspam\neggs", (3, 16, 16), "has 2 outputs, but 3 class names were given"),
        ("ham\nham", (3, 16, 16), "contains a name twice"),
        ("ham\nspam", (1, 16, 16), "cannot read images of"),
    ],
)
def test_what_does_not_fit_is_told_in_a_sentence(factory, tmp_path, names, shape, said):
    path = None
    if names is not None:
        path = tmp_path / "classes.txt"
        path.write_text(names)
    with pytest.raises((SettingError, InputError), match=said):
        load_served_model(factory, classes=path, input_shape=shape)
