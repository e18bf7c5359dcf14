"""Tests of docs/how-to/client.md: its examples run, and it names every call."""

import re
from pathlib import Path

import httpx

from bitta.client import AsyncClient, Client, ClientError, ServedPrediction, UndoReceipt, errors
from client.fake_server import KEY, PNG, FakeServer, run

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "client.md").read_text()
BUTTON, EVERYTHING = re.findall(r"<!-- example -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def test_thumbs_example_runs_and_has_ten_lines(monkeypatch):
    body = BUTTON[BUTTON.index("app =") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10
    server = FakeServer()

    async def use(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as browser:
            shown = (await browser.post("/photo", content=PNG)).json()
            path = f"/photo/{shown['prediction_id']}/thumbs"
            for up in ("true", "true", "false"):
                assert (await browser.post(path, params={"up": up})).is_success
            return shown

    with server.listening() as url:
        monkeypatch.setenv("BITTA_URL", url)
        monkeypatch.setenv("BITTA_KEY", KEY)
        names = {}
        exec(BUTTON, names)

        async def main():
            async with names["bitta"]:
                return await use(names["app"])

        assert run(main()) == {"label": "cat", "prediction_id": "p0"}
    assert [(r["prediction_id"], r["verdict"]) for r in server.records] == [
        ("p0", "correct"), ("p0", "incorrect"),
    ]  # fmt: skip


def test_example_of_all_calls_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.png").write_bytes(PNG)
    server = FakeServer()
    server.ask("a", "b")
    asked = []

    def ask_a_person(picture, label):
        asked.append((picture, label))
        return "skip"

    with server.listening() as url:
        exec(EVERYTHING, {"url": url, "key": KEY, "ask_a_person": ask_a_person, "picture": PNG})
    assert asked == [(PNG, "cat")] * 2
    assert [(r["prediction_id"], r["verdict"], r["standing"]) for r in server.records] == [
        ("p0", "correct", True), ("p1", "incorrect", False), ("a", "skip", True),
        ("b", "skip", True),
    ]  # fmt: skip
    assert capsys.readouterr().out == "1.3\n"


def test_page_names_every_call_field_and_error():
    calls = {name for name in vars(Client) if not name.startswith("_")} - {"close"}
    assert calls == {name for name in vars(AsyncClient) if not name.startswith("_")} - {"close"}
    assert all(f"`{name}(" in PAGE for name in calls)
    for kind in (ServedPrediction, UndoReceipt):
        assert f"`{kind.__name__}({', '.join(kind.__dataclass_fields__)})`" in PAGE
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    for kind in kinds:
        if issubclass(kind, ClientError) and kind is not ClientError:
            assert f"| `{kind.__name__}` |" in PAGE
