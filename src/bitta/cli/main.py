"""bitta: adapt an image classifier at test time, with answers to a few questions.

Run "bitta COMMAND --help" for the options of a command.
"""

import argparse
import errno
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from bitta.errors import BittaError
from bitta.malloc import keep_freed_memory
from bitta.version import __version__

_COMMANDS = (
    "demo", "run", "sweep", "report", "methods", "streams", "models", "data", "pretrain",
    "statistics", "speed", "serve", "keys", "feedback", "annotate",
)  # fmt: skip
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    An error that the user can correct prints one sentence and gives exit code 2.
    """
    if argv is None:
        # Exclude the imported modules from garbage collection: each collection would take 0.1 s.
        gc.freeze()
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _build_parser(words).parse_args(words)
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
        # The reader of the output has closed it. Avoid an error message at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        print(
            f"bitta {arguments.command}: the disk is full ({error.strerror}); free some space and "
            "run the command again.",
            file=sys.stderr,
        )
        return 2


def _build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bitta", description=__doc__)
    parser.add_argument("--version", action="version", version=f"bitta {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # Import only the module of the given command: importing all of them is slow.
    names = words[:1] if words and words[0] in _COMMANDS else _COMMANDS
    for name in names:
        module = import_module(f"bitta.cli.{name}")
        summary = (module.__doc__ or "").partition(": ")[2].strip().rstrip(".")
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.configure(command)
        command.set_defaults(main=module.main)
    return parser


if __name__ == "__main__":
    sys.exit(main())
