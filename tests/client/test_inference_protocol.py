"""Tests of the bodies of requests and responses, which are decoded by hand."""

import io
import json
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from bitta.client import Client, ClientError, ServedPrediction, UnavailableError
from bitta.client.images import pack_images
from bitta.client.inference_protocol import read_response
from bitta.errors import InputError
from bitta.server.protocol import (
    JSON_LENGTH_HEADER,
    encode_response,
    parse_request,
    prediction_outputs,
    read_images,
)
from client.fake_server import KEY, PNG, FakeServer

SHAPE = (3, 2, 2)


def last_request(server):
    """Return JSON and tensors of the last inference request."""
    method, path, headers, body = server.calls[-1]
    assert (method, path) == ("POST", "/v2/models/pets/infer")
    length = int(headers["inference-header-content-length"])
    return json.loads(body[:length]), body[length:]


def test_float_images_are_sent_as_little_endian_fp32(client, server):
    images = np.arange(12, dtype=">f8").reshape(1, *SHAPE)
    client.predict(images)
    fields, tail = last_request(server)
    assert fields["inputs"] == [
        {
            "name": "image", "datatype": "FP32", "shape": [1, 3, 2, 2],
            "parameters": {"binary_data_size": 48},
        }
    ]  # fmt: skip
    assert struct.unpack("<12f", tail) == tuple(range(12))
    assert [each["name"] for each in fields["outputs"]] == [
        "prediction_id", "label", "class_index", "confidence", "model_version",
    ]  # fmt: skip
    assert all(each["parameters"] == {"binary_data": True} for each in fields["outputs"])


def test_uint8_images_are_sent_in_row_order_for_any_strides(client, server):
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    client.predict(pixels.transpose(2, 0, 1))
    fields, tail = last_request(server)
    assert fields["inputs"][0]["datatype"] == "UINT8"
    assert list(tail) == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]


def test_encoded_pictures_are_sent_as_bytes_with_lengths(client, server):
    client.predict([b"one", bytearray(b"fourteen")])
    fields, tail = last_request(server)
    assert fields["inputs"][0]["datatype"] == "BYTES"
    assert fields["inputs"][0]["shape"] == [2]
    assert tail == b"\x03\0\0\0one\x08\0\0\0fourteen"


@pytest.mark.parametrize("as_text", [True, False])
def test_path_sends_the_file_content(client, server, tmp_path, as_text):
    path = tmp_path / "a.jpg"
    path.write_bytes(b"jpeg")
    client.predict(str(path) if as_text else path)
    assert last_request(server)[1] == b"\x04\0\0\0jpeg"


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1"])
def test_pillow_image_is_sent_as_lossless_png(client, server, mode):
    picture = Image.new("RGB", (5, 4), (255, 255, 255)).convert(mode)
    client.predict(picture)
    _, tail = last_request(server)
    received = Image.open(io.BytesIO(tail[4:]))
    assert received.format == "PNG"
    assert received.convert("RGB").tobytes() == picture.convert("RGB").tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_torch_tensor_of_any_float_type_with_gradient_is_sent_as_fp32(client, server, dtype):
    client.predict(torch.ones(SHAPE, dtype=dtype, requires_grad=True))
    fields, tail = last_request(server)
    assert fields["inputs"][0]["shape"] == [1, 3, 2, 2]
    assert struct.unpack("<12f", tail) == (1.0,) * 12


def test_list_of_arrays_is_stacked(client, server):
    served = client.predict([np.zeros(SHAPE, np.uint8), torch.ones(SHAPE, dtype=torch.uint8)])
    assert [each.prediction_id for each in served] == ["p0", "p1"]
    assert list(last_request(server)[1]) == [0] * 12 + [1] * 12


def test_many_images_are_split_into_ordered_requests(client, server):
    served = client.predict(np.zeros((150, *SHAPE), np.float32))
    assert [each.prediction_id for each in served] == [f"p{row}" for row in range(150)]
    assert [call[1].endswith("infer") for call in server.calls].count(True) == 3


def test_large_pictures_are_split_into_requests():
    sizes = [len(tensor.data) for tensor in pack_images([bytes(20 * 2**20)] * 3, SHAPE)]
    assert sizes == [20 * 2**20 + 4] * 3


def test_empty_list_sends_no_request(client, server):
    assert client.predict([]) == []
    assert not any(call[1].endswith("infer") for call in server.calls)


def test_prediction_is_returned_with_all_fields(client):
    assert client.predict(b"png") == [
        ServedPrediction("p0", label="cat", class_index=0, confidence=0.75, model_version="1.3")
    ]


def test_model_input_is_fetched_once(client, server):
    client.predict(b"one")
    client.predict(b"two")
    assert [call[1] for call in server.calls] == [
        "/v2/repository/index", "/v2/models/pets",
        "/v2/models/pets/infer", "/v2/models/pets/infer",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (3, "image 0 is of type int; allowed: encoded bytes, a path"),
        ([b"a", None], "image 1 is of type NoneType"),
        ([np.zeros(SHAPE), b"a"], "mixes arrays and encoded images"),
        ([b"a", np.zeros(SHAPE)], "image 1 is of type ndarray.*not mixed"),
        (np.zeros(SHAPE, np.int64), "holds int64; allowed: uint8"),
        (np.zeros((2, 2)), r"shape \[2, 2\]; the model takes \(3, 2, 2\) for one image"),
        ([np.zeros(SHAPE), np.zeros((3, 2, 1))], r"image 1 is float32 of shape \[3, 2, 1\]"),
        ([np.zeros((1, *SHAPE))], r"shape \[1, 3, 2, 2\]; the model takes \(3, 2, 2\)"),
        ("/no/such.png", "the image '/no/such.png' cannot be read: No such file"),
    ],
    ids=str,
)
def test_invalid_image_is_refused_before_sending(client, server, images, sentence):
    with pytest.raises(InputError, match=sentence):
        client.predict(images)
    assert server.n_served == 0


def response(outputs, tail=b""):
    head = json.dumps({"outputs": outputs}).encode()
    return head + tail, str(len(head))


@pytest.mark.parametrize(
    "given",
    [
        (b"", None),
        (b"{}", None),
        (b"[1]", "3"),
        (b"{", "x"),
        response([{"name": "confidence", "datatype": "FP32", "shape": [2],
                   "parameters": {"binary_data_size": 4}}], b"1234"),
        response([{"name": "label", "datatype": "BYTES", "shape": [1],
                   "parameters": {"binary_data_size": 6}}], b"\x09\0\0\0ab"),
        response([{"name": "label", "datatype": "FP64", "shape": [1],
                   "parameters": {"binary_data_size": 0}}]),
    ],
)  # fmt: skip
def test_unreadable_response_raises_unavailable_error(given):
    with pytest.raises(UnavailableError, match="could not be read"):
        read_response(*given)


def test_response_without_bitta_outputs_raises_client_error():
    output = {"name": "logits", "datatype": "FP32", "shape": [1], "data": [0.5]}
    with pytest.raises(ClientError, match=r"is this a bitta server\? It sent: logits"):
        read_response(*response([output]))


def test_outputs_in_json_are_read():
    outputs = [
        {"name": name, "datatype": "any", "shape": [1], "data": [value]}
        for name, value in {
            "prediction_id": "p", "label": "é", "class_index": 4, "confidence": 0.5,
            "model_version": "2.0",
        }.items()
    ]  # fmt: skip
    assert read_response(json.dumps({"outputs": outputs}).encode(), None) == [
        ServedPrediction("p", "é", 4, 0.5, "2.0")
    ]


def test_image_shape_comes_from_the_server():
    flat = FakeServer(shape=(7,))
    with Client("http://server", KEY, transport=flat.transport) as client:
        assert len(client.predict(np.zeros((4, 7)))) == 4
        assert len(client.predict(np.zeros(7))) == 1


@pytest.mark.parametrize(
    "images",
    [np.ones((2, *SHAPE), np.float32), np.full((2, *SHAPE), 255, np.uint8), [PNG, PNG]],
    ids=["float", "uint8", "pictures"],
)
def test_server_parses_the_images_of_a_request(client, server, images):
    client.predict(images)
    _, _, headers, body = server.calls[-1]
    request = parse_request(body, int(headers["inference-header-content-length"]))
    read = read_images(request.inputs["image"], SHAPE)
    assert read.shape == (2, *SHAPE)
    red = np.array([1, 0, 0], np.float32).reshape(3, 1, 1)
    assert np.array_equal(read, np.broadcast_to(red if isinstance(images, list) else 1, read.shape))


def test_client_parses_the_response_of_the_server(client, server):
    client.predict(b"png")
    _, _, headers, body = server.calls[-1]
    request = parse_request(body, int(headers["inference-header-content-length"]))
    outputs = prediction_outputs(
        logits=np.zeros((1, 2)), class_index=[1], classes=["cat", "dög"], confidence=[0.25],
        prediction_ids=["p"], model_version="3.1",
    )  # fmt: skip
    content, head = encode_response(outputs, request, model_name="pets", model_version="3.1")
    assert read_response(content, head[JSON_LENGTH_HEADER]) == [
        ServedPrediction("p", "dög", 1, 0.25, "3.1")
    ]
