"""Requests: binary data computed by hand, and one error message for every mistake."""

import base64
import gzip
import json
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from bitta.server.protocol import ProtocolError, parse_header_length, parse_request
from bitta.server.settings import RequestLimits


def body(*inputs, **fields):
    return json.dumps({"inputs": list(inputs), **fields}).encode()


def tensor(name="x", datatype="FP32", shape=(2,), **fields):
    return {"name": name, "datatype": datatype, "shape": list(shape), **fields}


def binary(raw, *, datatype, shape, size=None):
    size = len(raw) if size is None else size
    header = body(tensor(datatype=datatype, shape=shape, parameters={"binary_data_size": size}))
    return header + raw, len(header)


def read(raw, **kind):
    return parse_request(*binary(raw, **kind)).inputs["x"].array


def test_json_tensor_is_read_row_by_row():
    request = parse_request(body(tensor(shape=(2, 2), data=[1, 2.5, -3, 4]), id="r1"), None)
    assert request.id == "r1"
    assert request.inputs["x"].array.tolist() == [[1, 2.5], [-3, 4]]
    assert request.inputs["x"].array.dtype == np.float32


def test_nested_json_lists_give_same_tensor_as_flat_list():
    nested = parse_request(body(tensor(shape=(2, 1, 2), data=[[[1, 2]], [[3, 4]]])), None)
    assert nested.inputs["x"].array.tolist() == [[[1, 2]], [[3, 4]]]


@pytest.mark.parametrize(
    ("datatype", "raw", "value"),
    [
        ("BOOL", b"\x01", True),
        ("UINT8", b"\xfe", 254),
        ("UINT16", b"\x02\x01", 258),
        ("UINT32", b"\x00\x00\x00\x80", 2**31),
        ("UINT64", b"\xff" * 8, 2**64 - 1),
        ("INT8", b"\xff", -1),
        ("INT16", b"\xfe\xff", -2),
        ("INT32", b"\x00\x00\x00\x80", -(2**31)),
        ("INT64", b"\x01" + b"\0" * 7, 1),
        ("FP16", b"\x00\x3c", 1.0),
        ("FP32", b"\x00\x00\xc0\xbf", -1.5),
        ("FP64", b"\0" * 6 + b"\xf0\x3f", 1.0),
        ("BF16", b"\xc0\xbf", -1.5),  # the upper half of the FP32 above
        ("BYTES", b"\x03\x00\x00\x00a\x00\xff", b"a\x00\xff"),
    ],
)
def test_binary_tensor_is_read_as_little_endian(datatype, raw, value):
    array = read(raw, datatype=datatype, shape=(1,))
    assert array[0] == value
    assert array.shape == (1,)
    assert not array.flags.writeable


def test_binary_tensors_are_read_in_order_of_inputs_at_any_alignment():
    header = body(
        tensor("a", "UINT8", (3,), parameters={"binary_data_size": 3}),
        tensor("b", "INT8", (1,), data=[5]),
        tensor("c", "FP32", (1,), parameters={"binary_data_size": 4}),
    )
    inputs = parse_request(header + b"\x01\x02\x03" + struct.pack("<f", 0.5), len(header)).inputs
    assert inputs["a"].array.tolist() == [1, 2, 3]
    assert inputs["b"].array.tolist() == [5]
    assert inputs["c"].array.tolist() == [0.5]


def test_bytes_in_json_are_utf8_or_base64():
    plain = tensor("t", "BYTES", (1,), data=["né"])
    packed = tensor(
        "p", "BYTES", (1,), data=[base64.b64encode(b"\xff\xd8").decode()],
        parameters={"content_type": "base64"},
    )  # fmt: skip
    inputs = parse_request(body(plain, packed), None).inputs
    assert inputs["t"].array.tolist() == [b"n\xc3\xa9"]
    assert inputs["p"].array.tolist() == [b"\xff\xd8"]


def test_json_tensor_keeps_nan_and_infinity():
    array = parse_request(b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], '
                  b'"data": [NaN, -Infinity]}]}', None).inputs["x"].array  # fmt: skip
    assert np.isnan(array[0])
    assert array[1] == -np.inf


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress),
     ("identity", bytes), ("", bytes), (None, bytes)],
)  # fmt: skip
def test_json_length_counts_after_decompression(encoding, pack):
    content, length = binary(b"\x07", datatype="UINT8", shape=(1,))
    assert parse_request(pack(content), length, encoding).inputs["x"].array.tolist() == [7]


def test_requested_outputs_are_json_unless_binary_is_requested():
    x = tensor(data=[1, 2])
    asked = [{"name": "a"}, {"name": "b", "parameters": {"binary_data": True}},
             {"name": "c", "parameters": {"binary_data": False, "classification": 3}}]  # fmt: skip
    plain = parse_request(body(x, outputs=asked), None).outputs
    assert [(out.name, out.is_binary, out.n_classification) for out in plain] == [
        ("a", False, 0), ("b", True, 0), ("c", False, 3),
    ]  # fmt: skip
    request = parse_request(body(x, outputs=asked, parameters={"binary_data_output": True}), None)
    assert [out.is_binary for out in request.outputs] == [True, True, False]


def test_request_without_outputs_gets_all_in_binary_by_default():
    x = tensor(data=[1, 2])
    by_default = parse_request(body(x), None).requested_outputs(["a", "b"])
    assert [(out.name, out.is_binary) for out in by_default] == [("a", True), ("b", True)]
    in_json = parse_request(body(x, parameters={"binary_data_output": False}), None)
    assert [out.is_binary for out in in_json.requested_outputs(["a", "b"])] == [False, False]


X = tensor(data=[1, 2])
MISTAKES = {
    "not JSON": (b"{", "cannot be read"),
    "not UTF-8": (b"\xff{}", "cannot be read"),
    "no object": (b"[1]", r"the request is \[1\]; a JSON object"),
    "a field twice": (b'{"id": "a", "id": "b"}', "given twice"),
    "nesting": (b"[" * 100_000, "nested too deeply"),
    "digits": (b'{"id": ' + b"9" * 5000 + b"}", "cannot be read"),
    "a typing error": (body(X, ouputs=[]), "unknown field 'ouputs'; did you mean 'outputs'"),
    "no inputs": (b"{}", "has no inputs; a list is needed"),
    "null": (b'{"inputs": null}', "inputs of the request is None; a list"),
    "empty": (body(), "inputs of the request is empty"),
    "a number": (body(3), r"inputs\[0\] is 3; a JSON object"),
    "no name": (body({"shape": [1]}), r"inputs\[0\] has no name"),
    "empty name": (body(tensor("")), "1 to 256 characters"),
    "twice": (body(X, X), "input 'x' is given twice"),
    "id": (body(X, id=7), "id of the request is 7; a string"),
    "id with a line": (body(X, id="a\r\nSet-Cookie: b"), "printable"),
    "datatype": (body(tensor(datatype="FP23", data=[1, 2])), "'FP23'; did you mean 'FP"),
    "no data": (body(tensor()), "neither data nor the parameter binary_data_size"),
    "both": (body(tensor(data=[1], parameters={"binary_data_size": 4})), "both data and"),
    "data no list": (body(tensor(data="ab")), "data of input 'x' is 'ab'; a list"),
    "negative side": (body(tensor(shape=(-1, 2), data=[1])), r"is \[-1, 2\]; whole numbers from 1"),
    "no side": (body(tensor(shape=(0,), data=[])), "whole numbers from 1"),
    "a true side": (body(tensor(shape=(True,), data=[1])), "whole numbers from 1"),
    "a half side": (body(tensor(shape=(1.5,), data=[1])), "whole numbers from 1"),
    "a huge side": (body(tensor(shape=(2**70,), data=[1])), "whole numbers from 1"),
    "an overflow": (body(tensor(shape=(2**31 - 1,) * 8, data=[1])), r"1 values in its data; shape"),
    "sides": (body(tensor(shape=(1,) * 9, data=[1])), "has 9 dimensions; up to 8"),
    "too few": (body(tensor(data=[1])), r"1 values in its data; shape \[2\] needs 2"),
    "too many": (body(tensor(data=[1, 2, 3])), "3 values"),
    "ragged": (body(tensor(shape=(2, 2), data=[[1, 2], [3]])), r"has \[3\] at depth 1"),
    "too deep": (body(tensor(data=[[1], [2]])), r"has \[1\] in its data; FP32 allows numbers"),
    "text for a number": (body(tensor(data=[1, "2"])), "has '2' in its data; FP32"),
    "true for a number": (body(tensor(data=[1, True])), "has True in its data; FP32"),
    "half an integer": (body(tensor("x", "INT8", data=[1, 1.5])), "INT8 allows whole numbers"),
    "1 for true": (body(tensor("x", "BOOL", data=[True, 1])), "BOOL allows true and false"),
    "too large": (body(tensor("x", "UINT8", data=[1, 256])), "does not fit into UINT8"),
    "below 0": (body(tensor("x", "UINT64", data=[1, -1])), "does not fit into UINT64"),
    "far too large": (body(tensor("x", "INT64", data=[1, 10**30])), "does not fit into INT64"),
    "a large float": (body(tensor("x", "FP32", data=[1, 1e39])), "does not fit into FP32"),
    "a large half": (body(tensor("x", "FP16", data=[1, 70000])), "does not fit into FP16"),
    "a large whole": (body(tensor("x", "FP64", data=[1, 10**400])), "does not fit into FP64"),
    "BF16 in JSON": (body(tensor("x", "BF16", data=[1, 2])), "BF16 in JSON"),
    "BYTES of numbers": (body(tensor("x", "BYTES", data=["a", 2])), "BYTES in JSON are strings"),
    "half a letter": (body(tensor("x", "BYTES", (1,), data=["\ud800"])), "UTF-8 can encode"),
    "base64": (body(tensor("x", "BYTES", (1,), data=["a!"],
                           parameters={"content_type": "base64"})), "is not base64"),
    "parameters": (body(X, parameters=[1]), "parameters of the request are"),
    "a nested parameter": (body(X, parameters={"a": {}}), "a string, a number, true or false"),
    "binary_data_output": (body(X, parameters={"binary_data_output": 1}), "true or false"),
    "shared memory": (body(tensor(data=[1, 2], parameters={"shared_memory_region": "r"})),
                      "shared memory, which is not supported"),
    "outputs": (body(X, outputs={}), "outputs of the request is {}; a list"),
    "an output twice": (body(X, outputs=[{"name": "a"}, {"name": "a"}]), "requested twice"),
    "classification": (body(X, outputs=[{"name": "a", "parameters": {"classification": -1}}]),
                       "is -1; 0 or more"),
    "binary_data": (body(X, outputs=[{"name": "a", "parameters": {"binary_data": "yes"}}]),
                    "binary_data of output 'a' is 'yes'; true or false"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_invalid_request_is_refused_with_reason(content, sentence):
    with pytest.raises(ProtocolError, match=sentence) as caught:
        parse_request(content, None)
    assert caught.value.status == 400
    assert len(str(caught.value)) < 500
    assert json.loads(caught.value.body) == {"error": str(caught.value)}


BINARY_MISTAKES = {
    "too short": (b"\0" * 7, {"datatype": "FP32", "shape": (2,)}, r"7 bytes .* needs 8"),
    "overflow": (b"\0" * 8, {"datatype": "FP64", "shape": (2**31 - 1,) * 8}, "8 bytes of binary"),
    "neither 0 nor 1": (b"\x02", {"datatype": "BOOL", "shape": (1,)}, "other than 0 and 1"),
    "more than there is": (b"\0" * 4, {"datatype": "FP32", "shape": (1,), "size": 5},
                           "is 5; 4 bytes are left"),
    "less than there is": (b"\0" * 9, {"datatype": "FP32", "shape": (2,), "size": 8},
                           "1 bytes at the end belong to no input"),
    "negative": (b"", {"datatype": "FP32", "shape": (1,), "size": -4}, "is -4"),
    "a true size": (b"\0", {"datatype": "UINT8", "shape": (1,), "size": True}, "is True; a whole"),
    "length cut": (b"\1\0\0", {"datatype": "BYTES", "shape": (1,)}, "ends inside element 0"),
    "element cut": (b"\2\0\0\0a", {"datatype": "BYTES", "shape": (1,)}, "ends inside element 0"),
    "huge element": (b"\xff" * 4, {"datatype": "BYTES", "shape": (1,)}, "ends inside element 0"),
    "few elements": (b"\0" * 4, {"datatype": "BYTES", "shape": (2**31 - 1, 2**31 - 1)},
                     "has 1 elements"),
    "many elements": (b"\0" * 8, {"datatype": "BYTES", "shape": (1,)}, "more than 1 elements"),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "kind", "sentence"), BINARY_MISTAKES.values(), ids=BINARY_MISTAKES)
def test_invalid_binary_data_is_refused_with_reason(raw, kind, sentence):
    with pytest.raises(ProtocolError, match=sentence) as caught:
        read(raw, **kind)
    assert caught.value.status == 400


def test_binary_data_without_json_length_names_missing_header():
    content, _ = binary(b"\xff" * 4, datatype="FP32", shape=(1,))
    with pytest.raises(ProtocolError, match="Inference-Header-Content-Length"):
        parse_request(content, None)


@pytest.mark.parametrize("length", [-1, 10_000])
def test_json_length_outside_body_is_refused(length):
    with pytest.raises(ProtocolError, match=f"Inference-Header-Content-Length is {length}"):
        parse_request(body(X), length)


def test_header_length_must_be_decimal_digits():
    assert parse_header_length(None) is None
    assert parse_header_length("120") == 120
    for text in ("", "-1", "1.0", "0x10", "１２", "9" * 5000):
        with pytest.raises(ProtocolError, match="a whole number of bytes is needed"):
            parse_header_length(text)


@pytest.mark.parametrize(
    ("content", "encoding", "sentence"),
    [
        (b"{}", "br", "Content-Encoding is 'br'; gzip, deflate or none"),
        (b"{}", "gzip, gzip", "gzip, deflate or none"),
        (b"{}", "gzip", "cannot be read as gzip"),
        (gzip.compress(b"{}", mtime=0)[:-3], "gzip", "is incomplete"),
        (gzip.compress(b"{}", mtime=0) + b"more", "gzip", "has bytes after the compressed data"),
        (b"", "deflate", "is incomplete"),
    ],
)
def test_unreadable_compression_is_refused_with_reason(content, encoding, sentence):
    with pytest.raises(ProtocolError, match=sentence):
        parse_request(content, None, encoding)


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compression_bomb_is_refused_within_memory_bound(encoding, pack):
    bomb = pack(b"\0" * 100_000_000)
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="larger than the allowed 1000000 bytes") as caught:
        parse_request(bomb, None, encoding, RequestLimits(body_bytes=1_000_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.status == 413
    assert peak < 5_000_000


def test_body_or_json_above_limit_is_refused():
    content = body(X)
    with pytest.raises(ProtocolError, match="larger than the allowed 10 bytes") as caught:
        parse_request(content, None, limits=RequestLimits.model_construct(body_bytes=10))
    assert caught.value.status == 413
    with pytest.raises(ProtocolError, match="Send tensors in binary") as caught:
        parse_request(content, None, limits=RequestLimits.model_construct(json_bytes=10))
    assert caught.value.status == 413
