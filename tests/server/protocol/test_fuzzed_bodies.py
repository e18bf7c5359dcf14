"""Property tests: every body is read correctly or refused with a ProtocolError."""

import json
import random
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bitta.server.protocol import (
    InferRequest,
    ProtocolError,
    RequestedOutput,
    decode_image,
    encode_response,
    parse_request,
    read_images,
)
from bitta.server.protocol.tensors import NUMERIC_DTYPES, compress, decompress
from bitta.server.settings import RequestLimits
from made_pictures import N_BROKEN, broken, encoded, gradient, originals

pytestmark = pytest.mark.full

LIMITS = RequestLimits(body_bytes=2**20, pixels=2**20)
quick = settings(max_examples=80, deadline=None, derandomize=True, database=None)

shapes = arrays.array_shapes(min_dims=0, max_dims=4, max_side=4)
numbers = st.sampled_from(sorted(NUMERIC_DTYPES)).flatmap(
    lambda name: arrays.arrays(NUMERIC_DTYPES[name], shapes)
)
names = st.text(min_size=1, max_size=8)


@st.composite
def texts(draw):
    shape = draw(shapes)
    n = int(np.prod(shape))
    array = np.empty(n, dtype=object)
    array[:] = draw(st.lists(st.text(max_size=5).map(str.encode), min_size=n, max_size=n))
    return array.reshape(shape)


tensors = numbers | texts()


def same(one, other):
    if one.dtype == object:
        return one.shape == other.shape and one.tolist() == other.tolist()
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


def datatype(array):
    return (
        "BYTES"
        if array.dtype == object
        else next(n for n, k in NUMERIC_DTYPES.items() if k == array.dtype)
    )


def written(inputs, *, binary):
    """Write a request as the specification says, independently of our encoder."""
    items, tail = [], b""
    for name, array in inputs.items():
        item = {"name": name, "datatype": datatype(array), "shape": list(array.shape)}
        if binary:
            raw = b"".join(map(prefixed, array.flat)) if array.dtype == object else array.tobytes()
            item["parameters"] = {"binary_data_size": len(raw)}
            tail += raw
        elif array.dtype == object:
            item["data"] = [element.decode() for element in array.flat]
        else:
            item["data"] = array.tolist() if array.shape else [array.item()]
        items.append(item)
    header = json.dumps({"inputs": items}).encode()
    return header + tail, len(header) if binary else None


def prefixed(element):
    return struct.pack("<I", len(element)) + element


@quick
@given(st.dictionaries(names, tensors, min_size=1, max_size=3), st.booleans())
def test_written_tensors_are_read_back(inputs, binary):
    read = parse_request(*written(inputs, binary=binary)).inputs
    assert list(read) == list(inputs)
    assert all(same(read[name].array, array) for name, array in inputs.items())


@quick
@given(
    st.dictionaries(names, tensors, min_size=1, max_size=3),
    st.sampled_from(["gzip", "deflate", None]),
)
def test_encoded_outputs_are_read_back_as_inputs(outputs, encoding):
    """Binary outputs have the form of inputs, so the parser can check the encoder."""
    asked = InferRequest("", {}, tuple(RequestedOutput(name, is_binary=True) for name in outputs))
    body, headers = encode_response(
        outputs, asked, model_name="m", model_version="1", accept_encoding=encoding
    )
    content = decompress(body, headers.get("Content-Encoding"), max_bytes=2**20)
    length = int(headers["Inference-Header-Content-Length"])
    fields = json.loads(content[:length])
    header = json.dumps({"inputs": fields["outputs"]}).encode()
    again = header + content[length:]
    read = parse_request(compress(again, encoding) if encoding else again, len(header), encoding)
    assert all(same(read.inputs[name].array, array) for name, array in outputs.items())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
odd = json_values | st.sampled_from(
    [
        "FP32",
        "BYTES",
        "BOOL",
        [1],
        [2, 2],
        [-1],
        [2**63],
        [0],
        [1, 2, 3, 4],
        {"binary_data_size": 4},
    ]
)
odd_tensors = st.fixed_dictionaries(
    {},
    optional={
        "name": odd | st.just("x"),
        "datatype": odd | st.sampled_from(sorted(NUMERIC_DTYPES)),
        "shape": odd | st.just([2]),
        "data": odd,
        "parameters": odd,
    },
)
odd_requests = st.fixed_dictionaries(
    {},
    optional={
        "id": odd,
        "inputs": odd | st.lists(odd_tensors, max_size=2),
        "outputs": odd | st.lists(odd_tensors, max_size=2),
        "parameters": odd | st.just({"binary_data_output": True}),
    },
)


@pytest.mark.full
@settings(quick, max_examples=300)
@given(odd_requests, st.binary(max_size=9), st.none() | st.integers(-2, 400), st.booleans())
def test_odd_value_in_any_field_is_refused_with_reason(fields, tail, length, exact):
    header = json.dumps(fields).encode()
    read_or_refused(header + tail, len(header) if exact else length, None)


@settings(quick, max_examples=200)
@given(
    st.binary(max_size=200), st.none() | st.integers(), st.sampled_from([None, "gzip", "deflate"])
)
def test_random_bytes_are_refused_with_reason(body, length, encoding):
    read_or_refused(body, length, encoding)


def test_damaged_request_is_read_or_refused():
    random_source = random.Random(0)
    picture = np.empty(1, dtype=object)
    picture[:] = [encoded(gradient(8, 8))]
    bodies = [
        written({"image": np.ones((1, 3, 8, 8), np.float32)}, binary=True),
        written({"image": np.ones((1, 3, 8, 8), np.uint8)}, binary=False),
        written({"image": picture}, binary=True),
    ]
    for number in range(N_BROKEN):
        body, length = bodies[number % len(bodies)]
        changed = broken(body, random_source)
        if random_source.random() < 0.3:
            length = random_source.randrange(-1, len(body) + 1)
        request = read_or_refused(changed, length, None)
        if request is None or "image" not in request.inputs:
            continue
        try:
            images = read_images(request.inputs["image"], (3, 8, 8), limits=LIMITS)
        except ProtocolError:
            continue
        assert images.shape[1:] == (3, 8, 8)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damaged_image_is_read_or_refused():
    random_source = random.Random(0)
    bodies = originals()
    n_read, slowest = 0, 0.0
    for number in range(N_BROKEN):
        content = broken(bodies[number % len(bodies)], random_source)
        began = time.thread_time()
        pixels = decoded_or_refused(content)
        slowest = max(slowest, time.thread_time() - began)
        n_read += pixels is not None
    assert N_BROKEN / 20 < n_read < N_BROKEN * 19 / 20
    assert slowest < 2


def decoded_or_refused(content):
    try:
        pixels = decode_image(content, LIMITS)
    except ProtocolError as error:
        refused = error
    else:
        assert pixels.dtype == np.uint8
        assert pixels.shape[2:] == (3,)
        return pixels
    assert refused.status in (400, 413)
    assert len(str(refused)) < 300
    return None


def read_or_refused(body, length, encoding):
    try:
        return parse_request(body, length, encoding, LIMITS)
    except ProtocolError as error:
        refused = error
    assert refused.status in (400, 413)
    assert list(json.loads(refused.body)) == ["error"]
    assert len(str(refused)) < 700
    return None
