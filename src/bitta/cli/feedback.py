"""bitta feedback: export and import answers, or replay the event log of a server."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bitta.cli.arguments import add_store_arguments, open_store, parse_input_shape
from bitta.cli.progress import show_progress
from bitta.errors import BittaError, InputError

if TYPE_CHECKING:
    from bitta.server.store import Store

_EPILOG = """\
examples:
  bitta feedback export --format csv --out answers.csv
  bitta feedback import answers.jsonl
  bitta feedback replay --model weights.safetensors

An import stores only answers that are not stored yet, so it can be repeated. Undone answers stay
undone, and replaced answers stay replaced.

A replay repeats all serving and learning of the log in the same order, and compares the weights
with every snapshot. They are bit-identical on the same version of torch with the same number of
threads. A replay needs a server that ran with --keep-images all.
"""
_FORMATS = ("jsonl", "csv", "labelstudio")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="export | import | replay"
    )
    export = actions.add_parser("export", help="write all answers, oldest first")
    export.add_argument(
        "--format", choices=_FORMATS, default="jsonl", help="format of the file (default: jsonl)"
    )
    export.add_argument("--out", metavar="FILE", help="file to write (default: standard output)")
    import_ = actions.add_parser(
        "import", help="store answers about predictions that the server knows"
    )
    import_.add_argument("file", metavar="FILE.jsonl", help="exported file, one answer per line")
    replay = actions.add_parser("replay", help="repeat all serving and learning of the event log")
    replay.add_argument("--model", required=True, help="weights file, or module:function")
    replay.add_argument("--classes", metavar="FILE", help="file with a class name per line")
    replay.add_argument(
        "--input-shape", metavar="CxHxW", help="shape of an image, such as 3x224x224"
    )
    for action in (export, import_, replay):
        add_store_arguments(action)


def main(arguments: argparse.Namespace) -> int:
    """Run an action on the data of a server, which may be running."""
    with open_store(arguments, create=False) as store:
        if arguments.action == "export":
            return _export(store, arguments.format, arguments.out)
        if arguments.action == "import":
            return _import(store, Path(arguments.file))
        return _replay(store, arguments)


def _export(store: "Store", format_name: str, out: str | None) -> int:
    from bitta.server.store.exports import export_records  # noqa: PLC0415

    lines = export_records(format_name, store.all_feedback(), annotator_names=store.keys.names())
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
    """Store the answers of a file that are not stored yet."""
    from bitta.server.store.exports import parse_exported_answer  # noqa: PLC0415

    n_new = n_known = n_withdrawn = n_superseded = 0
    for number, line in _read_lines(path):
        try:
            imported = store.import_answer(parse_exported_answer(line)).result()
        except BittaError as error:
            raise InputError(
                f"line {number} of {str(path)!r} cannot be imported ({error}); of the answers "
                f"before it, {n_new} were new and {n_known} were already stored."
            ) from None
        is_known = imported.record.repeated
        n_known += is_known
        n_new += not is_known
        n_withdrawn += not (is_known or imported.record.standing)
        n_superseded += imported.replaced_standing_answer
    print(f"{n_new} answers imported, {n_known} were already stored")
    if n_withdrawn:
        print(f"{n_withdrawn} of the imported answers were undone or replaced and are not learned")
    if n_superseded:
        print(f"{n_superseded} stored answers are now undone or replaced, as in the file")
    return 0


def _read_lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines that are not empty, with their numbers from 1."""
    try:
        # `splitlines` would also split at Unicode line separators, which a comment may hold.
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{str(path)!r} cannot be read ({error}); "
            'give a file that "bitta feedback export" wrote.'
        ) from None
    return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _replay(store: "Store", arguments: argparse.Namespace) -> int:
    from bitta.server.engine.learner import Learner  # noqa: PLC0415
    from bitta.server.engine.offline_replay import Replay  # noqa: PLC0415
    from bitta.server.model_loading import load_served_model  # noqa: PLC0415
    from bitta.server.settings import ServeSettings  # noqa: PLC0415

    started = store.events(kinds=["started"], limit=1)
    if not started:
        raise InputError("the event log is empty; give the --data-dir of a server that has run.")
    model = load_served_model(
        arguments.model,
        classes=arguments.classes and Path(arguments.classes),
        input_shape=parse_input_shape(arguments.input_shape),
    )
    learner = Learner(model.module, ServeSettings(**started[0].body["learner"]))
    if learner.weights_hash != started[0].body["weights"]:
        raise InputError(
            f"{arguments.model!r} is not the model that the log starts with; give that model."
        )
    with TemporaryDirectory() as folder, show_progress("event") as display:

        def on_event(seq: int, last: int) -> None:
            display.update("replay", seq, last, "")

        replay = Replay(learner, store, folder=Path(folder), on_event=on_event).run()
    print(
        f"{replay.n_served} images and {replay.n_steps} learning steps replayed; weights "
        f"compared with {replay.n_compared} snapshots, {len(replay.differing)} differ"
    )
    for name in replay.differing:
        print(f"  {name}")
    print(f"weights: {replay.weights_hash}")
    return 1 if replay.differing else 0
