"""The client for asyncio."""

import asyncio

import httpx
import pytest

from bitta.client import AsyncClient, ExpiredError, UnavailableError
from client.fake_server import KEY, PNG, FakeServer, run


def using(server, use, **settings):
    async def main():
        transport = server.transport
        async with AsyncClient("http://server", KEY, transport=transport, **settings) as client:
            return await use(client)

    return run(main())


def test_everything_the_other_client_does(server, pauses):
    server.ask("p9")

    async def use(client):
        [served] = await client.predict(b"png")
        question = await client.next_question(wait=1)
        assert (await client.image(question)) == PNG
        given = await client.answer(question, correct=True)
        undone = await client.undo(given.id)
        assert (await client.status()) == {"model": {"version": "1.3"}}
        assert (await client.next_question()) is None
        await client.answer(served, verdict="skip", answered_at=7)
        return undone

    assert using(server, use).feedback_id == "f0"
    assert [record["verdict"] for record in server.records] == ["correct", "skip"]
    assert server.records[1]["body"]["answered_at"] == 7


def test_retries_keep_the_key(server, pauses):
    server.troubles = [503, httpx.ReadError("cut"), ("after", 500)]
    given = using(server, lambda client: client.answer("p1", correct=True))
    assert given.repeated
    assert len({call[2]["idempotency-key"] for call in server.calls}) == 1
    assert (len(server.calls), len(server.records), len(pauses)) == (4, 1, 3)


def test_errors_are_the_same(server, pauses):
    with pytest.raises(ExpiredError, match="expired at noon"):
        using(server, lambda client: client.answer("gone", correct=True))
    server.troubles = [500]
    with pytest.raises(UnavailableError, match="not now"):
        using(server, lambda client: client.status(), retries=0)


def test_thumbs_count_once_per_button(server):
    async def use(client):
        return [(await client.thumbs("p1", up=up)).id for up in (True, True, False, True)]

    assert using(server, use) == ["f0", "f0", "f1", "f2"]


def test_many_at_once(server):
    async def use(client):
        await client.predict(b"first")
        return await asyncio.gather(*(client.predict(b"png") for _ in range(20)))

    ids = [served[0].prediction_id for served in using(server, use)]
    assert sorted(ids) == sorted({f"p{n}" for n in range(1, 21)})


def test_over_a_real_socket(pauses):
    server = FakeServer()

    async def main(url):
        async with AsyncClient(url, KEY) as client:
            [served] = await client.predict(b"one")
            server.troubles = [ConnectionError()]
            return await client.answer(served, correct=True)

    with server.listening() as url:
        assert run(main(url)).id == "f0"
