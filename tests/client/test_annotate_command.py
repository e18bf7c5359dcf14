"""bitta annotate, at the keyboard and simulated."""

import argparse
import io
import json
import sys

import pytest

from bitta.cli import annotate
from bitta.cli.annotator import Annotator, best_show, plain, read_key
from bitta.cli.preview import half_blocks
from bitta.client import Client
from bitta.errors import SettingError
from client.fake_server import KEY, PNG, FakeServer


def run(*argv):
    parser = argparse.ArgumentParser()
    annotate.configure(parser)
    return annotate.main(parser.parse_args(argv))


class Person:
    """Presses these keys, one after another, then leaves."""

    def __init__(self, client, keys):
        self.said = []
        pressed = iter([*keys, "q"])
        self.annotator = Annotator(
            client,
            read=lambda _: next(pressed),
            show=lambda png, id_: f"<{len(png)} bytes of {id_}>",
            say=self.said.append,
        )


def verdicts(server):
    return {
        record["prediction_id"]: record["verdict"]
        for record in server.records
        if record["standing"]
    }


def test_three_keys_are_three_verdicts(client, server):
    server.ask("a", "b", "c", "d")
    person = Person(client, "yns")
    assert person.annotator.run() == 3
    assert verdicts(server) == {"a": "correct", "b": "incorrect", "c": "skip"}
    assert person.said[:3] == [
        f"<{len(PNG)} bytes of a>", "Is this 'cat'? The model is 75 % sure.", "saved: correct",
    ]  # fmt: skip


def test_other_keys_are_asked_again(client, server):
    server.ask("a")
    person = Person(client, ["x", "", "Y\n"])
    person.annotator.run(1)
    assert verdicts(server) == {"a": "correct"}
    assert person.said.count("one of y, n, s, u, q.") == 2


def test_undo_asks_the_one_before_again_then_goes_on(client, server):
    server.ask("a", "b", "c")
    Person(client, ["y", "u", "n", "s"]).annotator.run()
    # a yes; shown b: undo; a again: no; b: skip.
    assert [(r["prediction_id"], r["verdict"]) for r in server.records] == [
        ("a", "correct"), ("a", "incorrect"), ("b", "skip"),
    ]  # fmt: skip
    assert verdicts(server) == {"a": "incorrect", "b": "skip"}
    assert "lease" not in server.records[1]["body"]
    assert server.records[2]["body"]["lease"] == "lease-b"


def test_undo_of_nothing_is_said(client, server):
    server.ask("a")
    person = Person(client, "uy")
    assert person.annotator.run(1) == 1
    assert "nothing to undo." in person.said


def test_an_expired_question_is_told_and_the_next_one_comes(client, server):
    server.ask("gone")
    person = Person(client, "y")
    assert person.annotator.run() == 0
    assert "not saved: the question expired at noon." in person.said


def test_a_picture_that_was_not_kept_is_said_so(client, server):
    server.ask("a", image=False)
    person = Person(client, "y")
    person.annotator.run(1)
    assert "(the picture was not kept)" in person.said


def test_labels_cannot_command_the_terminal():
    assert plain("cat\x1b[2J\nü") == "cat?[2J?ü"


def test_half_blocks_hold_two_pixels_each():
    """2 x 2 red at 2 columns: one line of two blocks, red over red."""
    block = "\x1b[38;2;255;0;0;48;2;255;0;0m▀"
    assert half_blocks(PNG, columns=2) == block * 2 + "\x1b[0m"
    assert half_blocks(PNG, columns=8).count("\n") == 3


def test_without_colours_the_picture_is_saved(monkeypatch, tmp_path):
    monkeypatch.setattr("bitta.cli.annotator.mkdtemp", lambda prefix: str(tmp_path))
    assert best_show()(PNG, "../01AB") == f"picture: {tmp_path / '01AB.png'}"
    assert (tmp_path / "01AB.png").read_bytes() == PNG


def test_with_colours_it_is_drawn(monkeypatch):
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert "▀" in best_show()(PNG, "a")


def test_keys_come_by_line_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert read_key("? ") == "y\n"
    assert read_key("? ") == "q"


def test_the_command_at_the_keyboard(monkeypatch, capsys, tmp_path):
    server = FakeServer()
    server.ask("a", "b")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\nn\n"))
    monkeypatch.setattr("bitta.cli.annotator.mkdtemp", lambda prefix: str(tmp_path))
    with server.listening() as url:
        assert run("--url", url, "--key", KEY, "--n", "2") == 0
    assert verdicts(server) == {"a": "correct", "b": "incorrect"}
    assert capsys.readouterr().out.endswith("2 answers saved\n")


def test_the_command_simulated(monkeypatch, capsys, tmp_path):
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
        (["--url", "http://h", "--key", "k", "--flip", ".1"], "--flip needs --simulate TRUTH"),
        (["--url", "http://h", "--key", "k", "--n", "0"], "n is 0"),
    ],
)
def test_what_is_missing_is_one_sentence(monkeypatch, argv, sentence):
    monkeypatch.delenv("BITTA_URL", raising=False)
    monkeypatch.delenv("BITTA_KEY", raising=False)
    with pytest.raises(SettingError, match=sentence):
        run(*argv)


def test_a_client_is_closed_when_the_command_fails(monkeypatch):
    closed = []
    monkeypatch.setattr(Client, "close", lambda self: closed.append(self.url))
    with pytest.raises(Exception, match="cannot be read"):
        run("--url", "http://h", "--key", "k", "--simulate", "/no/truth.json")
    assert closed == ["http://h"]
