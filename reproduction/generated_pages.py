"""The command line that all page writers share: write the pages, or check them."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from reproduction.paths import relative


def write_or_check(pages: Mapping[Path, str], description: str | None) -> int:
    """Write the pages whose text has changed, and return the exit status.

    With `--check` write nothing, list the pages that would change, and return 1 if there are any.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a page is out of date"
    )
    is_check = parser.parse_args().check
    changed = [path for path, text in pages.items() if path.read_text() != text]
    for path in changed:
        if not is_check:
            path.write_text(pages[path])
        print(f"{'out of date' if is_check else 'written'}: {relative(path)}")
    return int(is_check and bool(changed))
