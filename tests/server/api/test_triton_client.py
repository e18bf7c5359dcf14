"""Triton's own client against a real server."""

import asyncio

import numpy as np
import pytest

from server.api.fakes import running

pytestmark = pytest.mark.full

http = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils")
auth = pytest.importorskip("tritonclient.http.auth")
aio = pytest.importorskip("tritonclient.http.aio")


@pytest.fixture
def port(app, settings):
    with running(app, settings) as free:
        yield free


@pytest.fixture
def client(port, tokens):
    with http.InferenceServerClient(f"127.0.0.1:{port}", concurrency=4) as opened:
        opened.register_plugin(auth.BasicAuth("me", tokens["client"]))
        yield opened


def image(n=2, value=0.75, *, binary=True):
    given = http.InferInput("image", [n, 3, 4, 4], "FP32")
    given.set_data_from_numpy(np.full((n, 3, 4, 4), value, np.float32), binary_data=binary)
    return given


def test_client_reads_health_and_metadata(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("toy")
    assert client.is_model_ready("toy", "1.0")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["name"] == "bitta"
    metadata = client.get_model_metadata("toy")
    assert metadata["inputs"][0]["shape"] == [-1, 3, 4, 4]
    assert client.get_model_config("toy")["name"] == "toy"
    assert client.get_model_repository_index()[0]["state"] == "READY"
    assert client.get_inference_statistics()["model_stats"][0]["name"] == "toy"
    assert client.get_inference_statistics("toy")["model_stats"][0]["version"] == "1.0"


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_client_predicts(client, binary, compression):
    names = ["logits", "label", "confidence", "prediction_id", "model_version"]
    wanted = [http.InferRequestedOutput(name, binary_data=binary) for name in names]
    result = client.infer(
        "toy",
        [image(binary=binary)],
        outputs=wanted,
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    assert result.as_numpy("logits").shape == (2, 3)
    assert [bytes(b if isinstance(b, bytes) else b.encode()) for b in result.as_numpy("label")] \
        == [b"dog", b"dog"]  # fmt: skip
    assert len(set(result.as_numpy("prediction_id"))) == 2
    np.testing.assert_allclose(result.as_numpy("confidence"), 0.9, rtol=1e-6)


def test_client_gets_all_outputs_by_default(client):
    result = client.infer("toy", [image()], request_id="7")
    assert result.get_response()["id"] == "7"
    assert result.as_numpy("model_version").tolist() == [b"1.0", b"1.0"]


def test_client_predicts_concurrently(client):
    waiting = [client.async_infer("toy", [image(1)]) for _ in range(20)]
    ids = {each.get_result().as_numpy("prediction_id")[0] for each in waiting}
    assert len(ids) == 20


def test_asyncio_client_predicts(port, tokens):
    async def predicted():
        async with aio.InferenceServerClient(f"127.0.0.1:{port}") as client:
            return await client.infer(
                "toy",
                [image()],
                outputs=[http.InferRequestedOutput("label"), http.InferRequestedOutput("logits")],
                headers={"Authorization": f"Bearer {tokens['client']}"},
                request_compression_algorithm="gzip",
                response_compression_algorithm="gzip",
            )

    result = asyncio.run(predicted())
    assert result.as_numpy("label").tolist() == [b"dog", b"dog"]
    np.testing.assert_allclose(result.as_numpy("logits"), [[-3, -0.1, -3]] * 2, rtol=1e-6)


def test_client_raises_with_the_message_of_the_server(client, port):
    with pytest.raises(utils.InferenceServerException, match="there is no model 'other'"):
        client.infer("other", [image()])
    wrong = http.InferInput("image", [1, 5], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 5), np.float32))
    with pytest.raises(utils.InferenceServerException, match=r"of shape \[1, 5\]"):
        client.infer("toy", [wrong])
    with (
        http.InferenceServerClient(f"127.0.0.1:{port}") as stranger,
        pytest.raises(utils.InferenceServerException, match="no key was given"),
    ):
        stranger.infer("toy", [image()])


def test_client_may_send_the_key_as_header(port, tokens):
    with http.InferenceServerClient(f"127.0.0.1:{port}") as client:
        headers = {"Authorization": f"Bearer {tokens['client']}"}
        assert client.infer("toy", [image()], headers=headers).as_numpy("label") is not None
