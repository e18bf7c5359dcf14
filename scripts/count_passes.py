"""Count what each method costs and write it where "bitta methods" reads it.

    python scripts/count_passes.py [METHOD ...]

Those not named stay as they are.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from bitta.bench.passes import PROTOCOL, count_passes
from bitta.methods import METHODS
from bitta.statefile import write_atomically

OUT = Path(__file__).parents[1] / "src" / "bitta" / "assets" / "passes.json"


def main() -> None:
    """Count, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD", choices=[*METHODS, []])
    chosen = parser.parse_args().methods or list(METHODS)
    table = json.loads(OUT.read_text())["passes"] if OUT.exists() else {}
    for name in chosen:
        table[name] = asdict(count_passes(name))
        print(name, table[name], flush=True)
    ordered = {name: table[name] for name in METHODS if name in table}
    text = json.dumps({"protocol": PROTOCOL, "passes": ordered}, indent=1)
    write_atomically(OUT, (text + "\n").encode())


if __name__ == "__main__":
    main()
