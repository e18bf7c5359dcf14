"""Bodies that Triton's own client writes are read, and it reads ours."""

import gzip
import zlib

import ml_dtypes
import numpy as np
import pytest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from bitta.server.v2 import (
    V2Error,
    answer_outputs,
    as_images,
    classifier,
    encode,
    parse,
)
from made_pictures import encoded, gradient

CLASSES = ["cat", "dog", "frog"]
MODEL = classifier("m", ["1.4"], input_shape=(3, 8, 8), n_classes=3, max_rows=128)
OUTPUTS = answer_outputs(
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
    body, headers = encode(
        OUTPUTS, request, model_name="m", model_version="1.4", classes=CLASSES,
        accept_encoding=accept_encoding,
    )  # fmt: skip
    length = headers.get("Inference-Header-Content-Length")
    return InferenceServerClient.parse_response_body(
        body, header_length=length, content_encoding=headers.get("Content-Encoding")
    )


@pytest.mark.parametrize("binary_data", [True, False])
@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.dtype))
def test_its_tensors_are_read_in_binary_and_json(array, binary_data):
    body, length = asked(inputs=[as_input(array, binary_data=binary_data)])
    read = parse(body, length).inputs["x"]
    assert read.datatype == np_to_triton_dtype(array.dtype)
    assert read.array.dtype == array.dtype
    assert np.array_equal(read.array, array)


def test_its_bf16_is_read_exactly():
    array = np.array([1.0, -3.140625, 1e-30, 3e38], ml_dtypes.bfloat16)
    read = parse(*asked(inputs=[as_input(array)])).inputs["x"].array
    assert read.dtype == np.float32
    assert np.array_equal(read, array.astype(np.float32))


def test_several_inputs_some_in_json_are_read():
    first, second, third = np.arange(5, dtype=np.uint8), np.array([7]), np.array([0.5])
    body, length = asked(
        inputs=[as_input(first, "a"), as_input(second, "b", binary_data=False),
                as_input(third, "c")],
    )  # fmt: skip
    inputs = parse(body, length).inputs
    assert [inputs[name].array.tolist() for name in "abc"] == [[0, 1, 2, 3, 4], [7], [0.5]]


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)]
)
def test_its_compressed_requests_are_read_and_it_reads_compressed_answers(encoding, pack):
    body, length = asked()
    result = answered(parse(pack(body), length, encoding), accept_encoding=encoding)
    assert np.array_equal(result.as_numpy("logits"), OUTPUTS["logits"])


def test_it_gets_everything_when_it_asks_for_nothing():
    request = parse(*asked(request_id="r9"))
    MODEL.check(request)
    result = answered(request)
    assert result.get_response()["id"] == "r9"
    for name, array in OUTPUTS.items():
        read = result.as_numpy(name)
        assert read.shape == array.shape
        expected = [text.encode() for text in array] if array.dtype == object else array.tolist()
        assert read.tolist() == expected


@pytest.mark.parametrize("binary", [True, False])
def test_it_gets_what_it_asks_for_in_the_form_it_asks_for(binary):
    wanted = [InferRequestedOutput(name, binary_data=binary) for name in ("label", "confidence")]
    result = answered(parse(*asked(*wanted)))
    assert [out["name"] for out in result.get_response()["outputs"]] == ["label", "confidence"]
    assert ("data" in result.get_output("label")) is not binary
    assert result.as_numpy("confidence").tolist() == OUTPUTS["confidence"].tolist()
    assert list(map(_text, result.as_numpy("label"))) == ["dog", "cat"]
    assert result.as_numpy("logits") is None


@pytest.mark.parametrize("binary", [True, False])
def test_its_classification_is_served(binary):
    wanted = InferRequestedOutput("logits", binary_data=binary, class_count=2)
    request = parse(*asked(wanted))
    MODEL.check(request)
    strings = answered(request).as_numpy("logits")
    assert [[_text(each).split(":")[1:] for each in row] for row in strings] == [
        [["1", "dog"], ["0", "cat"]],
        [["0", "cat"], ["1", "dog"]],
    ]


def test_pictures_go_through_it_as_bytes():
    contents = np.array([encoded(gradient(8, 8)), encoded(gradient(8, 8))], dtype=object)
    request = parse(*asked(inputs=[as_input(contents, "image")]))
    images = as_images(request.inputs["image"], (3, 8, 8))
    assert np.array_equal(images[1], gradient(8, 8).transpose(2, 0, 1).astype(np.float32) / 255)


def test_its_own_parameters_are_kept_and_those_of_sequences_do_no_harm():
    body, length = asked(
        sequence_id=3, sequence_start=True, priority=1, timeout=10, parameters={"camera": "north"}
    )
    assert parse(body, length).parameters["camera"] == "north"


def test_its_shared_memory_is_refused():
    given = InferInput("x", [1], "FP32")
    given.set_shared_memory("region", 4)
    with pytest.raises(V2Error, match="shared memory, which is not served"):
        parse(*asked(inputs=[given]))


def test_it_reads_our_errors():
    class Response:
        status_code = 400

        def read(self):
            return V2Error('no "<b>" ö').body

    from tritonclient.http._utils import _raise_if_error  # noqa: PLC0415

    with pytest.raises(InferenceServerException, match='no "<b>" ö'):
        _raise_if_error(Response())


def _text(element):
    return element.decode() if isinstance(element, bytes) else element
