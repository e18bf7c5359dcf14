"""A person at a terminal, who answers with one key."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, TypeAlias

from bitta.cli.preview import half_blocks

if TYPE_CHECKING:  # httpx is an extra
    from bitta.client import Answered, Client, Question, Undone

_VERDICTS = {"y": "correct", "n": "incorrect", "s": "skip"}
_PROMPT = "[y]es  [n]o  [s]kip  [u]ndo  [q]uit: "
_LISTEN = 2.0

Show: TypeAlias = Callable[[bytes, str], str]
"""Makes what is printed of a PNG and its prediction_id."""


class Annotator:
    """Asks for one key per question; an answer is bound to its prediction, never to the screen."""

    def __init__(
        self,
        client: "Client",
        *,
        read: Callable[[str], str],
        show: Show,
        say: Callable[[str], None],
    ) -> None:
        self._client = client
        self._read, self._show, self._say = read, show, say
        self._past: list[tuple[Question, Answered]] = []
        self._again: list[tuple[Question, bool]] = []
        """To be asked before new ones: taken back, or interrupted by that."""
        self.n_answered = 0

    def run(self, n: int | None = None) -> int:
        """Go on until n answers or until the person leaves; the number of answers."""
        while n is None or self.n_answered < n:
            question, held = self._next()
            self._present(question)
            key = self._key()
            if key == "q":
                break
            if key == "u":
                self._again.append((question, held))
                self._undo()
            else:
                self._answer(question, key, held=held)
        return self.n_answered

    def _next(self) -> "tuple[Question, bool]":
        """A question, and whether it is held under a lease."""
        if self._again:
            return self._again.pop()
        question = self._client.next_question()
        if question is None:
            self._say("no questions just now; waiting (Ctrl-C ends)")
        while question is None:
            question = self._client.next_question(wait=_LISTEN)
        return question, True

    def _present(self, question: "Question") -> None:
        if question.has_image:
            png = self._client.image(question)
            self._say(self._show(png, question.prediction_id))
        else:
            self._say("(the picture was not kept)")
        confidence = f"{100 * question.confidence:.0f} %"
        self._say(f"Is this {plain(question.label)!r}? The model is {confidence} sure.")

    def _key(self) -> str:
        while True:
            key = self._read(_PROMPT).strip().lower()[:1] or " "
            if key in "ynsuq":
                return key
            self._say("one of y, n, s, u, q.")

    def _answer(self, question: "Question", key: str, *, held: bool) -> None:
        from bitta.client import ExpiredError  # noqa: PLC0415 (httpx is an extra)

        verdict = _VERDICTS[key]
        try:
            given = self._client.answer(
                question if held else question.prediction_id,
                verdict=verdict,  # type: ignore[arg-type] # one of the three
            )
        except ExpiredError as error:
            self._say(f"not saved: {error}")
            return
        self._past.append((question, given))
        self.n_answered += 1
        self._say(f"saved: {verdict}")

    def _undo(self) -> None:
        if not self._past:
            self._say("nothing to undo.")
            return
        question, given = self._past.pop()
        undone: Undone = self._client.undo(given.id)
        self.n_answered -= 1
        self._again.append((question, False))
        self._say(f"undone. {plain(undone.note)}")


def plain(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def read_key(prompt: str) -> str:
    """One key, without Return where there is a terminal; the end of input leaves."""
    print(prompt, end="", flush=True)
    if not sys.stdin.isatty():
        return sys.stdin.readline() or "q"
    import termios  # noqa: PLC0415 (only where there is a terminal)
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        key = sys.stdin.read(1) or "q"
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
    print(plain(key))
    return key


def best_show() -> Show:
    """Half blocks where the terminal has colours for them, else a file to look at."""
    if sys.stdout.isatty() and os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return lambda png, _id: half_blocks(png)
    folder = Path(mkdtemp(prefix="bitta-annotate-"))

    def save(png: bytes, prediction_id: str) -> str:
        name = "".join(letter for letter in prediction_id if letter.isalnum())
        path = folder / f"{name}.png"
        path.write_bytes(png)
        return f"picture: {path}"

    return save
