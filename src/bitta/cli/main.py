"""bitta: serve a stream, ask a few questions, learn from the answers."""

import argparse
import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from bitta.allocator import keep_freed_memory
from bitta.errors import BittaError
from bitta.version import __version__

_COMMANDS = (
    "demo", "run", "sweep", "report", "methods", "streams", "models", "data", "pretrain",
    "statistics", "speed", "serve", "keys", "feedback", "annotate",
)  # fmt: skip
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; what a user can mend ends with one sentence and exit code 2."""
    if argv is None:
        # Imported for good: to look for garbage there takes a tenth of a second each time.
        gc.freeze()
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser(given).parse_args(given)
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
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        told = (
            f"there is no room for what it writes ({error.strerror}); make some, and run it again"
        )
        print(f"bitta {arguments.command}: {told}.", file=sys.stderr)
        return 2


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bitta", description=__doc__)
    parser.add_argument("--version", action="version", version=f"bitta {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # The others would take a restarting server longer to import than its model.
    named = given[:1] if given and given[0] in _COMMANDS else _COMMANDS
    for name in named:
        module = import_module(f"bitta.cli.{name}")
        summary = (module.__doc__ or "").partition(": ")[2].strip().rstrip(".")
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.configure(command)
        command.set_defaults(main=module.main)
    return parser


if __name__ == "__main__":
    sys.exit(main())
