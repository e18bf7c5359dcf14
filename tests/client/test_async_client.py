"""Tests of `AsyncClient`."""

import asyncio

import httpx
import pytest

from bitta.client import AsyncClient, ExpiredError, UnavailableError
from client.fake_server import KEY, PNG, FakeServer, run


def call_with(server, calls, **settings):
    async def main():
        transport = server.transport
        async with AsyncClient("http://server", KEY, transport=transport, **settings) as client:
            return await calls(client)

    return run(main())


def test_async_client_makes_every_call(server, pauses):
    server.ask("p9")

    async def calls(client):
        [served] = await client.predict(b"png")
        question = await client.next_question(wait=1)
        assert (await client.image(question)) == PNG
        given = await client.answer(question, correct=True)
        undone = await client.undo(given.id)
        assert (await client.status()) == {"model": {"version": "1.3"}}
        assert (await client.next_question()) is None
        await client.answer(served, verdict="skip", answered_at=7)
        return undone

    assert call_with(server, calls).undone == "f0"
    assert [record["verdict"] for record in server.records] == ["correct", "skip"]
    assert server.records[1]["body"]["answered_at"] == 7


def test_retries_keep_the_idempotency_key(server, pauses):
    server.failures = [503, httpx.ReadError("cut"), ("after", 500)]
    given = call_with(server, lambda client: client.answer("p1", correct=True))
    assert given.repeated
    assert len({call[2]["idempotency-key"] for call in server.calls}) == 1
    assert (len(server.calls), len(server.records), len(pauses)) == (4, 1, 3)


def test_async_client_raises_the_errors_of_the_client(server, pauses):
    with pytest.raises(ExpiredError, match="expired at noon"):
        call_with(server, lambda client: client.answer("gone", correct=True))
    server.failures = [500]
    with pytest.raises(UnavailableError, match="not now"):
        call_with(server, lambda client: client.status(), retries=0)


def test_repeated_thumbs_click_counts_once(server):
    async def calls(client):
        return [(await client.thumbs("p1", up=up)).id for up in (True, True, False, True)]

    assert call_with(server, calls) == ["f0", "f0", "f1", "f2"]


def test_concurrent_predictions_get_distinct_ids(server):
    async def calls(client):
        await client.predict(b"first")
        return await asyncio.gather(*(client.predict(b"png") for _ in range(20)))

    ids = [served[0].prediction_id for served in call_with(server, calls)]
    assert sorted(ids) == sorted({f"p{n}" for n in range(1, 21)})


def test_async_client_retries_after_a_cut_connection(pauses):
    server = FakeServer()

    async def main(url):
        async with AsyncClient(url, KEY) as client:
            [served] = await client.predict(b"one")
            server.failures = [ConnectionError()]
            return await client.answer(served, correct=True)

    with server.listening() as url:
        assert run(main(url)).id == "f0"
