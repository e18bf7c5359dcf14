"""bitta annotate: answer a server's questions, at the keyboard or from the truth."""

import argparse
import os
from time import monotonic
from typing import TYPE_CHECKING, Any

from bitta.cli.annotator import Annotator, best_show, read_key
from bitta.cli.display import progress
from bitta.cli.signals import stop_on_signal
from bitta.errors import SettingError

if TYPE_CHECKING:  # httpx is an extra
    from bitta.client import Client
    from bitta.client.simulated import Tally

_EPILOG = """\
examples:
  bitta annotate --url http://127.0.0.1:8000 --key KEY
  bitta annotate --simulate truth.json --flip .1 --skip .05 --delay 1.5 --n 300

BITTA_URL and BITTA_KEY replace --url and --key. docs/how-to/client.md describes the truth file.
"""
_OF_SIMULATE = ("flip", "skip", "delay", "rate", "seed")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("--url", help="address of the server (default: BITTA_URL)")
    parser.add_argument("--key", help="key of an annotator (default: BITTA_KEY)")
    parser.add_argument("--n", type=int, metavar="N", help="answers to stop after (default: none)")
    parser.add_argument(
        "--simulate", metavar="TRUTH", help="answer from this file, .json or .jsonl"
    )
    parser.add_argument("--flip", type=float, help="share of wrong verdicts (default: 0)")
    parser.add_argument("--skip", type=float, help="share of skips (default: 0)")
    parser.add_argument("--delay", type=float, help="seconds of thought (default: 0)")
    parser.add_argument("--rate", type=float, help="answers per second at most (default: no limit)")
    parser.add_argument("--seed", type=int, help="of errors, skips and delays (default: 0)")


def main(arguments: argparse.Namespace) -> int:
    """Answer until it is enough; say what was done."""
    given = {name: getattr(arguments, name) for name in _OF_SIMULATE}
    given = {name: value for name, value in given.items() if value is not None}
    if arguments.simulate is None and given:
        raise SettingError(f"--{next(iter(given))} needs --simulate TRUTH; a person answers else.")
    if arguments.n is not None and arguments.n < 1:
        raise SettingError(f"n is {arguments.n}; allowed: 1 or more answers.")
    with _client(arguments) as client:
        if arguments.simulate is None:
            return _person(client, arguments.n)
        return _simulated(client, arguments.simulate, arguments.n, given)


def _client(arguments: argparse.Namespace) -> "Client":
    try:
        from bitta.client import Client  # noqa: PLC0415 (httpx is an extra)
    except ImportError as error:
        raise SettingError(str(error)) from None
    return Client(_given(arguments, "url"), _given(arguments, "key"))


def _given(arguments: argparse.Namespace, name: str) -> str:
    variable = f"BITTA_{name.upper()}"
    given: str | None = getattr(arguments, name) or os.environ.get(variable)
    if not given:
        raise SettingError(f"no {name} was given; use --{name} or {variable}.")
    return given


def _person(client: "Client", n: int | None) -> int:
    annotator = Annotator(client, read=read_key, show=best_show(), say=print)
    try:
        annotator.run(n)
    finally:
        print(f"{annotator.n_answered} answers saved")
    return 0


def _simulated(client: "Client", truth: str, n: int | None, habits: dict[str, Any]) -> int:
    from bitta.client.simulated import (  # noqa: PLC0415 (httpx is an extra)
        Habits,
        SimulatedAnnotator,
        TruthFile,
    )

    annotator = SimulatedAnnotator(client, TruthFile(truth), Habits(**habits))
    began = monotonic()
    with stop_on_signal() as stop, progress("answer") as shown:

        def on_answer(tally: "Tally") -> None:
            shown.update("answers", tally.answered, n or tally.answered + 1, "")

        tally = annotator.run(n, stop=stop, on_answer=on_answer)
    print(
        f"{tally.answered} answers in {monotonic() - began:.0f} s: {tally.correct} correct, "
        f"{tally.incorrect} incorrect, {tally.skip} skipped; {tally.expired} came too late"
    )
    return 0
