"""Requests: bytes worked out by hand, and a sentence for every mistake."""

import base64
import gzip
import json
import struct
import tracemalloc
import zlib

import numpy as np
import pytest

from bitta.server.v2 import Limits, V2Error, parse, read_header_length


def body(*inputs, **fields):
    return json.dumps({"inputs": list(inputs), **fields}).encode()


def tensor(name="x", datatype="FP32", shape=(2,), **fields):
    return {"name": name, "datatype": datatype, "shape": list(shape), **fields}


def binary(raw, *, datatype, shape, size=None):
    size = len(raw) if size is None else size
    header = body(tensor(datatype=datatype, shape=shape, parameters={"binary_data_size": size}))
    return header + raw, len(header)


def read(raw, **kind):
    return parse(*binary(raw, **kind)).inputs["x"].array


def test_json_tensor_is_read_row_by_row():
    request = parse(body(tensor(shape=(2, 2), data=[1, 2.5, -3, 4]), id="r1"), None)
    assert request.id == "r1"
    assert request.inputs["x"].array.tolist() == [[1, 2.5], [-3, 4]]
    assert request.inputs["x"].array.dtype == np.float32


def test_nested_json_is_the_same_as_flat():
    nested = parse(body(tensor(shape=(2, 1, 2), data=[[[1, 2]], [[3, 4]]])), None)
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
def test_binary_is_little_endian(datatype, raw, value):
    array = read(raw, datatype=datatype, shape=(1,))
    assert array[0] == value
    assert array.shape == (1,)
    assert not array.flags.writeable


def test_tensors_follow_the_json_in_the_order_of_the_inputs_where_they_may_lie_unaligned():
    header = body(
        tensor("a", "UINT8", (3,), parameters={"binary_data_size": 3}),
        tensor("b", "INT8", (1,), data=[5]),
        tensor("c", "FP32", (1,), parameters={"binary_data_size": 4}),
    )
    inputs = parse(header + b"\x01\x02\x03" + struct.pack("<f", 0.5), len(header)).inputs
    assert inputs["a"].array.tolist() == [1, 2, 3]
    assert inputs["b"].array.tolist() == [5]
    assert inputs["c"].array.tolist() == [0.5]


def test_bytes_in_json_are_utf8_or_base64():
    plain = tensor("t", "BYTES", (1,), data=["né"])
    packed = tensor(
        "p", "BYTES", (1,), data=[base64.b64encode(b"\xff\xd8").decode()],
        parameters={"content_type": "base64"},
    )  # fmt: skip
    inputs = parse(body(plain, packed), None).inputs
    assert inputs["t"].array.tolist() == [b"n\xc3\xa9"]
    assert inputs["p"].array.tolist() == [b"\xff\xd8"]


def test_values_that_are_not_finite_are_carried():
    array = parse(b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], '
                  b'"data": [NaN, -Infinity]}]}', None).inputs["x"].array  # fmt: skip
    assert np.isnan(array[0])
    assert array[1] == -np.inf


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("GZIP", gzip.compress),
     ("identity", bytes), ("", bytes), (None, bytes)],
)  # fmt: skip
def test_the_length_of_the_json_is_counted_after_decompression(encoding, pack):
    content, length = binary(b"\x07", datatype="UINT8", shape=(1,))
    assert parse(pack(content), length, encoding).inputs["x"].array.tolist() == [7]


def test_outputs_are_in_json_unless_they_or_the_request_say_binary():
    x = tensor(data=[1, 2])
    asked = [{"name": "a"}, {"name": "b", "parameters": {"binary_data": True}},
             {"name": "c", "parameters": {"binary_data": False, "classification": 3}}]  # fmt: skip
    plain = parse(body(x, outputs=asked), None).outputs
    assert [(out.name, out.binary, out.classification) for out in plain] == [
        ("a", False, 0), ("b", True, 0), ("c", False, 3),
    ]  # fmt: skip
    request = parse(body(x, outputs=asked, parameters={"binary_data_output": True}), None)
    assert [out.binary for out in request.outputs] == [True, True, False]


def test_no_outputs_asked_for_means_all_in_binary_unless_told_otherwise():
    x = tensor(data=[1, 2])
    assert [(out.name, out.binary) for out in parse(body(x), None).wanted(["a", "b"])] == [
        ("a", True), ("b", True),
    ]  # fmt: skip
    told = parse(body(x, parameters={"binary_data_output": False}), None)
    assert [out.binary for out in told.wanted(["a", "b"])] == [False, False]


X = tensor(data=[1, 2])
MISTAKES = {
    "not JSON": (b"{", "cannot be read"),
    "not UTF-8": (b"\xff{}", "cannot be read"),
    "no object": (b"[1]", r"the request is \[1\]; a JSON object"),
    "a field twice": (b'{"id": "a", "id": "b"}', "given twice"),
    "nesting": (b"[" * 100_000, "nested too deeply"),
    "digits": (b'{"id": ' + b"9" * 5000 + b"}", "cannot be read"),
    "a slip": (body(X, ouputs=[]), "unknown field 'ouputs'; did you mean 'outputs'"),
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
    "sides": (body(tensor(shape=(1,) * 9, data=[1])), "has 9 sides; up to 8"),
    "too few": (body(tensor(data=[1])), r"1 values in its data; shape \[2\] needs 2"),
    "too many": (body(tensor(data=[1, 2, 3])), "3 values"),
    "ragged": (body(tensor(shape=(2, 2), data=[[1, 2], [3]])), r"holds \[3\] at depth 1"),
    "too deep": (body(tensor(data=[[1], [2]])), r"holds \[1\] in its data; FP32 allows numbers"),
    "text for a number": (body(tensor(data=[1, "2"])), "holds '2' in its data; FP32"),
    "true for a number": (body(tensor(data=[1, True])), "holds True in its data; FP32"),
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
    "half a letter": (body(tensor("x", "BYTES", (1,), data=["\ud800"])), "UTF-8 can hold"),
    "base64": (body(tensor("x", "BYTES", (1,), data=["a!"],
                           parameters={"content_type": "base64"})), "is not base64"),
    "parameters": (body(X, parameters=[1]), "parameters of the request are"),
    "a nested parameter": (body(X, parameters={"a": {}}), "a string, a number, true or false"),
    "binary_data_output": (body(X, parameters={"binary_data_output": 1}), "true or false"),
    "shared memory": (body(tensor(data=[1, 2], parameters={"shared_memory_region": "r"})),
                      "shared memory, which is not served"),
    "outputs": (body(X, outputs={}), "outputs of the request is {}; a list"),
    "an output twice": (body(X, outputs=[{"name": "a"}, {"name": "a"}]), "asked for twice"),
    "classification": (body(X, outputs=[{"name": "a", "parameters": {"classification": -1}}]),
                       "is -1; 0 or more"),
    "binary_data": (body(X, outputs=[{"name": "a", "parameters": {"binary_data": "yes"}}]),
                    "binary_data of output 'a' is 'yes'; true or false"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_gives_a_sentence(content, sentence):
    with pytest.raises(V2Error, match=sentence) as caught:
        parse(content, None)
    assert caught.value.status == 400
    assert len(str(caught.value)) < 500
    assert json.loads(caught.value.body) == {"error": str(caught.value)}


BINARY_MISTAKES = {
    "too short": (b"\0" * 7, {"datatype": "FP32", "shape": (2,)}, r"7 bytes .* needs 8"),
    "overflow": (b"\0" * 8, {"datatype": "FP64", "shape": (2**31 - 1,) * 8}, "8 bytes of binary"),
    "neither 0 nor 1": (b"\x02", {"datatype": "BOOL", "shape": (1,)}, "neither 0 nor 1"),
    "more than there is": (b"\0" * 4, {"datatype": "FP32", "shape": (1,), "size": 5},
                           "is 5; 4 bytes are left"),
    "less than there is": (b"\0" * 9, {"datatype": "FP32", "shape": (2,), "size": 8},
                           "1 bytes follow that belong to no input"),
    "negative": (b"", {"datatype": "FP32", "shape": (1,), "size": -4}, "is -4"),
    "a true size": (b"\0", {"datatype": "UINT8", "shape": (1,), "size": True}, "is True; a whole"),
    "length cut": (b"\1\0\0", {"datatype": "BYTES", "shape": (1,)}, "cut in element 0"),
    "element cut": (b"\2\0\0\0a", {"datatype": "BYTES", "shape": (1,)}, "cut in element 0"),
    "huge element": (b"\xff" * 4, {"datatype": "BYTES", "shape": (1,)}, "cut in element 0"),
    "few elements": (b"\0" * 4, {"datatype": "BYTES", "shape": (2**31 - 1, 2**31 - 1)},
                     "has 1 elements"),
    "many elements": (b"\0" * 8, {"datatype": "BYTES", "shape": (1,)}, "more than 1 elements"),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "kind", "sentence"), BINARY_MISTAKES.values(), ids=BINARY_MISTAKES)
def test_a_mistake_in_binary_gives_a_sentence(raw, kind, sentence):
    with pytest.raises(V2Error, match=sentence) as caught:
        read(raw, **kind)
    assert caught.value.status == 400


def test_binary_without_the_length_of_the_json_says_which_header_is_missing():
    content, _ = binary(b"\xff" * 4, datatype="FP32", shape=(1,))
    with pytest.raises(V2Error, match="Inference-Header-Content-Length"):
        parse(content, None)


@pytest.mark.parametrize("length", [-1, 10_000])
def test_a_length_of_json_outside_the_body_is_refused(length):
    with pytest.raises(V2Error, match=f"Inference-Header-Content-Length is {length}"):
        parse(body(X), length)


def test_the_header_is_a_plain_number():
    assert read_header_length(None) is None
    assert read_header_length("120") == 120
    for text in ("", "-1", "1.0", "0x10", "１２", "9" * 5000):
        with pytest.raises(V2Error, match="a whole number of bytes is needed"):
            read_header_length(text)


@pytest.mark.parametrize(
    ("content", "encoding", "sentence"),
    [
        (b"{}", "br", "Content-Encoding is 'br'; gzip, deflate or none"),
        (b"{}", "gzip, gzip", "gzip, deflate or none"),
        (b"{}", "gzip", "cannot be read as gzip"),
        (gzip.compress(b"{}", mtime=0)[:-3], "gzip", "is cut"),
        (gzip.compress(b"{}", mtime=0) + b"more", "gzip", "goes on after its end"),
        (b"", "deflate", "is cut"),
    ],
)
def test_compression_that_cannot_be_read_gives_a_sentence(content, encoding, sentence):
    with pytest.raises(V2Error, match=sentence):
        parse(content, None, encoding)


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_a_compression_bomb_is_refused_without_the_memory_it_asks_for(encoding, pack):
    bomb = pack(b"\0" * 100_000_000)
    tracemalloc.start()
    with pytest.raises(V2Error, match="larger than the 1000000 bytes") as caught:
        parse(bomb, None, encoding, Limits(body_bytes=1_000_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.status == 413
    assert peak < 5_000_000


def test_sizes_above_the_caps_are_refused():
    content = body(X)
    with pytest.raises(V2Error, match="larger than the 10 bytes") as caught:
        parse(content, None, limits=Limits(body_bytes=10))
    assert caught.value.status == 413
    with pytest.raises(V2Error, match="Send tensors in binary") as caught:
        parse(content, None, limits=Limits(json_bytes=10))
    assert caught.value.status == 413
