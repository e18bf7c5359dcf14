"""Metadata of the server and model, and refusal of unknown names."""

import json

import numpy as np
import pytest

import bitta
from bitta.server.protocol import (
    InferRequest,
    ModelStatistics,
    ProtocolError,
    RequestedOutput,
    RequestInput,
    StatisticDuration,
    classifier_spec,
    model_config,
    model_metadata,
    model_statistics,
    prediction_outputs,
    repository_index,
    server_metadata,
)
from bitta.server.protocol.tensors import datatype_of

MODEL = classifier_spec("m", ["1.4"], input_shape=(3, 32, 32), n_classes=10, max_rows=128)
IMAGE = RequestInput("image", "FP32", np.zeros((1, 3, 32, 32), np.float32))


def test_server_metadata_lists_version_and_extensions():
    assert server_metadata()["version"] == bitta.__version__
    assert "binary_tensor_data" in server_metadata()["extensions"]


def test_model_metadata_lists_inputs_and_outputs():
    described = model_metadata(MODEL)
    assert described["versions"] == ["1.4"]
    assert described["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 3, 32, 32]}]
    assert described["outputs"][0] == {"name": "logits", "datatype": "FP32", "shape": [-1, 10]}


def test_announced_outputs_match_returned_outputs():
    answered = prediction_outputs(
        logits=np.zeros((2, 10)), class_index=[0, 1], classes=[*"abcdefghij"],
        confidence=[0.5, 0.5], prediction_ids=["x", "y"], model_version="1.4",
    )  # fmt: skip
    announced = {out.name: (out.datatype, out.shape) for out in MODEL.outputs}
    assert announced == {
        name: (datatype_of(array), (-1, *array.shape[1:])) for name, array in answered.items()
    }


def test_model_config_gives_shape_of_one_image():
    config = model_config(MODEL)
    assert config["max_batch_size"] == 128
    assert config["input"] == [{"name": "image", "data_type": "TYPE_FP32", "dims": [3, 32, 32]}]
    assert config["output"][1] == {
        "name": "label", "data_type": "TYPE_STRING", "dims": [1], "reshape": {"shape": []},
    }  # fmt: skip
    json.dumps(config)


def test_statistics_report_counts_and_durations():
    body = model_statistics(
        MODEL, "1.4", ModelStatistics(n_images=5, success=StatisticDuration(2, 900))
    )
    (entry,) = body["model_stats"]
    assert entry["inference_count"] == 5
    assert entry["inference_stats"]["success"] == {"count": 2, "ns": 900}
    assert entry["inference_stats"]["fail"] == {"count": 0, "ns": 0}


def test_repository_index_reports_readiness():
    assert repository_index(MODEL) == [
        {"name": "m", "version": "1.4", "state": "READY", "reason": ""}
    ]
    assert repository_index(MODEL, is_ready=False, reason="begins")[0]["state"] == "UNAVAILABLE"


def test_request_with_known_names_passes():
    MODEL.check_request(InferRequest("", {"image": IMAGE}))
    MODEL.check_request(InferRequest("", {"image": IMAGE}, (RequestedOutput("logits", True, 3),)))


@pytest.mark.parametrize(
    ("inputs", "outputs", "sentence"),
    [
        ({}, (), "has no input 'image', which 'm' needs"),
        ({"imgae": IMAGE}, (), "unknown input 'imgae'; did you mean 'image'"),
        ({"image": IMAGE, "mask": IMAGE}, (), "unknown input 'mask'; allowed: image."),
        ({"image": IMAGE}, (RequestedOutput("labels", True),), "did you mean 'label'"),
        ({"image": IMAGE}, (RequestedOutput("label", True, 2),), "only the logits of"),
    ],
)
def test_unknown_names_are_refused(inputs, outputs, sentence):
    with pytest.raises(ProtocolError, match=sentence):
        MODEL.check_request(InferRequest("", inputs, outputs))
