"""Compatibility with Triton's own client."""

import gzip
import zlib

import ml_dtypes
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from bitta.server.protocol import (
    ProtocolError,
    classifier_spec,
    encode_response,
    parse_request,
    prediction_outputs,
    read_images,
)
from made_pictures import encoded, gradient

pytestmark = pytest.mark.full

CLASSES = ["cat", "dog", "frog"]
MODEL = classifier_spec("m", ["1.4"], input_shape=(3, 8, 8), n_classes=3, max_rows=128)
OUTPUTS = prediction_outputs(
    logits=np.array([[0.5, 2.0, -1.0], [3.0, 0.1, 0.0]]),
    class_index=[1, 0],
    classes=CLASSES,
    confidence=[0.75, 0.9],
    prediction_ids=["01A", "01B"],
    model_version="1.4",
)
ARRAYS = [
    np.array([[True, False]]),
    *(np.array([[0, 1, 127]], kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64)),
    *(np.array([[-128, 1, 127]], kind) for kind in (np.int8, np.int16, np.int32, np.int64)),
    *(np.array([[0.1, -1.5, 3.0]], kind) for kind in (np.float16, np.float32, np.float64)),
    np.array([[b"a", b"", "né".encode()]], dtype=object),
]


def as_input(array, name="x", **options):
    given = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return given.set_data_from_numpy(array, **options)


def asked(*outputs, inputs=None, **options):
    inputs = inputs or [as_input(np.zeros((2, 3, 8, 8), np.float32), MODEL.inputs[0].name)]
    return InferenceServerClient.generate_request_body(inputs, outputs=list(outputs), **options)


def answered(request, accept_encoding=None):
    body, headers = encode_response(
        OUTPUTS, request, model_name="m", model_version="1.4", classes=CLASSES,
        accept_encoding=accept_encoding,
    )  # fmt: skip
    length = headers.get("Inference-Header-Content-Length")
    return InferenceServerClient.parse_response_body(
        body, header_length=length, content_encoding=headers.get("Content-Encoding")
    )


@pytest.mark.parametrize("binary_data", [True, False])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_tensors_are_read_in_binary_and_json(array, binary_data):
    body, length = asked(inputs=[as_input(array, binary_data=binary_data)])
    read = parse_request(body, length).inputs["x"]
    assert read.datatype == np_to_triton_dtype(array.dtype)
    assert read.array.dtype == array.dtype
    assert np.array_equal(read.array, array)


def test_bf16_is_read_exactly():
    array = np.array([1.0, -3.140625, 1e-30, 3e38], ml_dtypes.bfloat16)
    read = parse_request(*asked(inputs=[as_input(array)])).inputs["x"].array
    assert read.dtype == np.float32
    assert np.array_equal(read, array.astype(np.float32))


def test_mixed_json_and_binary_inputs_are_read():
    first, second, third = np.arange(5, dtype=np.uint8), np.array([7]), np.array([0.5])
    body, length = asked(
        inputs=[as_input(first, "a"), as_input(second, "b", binary_data=False),
                as_input(third, "c")],
    )  # fmt: skip
    inputs = parse_request(body, length).inputs
    assert [inputs[name].array.tolist() for name in "abc"] == [[0, 1, 2, 3, 4], [7], [0.5]]


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_compressed_request_and_response_are_read(encoding, pack):
    body, length = asked()
    result = answered(parse_request(pack(body), length, encoding), accept_encoding=encoding)
    assert np.array_equal(result.as_numpy("logits"), OUTPUTS["logits"])


def test_request_without_outputs_gets_all():
    request = parse_request(*asked(request_id="r9"))
    MODEL.check_request(request)
    result = answered(request)
    assert result.get_response()["id"] == "r9"
    for name, array in OUTPUTS.items():
        read = result.as_numpy(name)
        assert read.shape == array.shape
        expected = [text.encode() for text in array] if array.dtype == object else array.tolist()
        assert read.tolist() == expected


@pytest.mark.parametrize("binary", [True, False])
def test_requested_outputs_are_returned_in_requested_form(binary):
    wanted = [InferRequestedOutput(name, binary_data=binary) for name in ("label", "confidence")]
    result = answered(parse_request(*asked(*wanted)))
    assert [out["name"] for out in result.get_response()["outputs"]] == ["label", "confidence"]
    assert ("data" in result.get_output("label")) is not binary
    assert result.as_numpy("confidence").tolist() == OUTPUTS["confidence"].tolist()
    assert list(map(_text, result.as_numpy("label"))) == ["dog", "cat"]
    assert result.as_numpy("logits") is None


@pytest.mark.parametrize("binary", [True, False])
def test_classification_is_returned(binary):
    wanted = InferRequestedOutput("logits", binary_data=binary, class_count=2)
    request = parse_request(*asked(wanted))
    MODEL.check_request(request)
    strings = answered(request).as_numpy("logits")
    assert [[_text(each).split(":")[1:] for each in row] for row in strings] == [
        [["1", "dog"], ["0", "cat"]],
        [["0", "cat"], ["1", "dog"]],
    ]


def test_encoded_images_are_sent_as_bytes():
    contents = np.array([encoded(gradient(8, 8)), encoded(gradient(8, 8))], dtype=object)
    request = parse_request(*asked(inputs=[as_input(contents, "image")]))
    images = read_images(request.inputs["image"], (3, 8, 8))
    assert np.array_equal(images[1], gradient(8, 8).transpose(2, 0, 1).astype(np.float32) / 255)


def test_custom_and_sequence_parameters_are_accepted():
    body, length = asked(
        sequence_id=3, sequence_start=True, priority=1, timeout=10, parameters={"camera": "north"}
    )
    assert parse_request(body, length).parameters["camera"] == "north"


def test_shared_memory_is_refused():
    given = InferInput("x", [1], "FP32")
    given.set_shared_memory("region", 4)
    with pytest.raises(ProtocolError, match="shared memory, which is not supported"):
        parse_request(*asked(inputs=[given]))


def test_client_reads_our_errors():
    class Response:
        status_code = 400

        def read(self):
            return ProtocolError('no "<b>" ö').body

    from tritonclient.http._utils import _raise_if_error  # noqa: PLC0415

    with pytest.raises(InferenceServerException, match='no "<b>" ö'):
        _raise_if_error(Response())


def _text(element):
    return element.decode() if isinstance(element, bytes) else element
