"""bitta feedback: export what people answered, take answers in, live a server's log again."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bitta.cli.display import progress
from bitta.cli.shape import input_shape
from bitta.errors import BittaError, InputError

if TYPE_CHECKING:
    from bitta.server.store import Store

_EPILOG = """\
examples:
  bitta feedback export --format csv --out answers.csv
  bitta feedback import answers.jsonl
  bitta feedback replay --model weights.safetensors

An import stores what is not there yet, so it can be repeated; what was undone or replaced stays so.

A replay serves and learns again what the log says, in the same order, and compares the weights with
those of every snapshot: bit for bit the same on the same version of torch with as many threads. It
needs a server that ran with --keep-images all.
"""
_FORMATS = ("jsonl", "csv", "labelstudio")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="export | import | replay"
    )
    export = actions.add_parser("export", help="write every answer, oldest first")
    export.add_argument("--format", choices=_FORMATS, default="jsonl", help="(default: jsonl)")
    export.add_argument("--out", metavar="FILE", help="(default: the terminal)")
    taken = actions.add_parser("import", help="take in answers about predictions that are known")
    taken.add_argument("file", metavar="FILE.jsonl", help="as exported, an answer per line")
    replay = actions.add_parser("replay", help="serve and learn again what the log says")
    replay.add_argument("--model", required=True, help="weights with a card, or module:function")
    replay.add_argument("--classes", metavar="FILE", help="a class name per line")
    replay.add_argument("--input-shape", metavar="CxHxW", help="such as 3x224x224")
    for action in (export, taken, replay):
        action.add_argument(
            "--data-dir", default="bitta-data", metavar="DIR", help="the server's data folder"
        )
        action.add_argument(
            "--database", metavar="URL", help="the server's database (default: in the data folder)"
        )


def main(arguments: argparse.Namespace) -> int:
    """Works beside a server that runs."""
    try:
        from bitta.server.store import Store  # noqa: PLC0415 (an extra that may not be there)
    except ModuleNotFoundError as error:
        raise InputError(
            f'{error.name} is not installed; run "pip install bitta[serve]" first.'
        ) from None
    folder = Path(arguments.data_dir)
    with Store.open(arguments.database, folder, alone=False, make=False) as store:
        if arguments.action == "export":
            return _export(store, arguments.format, arguments.out)
        if arguments.action == "import":
            return _import(store, Path(arguments.file))
        return _replay(store, arguments)


def _export(store: "Store", form: str, out: str | None) -> int:
    from bitta.server.store.exports import export  # noqa: PLC0415

    lines = export(form, store.all_feedback(), names=store.keys.names())
    if out is None:
        sys.stdout.writelines(lines)
        return 0
    try:
        with open(out, "w", encoding="utf-8") as file:
            file.writelines(lines)
    except OSError as error:
        raise InputError(
            f"{out!r} cannot be written ({error.strerror}); give another --out."
        ) from None
    print(f"written: {out}")
    return 0


def _import(store: "Store", path: Path) -> int:
    """Line by line: what was stored before is stored once."""
    from bitta.server.store.imports import read  # noqa: PLC0415

    new = known = idle = ended = 0
    for number, line in _lines(path):
        try:
            restored = store.import_answer(read(line)).result()
        except BittaError as error:
            raise InputError(
                f"line {number} of {str(path)!r} cannot be taken in ({error}); {new} answers "
                f"before it were new, {known} were there."
            ) from None
        repeated = restored.record.repeated
        new, known = new + (not repeated), known + repeated
        idle += not (repeated or restored.record.standing)
        ended += restored.ended
    print(f"{new} answers taken in, {known} were there already")
    if idle:
        print(f"{idle} of those taken in were undone or replaced; nothing is learned from them")
    if ended:
        print(f"{ended} that stood here stand no longer: undone or replaced since")
    return 0


def _lines(path: Path) -> list[tuple[int, str]]:
    """Lines with their numbers, from 1; empty ones are left out."""
    try:
        # Not splitlines: a comment may hold what Unicode, but not JSON, takes for the end of one.
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} cannot be read ({error}).") from None
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _replay(store: "Store", arguments: argparse.Namespace) -> int:
    from bitta.server.engine.learner import Learner, LearnerConfig  # noqa: PLC0415
    from bitta.server.engine.replay import Replay  # noqa: PLC0415
    from bitta.server.model import served_model  # noqa: PLC0415

    started = store.events(kinds=["started"], limit=1)
    if not started:
        raise InputError("the log is empty; no server has run here.")
    known = dict(started[0].body["learner"])
    known["settings"] = tuple((name, value) for name, value in known["settings"])
    model = served_model(
        arguments.model,
        classes=arguments.classes and Path(arguments.classes),
        input_shape=input_shape(arguments.input_shape),
    )
    learner = Learner(model.module, LearnerConfig(**known))
    if learner.weights != started[0].body["weights"]:
        raise InputError(f"{arguments.model!r} is not the model that the log began with.")
    with TemporaryDirectory() as folder, progress("event") as shown:

        def on_event(seq: int, last: int) -> None:
            shown.update("replay", seq, last, "")

        done = Replay(learner, store, folder=Path(folder), on_event=on_event).run()
    print(
        f"{done.n_served} images served and {done.n_steps} steps learned again; weights compared "
        f"with {done.compared} snapshots, {len(done.differing)} differ"
    )
    for name in done.differing:
        print(f"  {name}")
    print(f"weights: {done.weights}")
    return 1 if done.differing else 0
