"""What the server says of itself, and names that it refuses."""

import json

import numpy as np
import pytest

import bitta
from bitta.server.v2 import (
    InferRequest,
    RequestedOutput,
    RequestInput,
    Statistics,
    Took,
    V2Error,
    answer_outputs,
    classifier,
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
    server_metadata,
)
from bitta.server.v2.datatypes import datatype_of

MODEL = classifier("m", ["1.4"], input_shape=(3, 32, 32), n_classes=10, max_rows=128)
IMAGE = RequestInput("image", "FP32", np.zeros((1, 3, 32, 32), np.float32))


def test_the_server_names_itself_and_what_it_can_do_beside_the_protocol():
    assert server_metadata()["version"] == bitta.__version__
    assert "binary_tensor_data" in server_metadata()["extensions"]


def test_the_model_names_inputs_and_outputs():
    described = model_metadata(MODEL)
    assert described["versions"] == ["1.4"]
    assert described["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 32, 32]}]
    assert described["outputs"][0] == {"name": "logits", "datatype": "FP32", "shape": [-1, 10]}


def test_what_the_model_announces_is_what_it_answers_with():
    answered = answer_outputs(
        logits=np.zeros((2, 10)), class_index=[0, 1], classes=[*"abcdefghij"],
        confidence=[0.5, 0.5], prediction_ids=["x", "y"], model_version="1.4",
    )  # fmt: skip
    announced = {out.name: (out.datatype, out.shape) for out in MODEL.outputs}
    assert announced == {
        name: (datatype_of(array), (-1, *array.shape[1:])) for name, array in answered.items()
    }


def test_the_configuration_gives_sides_of_one_image():
    config = model_config(MODEL)
    assert config["max_batch_size"] == 128
    assert config["input"] == [{"name": "image", "data_type": "TYPE_FP32", "dims": [3, 32, 32]}]
    assert config["output"][1] == {
        "name": "label", "data_type": "TYPE_STRING", "dims": [1], "reshape": {"shape": []},
    }  # fmt: skip
    json.dumps(config)


def test_statistics_count_what_was_done():
    body = model_statistics(MODEL, "1.4", Statistics(n_images=5, success=Took(2, 900)))
    (of_version,) = body["model_stats"]
    assert of_version["inference_count"] == 5
    assert of_version["inference_stats"]["success"] == {"count": 2, "ns": 900}
    assert of_version["inference_stats"]["fail"] == {"count": 0, "ns": 0}


def test_the_index_tells_whether_the_model_is_ready():
    assert repository_index(MODEL) == [
        {"name": "m", "version": "1.4", "state": "READY", "reason": ""}
    ]
    assert repository_index(MODEL, ready=False, reason="begins")[0]["state"] == "UNAVAILABLE"


def test_a_request_of_known_names_passes():
    MODEL.check(InferRequest("", {"image": IMAGE}))
    MODEL.check(InferRequest("", {"image": IMAGE}, (RequestedOutput("logits", True, 3),)))


@pytest.mark.parametrize(
    ("inputs", "outputs", "sentence"),
    [
        ({}, (), "has no input 'image', which 'm' needs"),
        ({"imgae": IMAGE}, (), "unknown input 'imgae'; did you mean 'image'"),
        ({"image": IMAGE, "mask": IMAGE}, (), "unknown input 'mask'; allowed: image."),
        ({"image": IMAGE}, (RequestedOutput("labels", True),), "did you mean 'label'"),
        ({"image": IMAGE}, (RequestedOutput("label", True, 2),), "only logits can be classified"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_computed(inputs, outputs, sentence):
    with pytest.raises(V2Error, match=sentence):
        MODEL.check(InferRequest("", inputs, outputs))
