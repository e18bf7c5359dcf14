"""Tests of bitta annotate, at the keyboard and simulated."""

import argparse
import io
import json
import sys

import pytest

from bitta.cli import annotate
from bitta.cli.annotate import (
    TerminalAnnotator,
    choose_renderer,
    draw_with_half_blocks,
    read_key,
    remove_control_characters,
)
from bitta.client import Client
from bitta.errors import SettingError
from client.fake_server import KEY, PNG, FakeServer


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def client(server):
    with Client("http://server", KEY, transport=server.transport) as client:
        yield client


def run(*argv):
    parser = argparse.ArgumentParser()
    annotate.configure(parser)
    return annotate.main(parser.parse_args(argv))


class Person:
    """Person who presses these keys, one after another, and then quits."""

    def __init__(self, client, keys):
        self.shown = []
        pressed = iter([*keys, "q"])
        self.annotator = TerminalAnnotator(
            client,
            read_key=lambda _: next(pressed),
            render=lambda png, id_: f"<{len(png)} bytes of {id_}>",
            show=self.shown.append,
        )


def verdicts(server):
    return {
        record["prediction_id"]: record["verdict"]
        for record in server.records
        if record["standing"]
    }


def test_each_key_gives_its_verdict(client, server):
    server.ask("a", "b", "c", "d")
    person = Person(client, "yns")
    assert person.annotator.run() == 3
    assert verdicts(server) == {"a": "correct", "b": "incorrect", "c": "skip"}
    assert person.shown[:3] == [
        f"<{len(PNG)} bytes of a>",
        "Is this 'cat'? The confidence of the model is 75 %.",
        "saved: correct",
    ]  # fmt: skip


def test_invalid_key_is_asked_again(client, server):
    server.ask("a")
    person = Person(client, ["x", "", "Y\n"])
    person.annotator.run(1)
    assert verdicts(server) == {"a": "correct"}
    assert person.shown.count("press one of y, n, s, u, q.") == 2


def test_undo_shows_the_previous_question_again(client, server):
    server.ask("a", "b", "c")
    Person(client, ["y", "u", "n", "s"]).annotator.run()
    # Keys: yes to a; undo while b is shown; no to a, which is shown again; skip b.
    assert [(r["prediction_id"], r["verdict"]) for r in server.records] == [
        ("a", "correct"), ("a", "incorrect"), ("b", "skip"),
    ]  # fmt: skip
    assert verdicts(server) == {"a": "incorrect", "b": "skip"}
    assert "lease" not in server.records[1]["body"]
    assert server.records[2]["body"]["lease"] == "lease-b"


def test_undo_without_answers_shows_a_message(client, server):
    server.ask("a")
    person = Person(client, "uy")
    assert person.annotator.run(1) == 1
    assert "there is nothing to undo." in person.shown


def test_expired_question_shows_a_message_and_is_not_counted(client, server):
    server.ask("gone")
    person = Person(client, "y")
    assert person.annotator.run() == 0
    assert "not saved: the question expired at noon." in person.shown


def test_question_without_picture_shows_a_message(client, server):
    server.ask("a", image=False)
    person = Person(client, "y")
    person.annotator.run(1)
    assert "(the server did not keep the picture)" in person.shown


def test_control_characters_of_a_label_are_replaced():
    assert remove_control_characters("cat\x1b[2J\nü") == "cat?[2J?ü"


def test_half_block_shows_two_pixels():
    # Two columns need one line of two blocks, red above red.
    block = "\x1b[38;2;255;0;0;48;2;255;0;0m▀"
    assert draw_with_half_blocks(PNG, columns=2) == block * 2 + "\x1b[0m"
    assert draw_with_half_blocks(PNG, columns=8).count("\n") == 3


def test_picture_is_saved_without_a_colour_terminal(monkeypatch, tmp_path):
    monkeypatch.setattr("bitta.cli.annotate.mkdtemp", lambda prefix: str(tmp_path))
    assert choose_renderer()(PNG, "../01AB") == f"picture: {tmp_path / '01AB.png'}"
    assert (tmp_path / "01AB.png").read_bytes() == PNG


def test_picture_is_drawn_on_a_colour_terminal(monkeypatch):
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert "▀" in choose_renderer()(PNG, "a")


def test_keys_are_read_by_line_without_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert read_key("? ") == "y\n"
    assert read_key("? ") == "q"


def test_command_asks_at_the_keyboard(monkeypatch, capsys, tmp_path):
    server = FakeServer()
    server.ask("a", "b")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\nn\n"))
    monkeypatch.setattr("bitta.cli.annotate.mkdtemp", lambda prefix: str(tmp_path))
    with server.listening() as url:
        assert run("--url", url, "--key", KEY, "--n", "2") == 0
    assert verdicts(server) == {"a": "correct", "b": "incorrect"}
    assert capsys.readouterr().out.endswith("2 answers saved\n")


def test_command_answers_from_the_truth_file(monkeypatch, capsys, tmp_path):
    server = FakeServer()
    server.ask(*(f"p{n}" for n in range(30)))
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps({f"p{n}": n % 2 for n in range(30)}))
    with server.listening() as url:
        monkeypatch.setenv("BITTA_URL", url)
        monkeypatch.setenv("BITTA_KEY", KEY)
        assert run("--simulate", str(truth), "--n", "30") == 0
    right = {f"p{n}": "incorrect" if n % 2 else "correct" for n in range(30)}
    assert verdicts(server) == right
    out = capsys.readouterr().out
    assert out.endswith(" s: 15 correct, 15 incorrect, 0 skipped; 0 came too late\n")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--key", "k"], "no url was given; use --url or BITTA_URL"),
        (["--url", "http://h"], "no key was given; use --key or BITTA_KEY"),
        (
            ["--url", "http://h", "--key", "k", "--flip", ".1"],
            "--flip was given without --simulate",
        ),
        (["--url", "http://h", "--key", "k", "--n", "0"], "--n is 0"),
    ],
)
def test_missing_or_invalid_argument_is_refused(monkeypatch, argv, sentence):
    monkeypatch.delenv("BITTA_URL", raising=False)
    monkeypatch.delenv("BITTA_KEY", raising=False)
    with pytest.raises(SettingError, match=sentence):
        run(*argv)


def test_client_is_closed_after_a_failure(monkeypatch):
    closed = []
    monkeypatch.setattr(Client, "close", lambda self: closed.append(self.url))
    with pytest.raises(Exception, match="cannot be read"):
        run("--url", "http://h", "--key", "k", "--simulate", "/no/truth.json")
    assert closed == ["http://h"]
