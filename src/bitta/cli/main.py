"""bitta: serve a stream, ask a few questions, learn from the answers."""

import argparse
import os
import sys
from collections.abc import Sequence

from bitta.cli import (
    annotate,
    data,
    demo,
    feedback,
    keys,
    methods,
    models,
    pretrain,
    report,
    run,
    serve,
    speed,
    statistics,
    streams,
    sweep,
)
from bitta.cli.allocator import keep_freed_memory
from bitta.errors import BittaError
from bitta.version import __version__

_COMMANDS = {
    "demo": demo,
    "run": run,
    "sweep": sweep,
    "report": report,
    "methods": methods,
    "streams": streams,
    "models": models,
    "data": data,
    "pretrain": pretrain,
    "statistics": statistics,
    "speed": speed,
    "serve": serve,
    "keys": keys,
    "feedback": feedback,
    "annotate": annotate,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; what a user can mend ends with one sentence and exit code 2."""
    arguments = _parser().parse_args(argv)
    keep_freed_memory()
    try:
        return int(arguments.main(arguments))
    except BittaError as error:
        print(f"bitta {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bitta", description=__doc__)
    parser.add_argument("--version", action="version", version=f"bitta {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        summary = (module.__doc__ or "").partition(": ")[2].strip().rstrip(".")
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.configure(command)
        command.set_defaults(main=module.main)
    return parser


if __name__ == "__main__":
    sys.exit(main())
