"""Responses and metadata: bytes computed by hand, choice of the encoding, and unknown names."""

import gzip
import json
import struct
import zlib

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
    encode_response,
    model_config,
    model_metadata,
    model_statistics,
    prediction_outputs,
    repository_index,
    server_metadata,
)
from bitta.server.protocol.tensors import choose_encoding, datatype_of

OUTPUTS = prediction_outputs(
    logits=np.array([[0.5, 2.0, -1.0]]),
    class_index=[1],
    classes=["cat", "dög", "frog"],
    confidence=[0.75],
    prediction_ids=["01ABC"],
    model_version="1.4",
)


def answered(*outputs, **options):
    request = InferRequest(options.pop("id", ""), {}, outputs, options.pop("parameters", {}))
    return encode_response(OUTPUTS, request, model_name="m", model_version="1.4", **options)


def test_request_without_outputs_gets_all_in_binary():
    body, headers = answered(id="r7")
    length = int(headers["Inference-Header-Content-Length"])
    fields = json.loads(body[:length])
    assert headers["Content-Type"] == "application/octet-stream"
    assert (fields["id"], fields["model_name"], fields["model_version"]) == ("r7", "m", "1.4")
    described = [
        (out["name"], out["datatype"], out["shape"], out["parameters"]["binary_data_size"])
        for out in fields["outputs"]
    ]
    assert described == [
        ("logits", "FP32", [1, 3], 12),
        ("label", "BYTES", [1], 8),
        ("class_index", "INT64", [1], 8),
        ("confidence", "FP32", [1], 4),
        ("prediction_id", "BYTES", [1], 9),
        ("model_version", "BYTES", [1], 7),
    ]
    assert body[length:] == (
        struct.pack("<3f", 0.5, 2.0, -1.0)
        + b"\x04\0\0\0d\xc3\xb6g"
        + b"\x01\0\0\0\0\0\0\0"
        + struct.pack("<f", 0.75)
        + b"\x05\0\0\x0001ABC"
        + b"\x03\0\0\x001.4"
    )


def test_request_for_json_gets_all_in_json():
    body, headers = answered(parameters={"binary_data_output": False})
    assert headers == {"Content-Type": "application/json"}
    fields = json.loads(body)
    assert "id" not in fields
    assert {out["name"]: out["data"] for out in fields["outputs"]} == {
        "logits": [0.5, 2.0, -1.0],
        "label": ["dög"],
        "class_index": [1],
        "confidence": [0.75],
        "prediction_id": ["01ABC"],
        "model_version": ["1.4"],
    }


def test_requested_outputs_are_returned_in_requested_form():
    body, headers = answered(
        RequestedOutput("confidence", is_binary=True), RequestedOutput("label", is_binary=False)
    )
    length = int(headers["Inference-Header-Content-Length"])
    assert json.loads(body[:length])["outputs"] == [
        {
            "name": "confidence",
            "datatype": "FP32",
            "shape": [1],
            "parameters": {"binary_data_size": 4},
        },
        {"name": "label", "datatype": "BYTES", "shape": [1], "data": ["dög"]},
    ]
    assert body[length:] == struct.pack("<f", 0.75)


def test_classification_returns_highest_values_with_index_and_label():
    body, _ = answered(
        RequestedOutput("logits", is_binary=False, n_classification=2),
        classes=["cat", "dög", "frog"],
    )
    assert json.loads(body)["outputs"] == [
        {
            "name": "logits",
            "datatype": "BYTES",
            "shape": [1, 2],
            "data": ["2.000000:1:dög", "0.500000:0:cat"],
        }
    ]


def test_classification_without_labels_returns_at_most_all_classes():
    body, _ = answered(RequestedOutput("logits", is_binary=False, n_classification=10**9))
    (out,) = json.loads(body)["outputs"]
    assert out["data"] == ["2.000000:1", "0.500000:0", "-1.000000:2"]


def test_classification_orders_ties_by_index_and_nan_last():
    request = InferRequest("", {}, (RequestedOutput("a", is_binary=False, n_classification=4),))
    values = np.array([[1, np.nan, 3, 3]], np.float32)
    body, _ = encode_response({"a": values}, request, model_name="m", model_version="1")
    assert json.loads(body)["outputs"][0]["data"] == [
        "3.000000:2", "3.000000:3", "1.000000:0", "nan:1",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["label", "confidence"])
def test_classification_of_other_outputs_is_refused(name):
    with pytest.raises(ProtocolError, match=rf"output '{name}' .* \[n, classes\]"):
        answered(RequestedOutput(name, is_binary=True, n_classification=1))


def test_unknown_output_is_refused_with_nearest_name():
    with pytest.raises(ProtocolError, match="unknown output 'logit'; did you mean 'logits'"):
        answered(RequestedOutput("logit", is_binary=True))


def test_infinity_is_refused_in_json_but_not_in_binary():
    outputs = {"a": np.array([np.inf], np.float32)}
    asked = InferRequest("", {}, (RequestedOutput("a", is_binary=False),))
    with pytest.raises(ProtocolError, match="request it with binary_data true"):
        encode_response(outputs, asked, model_name="m", model_version="1")
    body, _ = encode_response(outputs, InferRequest("", {}), model_name="m", model_version="1")
    assert body.endswith(b"\0\0\x80\x7f")


@pytest.mark.parametrize(
    ("header", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)]
)
def test_json_length_counts_before_compression(header, unpack):
    plain, before = answered()
    body, headers = answered(accept_encoding=header)
    assert headers == before | {"Content-Encoding": header}
    assert unpack(body) == plain


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        (None, None), ("", None), ("identity", None), ("br", None), ("gzip", "gzip"),
        ("deflate", "deflate"), ("deflate, GZIP", "gzip"), ("gzip;q=0.1, deflate;q=0.9", "deflate"),
        ("gzip;q=0", None), ("*", "gzip"), ("gzip;q=0, *", "deflate"), ("*;q=0", None),
        ("gzip;q=high", None), ("gzip;level=9", None), (";;,,=", None), ("gzip;q=nan", None),
    ],
)  # fmt: skip
def test_accepted_encoding_is_chosen(header, chosen):
    assert choose_encoding(header) == chosen


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
