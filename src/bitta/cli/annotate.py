"""bitta annotate: answer the questions of a server, by hand or from a file with the truth."""

import argparse
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from PIL import Image

from bitta.cli.progress import show_progress, stop_on_signal
from bitta.errors import SettingError

if TYPE_CHECKING:  # httpx is an optional dependency
    from bitta.client import AskedQuestion, Client, FeedbackReceipt, UndoReceipt
    from bitta.client.simulated_annotator import AnswerCounts

_EPILOG = """\
examples:
  bitta annotate --url http://127.0.0.1:8000 --key KEY
  bitta annotate --simulate truth.json --flip .1 --skip .05 --delay 1.5 --n 300

The environment variables BITTA_URL and BITTA_KEY replace --url and --key.
docs/how-to/client.md describes the truth file.
"""
_SIMULATION_OPTIONS = ("flip", "skip", "delay", "rate", "seed")
_VERDICTS = {"y": "correct", "n": "incorrect", "s": "skip"}
_PROMPT = "[y]es  [n]o  [s]kip  [u]ndo  [q]uit: "
_POLL_SECONDS = 2.0

PictureRenderer: TypeAlias = Callable[[bytes, str], str]
"""Function that turns a PNG and its prediction id into text for the terminal."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("--url", help="address of the server (default: $BITTA_URL)")
    parser.add_argument("--key", help="key of an annotator (default: $BITTA_KEY)")
    parser.add_argument("--n", type=int, metavar="N", help="stop after N answers (default: never)")
    parser.add_argument(
        "--simulate",
        metavar="TRUTH",
        help="answer from this file with the true classes (.json or .jsonl) instead of asking you",
    )
    parser.add_argument(
        "--flip", type=float, help="simulated: share of wrong verdicts (default: 0)"
    )
    parser.add_argument("--skip", type=float, help="simulated: share of skips (default: 0)")
    parser.add_argument(
        "--delay", type=float, help="simulated: mean thinking time in seconds (default: 0)"
    )
    parser.add_argument(
        "--rate", type=float, help="simulated: maximum answers per second (default: no limit)"
    )
    parser.add_argument(
        "--seed", type=int, help="simulated: seed of errors, skips and delays (default: 0)"
    )


def main(arguments: argparse.Namespace) -> int:
    """Answer questions, then print the number of answers."""
    options = {name: getattr(arguments, name) for name in _SIMULATION_OPTIONS}
    options = {name: value for name, value in options.items() if value is not None}
    if arguments.simulate is None and options:
        first = next(iter(options))
        raise SettingError(
            f"--{first} was given without --simulate; add --simulate TRUTH, or leave out --{first}."
        )
    if arguments.n is not None and arguments.n < 1:
        raise SettingError(f"--n is {arguments.n}; allowed: 1 or more answers.")
    with _connect(arguments) as client:
        if arguments.simulate is None:
            return _run_by_hand(client, arguments.n)
        return _run_simulated(client, arguments.simulate, arguments.n, options)


def _connect(arguments: argparse.Namespace) -> "Client":
    try:
        from bitta.client import Client  # noqa: PLC0415 (httpx is an optional dependency)
    except ImportError as error:
        raise SettingError(str(error)) from None
    return Client(
        _get_connection_setting(arguments, "url"), _get_connection_setting(arguments, "key")
    )


def _get_connection_setting(arguments: argparse.Namespace, name: str) -> str:
    variable = f"BITTA_{name.upper()}"
    value: str | None = getattr(arguments, name) or os.environ.get(variable)
    if not value:
        raise SettingError(f"no {name} was given; use --{name} or {variable}.")
    return value


def _run_by_hand(client: "Client", n: int | None) -> int:
    annotator = TerminalAnnotator(client, read_key=read_key, render=choose_renderer(), show=print)
    try:
        annotator.run(n)
    finally:
        print(f"{annotator.n_answered} answers saved")
    return 0


def _run_simulated(client: "Client", truth: str, n: int | None, options: dict[str, Any]) -> int:
    from bitta.client.simulated_annotator import (  # noqa: PLC0415 (httpx is an optional dependency)
        SimulatedAnnotator,
        SimulatedBehaviour,
        TruthFile,
    )

    annotator = SimulatedAnnotator(client, TruthFile(truth), SimulatedBehaviour(**options))
    started = monotonic()
    with stop_on_signal() as should_stop, show_progress("answer") as display:

        def on_answer(counts: "AnswerCounts") -> None:
            display.update("answers", counts.n_answered, n or counts.n_answered + 1, "")

        counts = annotator.run(n, should_stop=should_stop, on_answer=on_answer)
    print(
        f"{counts.n_answered} answers in {monotonic() - started:.0f} s: {counts.correct} correct, "
        f"{counts.incorrect} incorrect, {counts.skip} skipped; {counts.expired} came too late"
    )
    return 0


class TerminalAnnotator:
    """Loop that shows one question after another and reads one key for each.

    An answer belongs to the prediction that was shown when the key was pressed.
    """

    def __init__(
        self,
        client: "Client",
        *,
        read_key: Callable[[str], str],
        render: PictureRenderer,
        show: Callable[[str], None],
    ) -> None:
        self._client = client
        self._read_key, self._render, self._show = read_key, render, show
        self._history: list[tuple[AskedQuestion, FeedbackReceipt]] = []
        self._to_ask_again: list[tuple[AskedQuestion, bool]] = []
        """Questions to show before new ones, each with True if its lease is held.

        They were undone, or an undo interrupted them.
        """
        self.n_answered = 0

    def run(self, n: int | None = None) -> int:
        """Ask until n answers are saved or the person quits. Return the number of answers."""
        while n is None or self.n_answered < n:
            question, has_lease = self._next_question()
            self._show_question(question)
            key = self._read_valid_key()
            if key == "q":
                break
            if key == "u":
                self._to_ask_again.append((question, has_lease))
                self._undo()
            else:
                self._answer(question, key, has_lease=has_lease)
        return self.n_answered

    def _next_question(self) -> "tuple[AskedQuestion, bool]":
        """Return a question, and True if its lease is held."""
        if self._to_ask_again:
            return self._to_ask_again.pop()
        question = self._client.next_question()
        if question is None:
            self._show("there are no questions; waiting (Ctrl-C ends)")
        while question is None:
            question = self._client.next_question(wait=_POLL_SECONDS)
        return question, True

    def _show_question(self, question: "AskedQuestion") -> None:
        if question.has_image:
            png = self._client.image(question)
            self._show(self._render(png, question.prediction_id))
        else:
            self._show("(the server did not keep the picture)")
        confidence = f"{100 * question.confidence:.0f} %"
        label = remove_control_characters(question.label)
        self._show(f"Is this {label!r}? The confidence of the model is {confidence}.")

    def _read_valid_key(self) -> str:
        while True:
            key = self._read_key(_PROMPT).strip().lower()[:1] or " "
            if key in "ynsuq":
                return key
            self._show("press one of y, n, s, u, q.")

    def _answer(self, question: "AskedQuestion", key: str, *, has_lease: bool) -> None:
        from bitta.client import ExpiredError  # noqa: PLC0415 (httpx is an optional dependency)

        verdict = _VERDICTS[key]
        try:
            answer = self._client.answer(
                question if has_lease else question.prediction_id,
                verdict=verdict,  # type: ignore[arg-type] # one of the three
            )
        except ExpiredError as error:
            self._show(f"not saved: {error}")
            return
        self._history.append((question, answer))
        self.n_answered += 1
        self._show(f"saved: {verdict}")

    def _undo(self) -> None:
        if not self._history:
            self._show("there is nothing to undo.")
            return
        question, answer = self._history.pop()
        undone: UndoReceipt = self._client.undo(answer.id)
        self.n_answered -= 1
        self._to_ask_again.append((question, False))
        self._show(f"undone. {remove_control_characters(undone.note)}")


def remove_control_characters(text: str) -> str:
    """Replace characters that a terminal would interpret."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def read_key(prompt: str) -> str:
    """Read one key, without Return if there is a terminal. The end of the input gives "q"."""
    print(prompt, end="", flush=True)
    if not sys.stdin.isatty():
        return sys.stdin.readline() or "q"
    import termios  # noqa: PLC0415 (not on Windows)
    import tty  # noqa: PLC0415

    previous_mode = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        key = sys.stdin.read(1) or "q"
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, previous_mode)
    print(remove_control_characters(key))
    return key


def choose_renderer() -> PictureRenderer:
    """Return a renderer that draws on a terminal with 24-bit colour, or else writes a file."""
    if sys.stdout.isatty() and os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return lambda png, _id: draw_with_half_blocks(png)
    folder = Path(mkdtemp(prefix="bitta-annotate-"))

    def save(png: bytes, prediction_id: str) -> str:
        name = "".join(letter for letter in prediction_id if letter.isalnum())
        path = folder / f"{name}.png"
        path.write_bytes(png)
        return f"picture: {path}"

    return save


def draw_with_half_blocks(png: bytes, *, columns: int = 40) -> str:
    """Draw a picture with coloured half-block characters. Each shows two pixels.

    A small picture is enlarged without smoothing, so its pixels stay square and sharp.
    """
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    height = max(2, round(columns * picture.height / picture.width / 2) * 2)
    is_enlarged = columns > picture.width
    resample = Image.Resampling.NEAREST if is_enlarged else Image.Resampling.BOX
    picture = picture.resize((columns, height), resample)
    lines = []
    for y in range(0, height, 2):
        blocks = []
        for x in range(columns):
            upper, lower = picture.getpixel((x, y)), picture.getpixel((x, y + 1))
            blocks.append(f"\x1b[38;2;{_colour_code(upper)};48;2;{_colour_code(lower)}m▀")
        lines.append("".join(blocks) + "\x1b[0m")
    return "\n".join(lines)


def _colour_code(colour: object) -> str:
    assert isinstance(colour, tuple)
    return ";".join(map(str, colour))
