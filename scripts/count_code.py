"""Count the source code, and the code that one BiTTA step and one run go through.

    python scripts/count_code.py [--source src]

The counts are files and lines per package, docstrings that start with a question word, and the
files and functions that one warm step (predict, answer, learn) and `bitta run` on two batches call.
"""

import argparse
import ast
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

QUESTION_WORDS = ("What", "Whether", "Of", "How", "Where", "As", "Who", "Which", "That")
EXPERIMENT = """
[stream]
kind = "arrays"
path = "{path}"
batch_size = 8

[model]
factory = "bitta.testing:toy_classifier"

[method]
name = "bitta"

[feedback]
n_queries = 2
"""


def main() -> None:
    """Print all counts as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    source = parser.parse_args().source.resolve()
    sys.path.insert(0, str(source))
    package = source / "bitta"
    counts = count_files(package) | {
        "step": trace(package, warm_step()),
        "run": trace(package, two_batches()),
    }
    print(json.dumps(counts, indent=1))


def count_files(package: Path) -> dict[str, Any]:
    """Return files and lines of the package and of its parts, and docstrings."""
    files, lines, docstrings = Counter[str](), Counter[str](), Counter[str]()
    for path in sorted(package.rglob("*.py")):
        part = path.relative_to(package).parts[0].removesuffix(".py")
        text = path.read_text()
        files[part] += 1
        lines[part] += len(text.splitlines())
        for docstring in docstrings_of(text):
            docstrings["all"] += 1
            docstrings["question word first"] += docstring.split()[0] in QUESTION_WORDS
    return {
        "files": files.total(),
        "lines": lines.total(),
        "docstrings": docstrings,
        "packages": {part: {"files": files[part], "lines": lines[part]} for part in files},
    }


def docstrings_of(text: str) -> list[str]:
    """Return the docstrings of a module, its classes and its functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [docstring for node in nodes if (docstring := ast.get_docstring(node))]


def trace(package: Path, work: Callable[[], object]) -> dict[str, int]:
    """Call `work` and count the files and functions of the package that it enters."""
    entered: set[tuple[str, str, int]] = set()
    root = str(package)

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        named = not code.co_name.startswith("<")
        if event == "call" and named and code.co_filename.startswith(root):
            entered.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return {"files": len({file for file, *_ in entered}), "functions": len(entered)}


def warm_step() -> Callable[[], object]:
    """Return a BiTTA step after a few others, so that nothing is done for the first time."""
    import torch  # noqa: PLC0415

    import bitta  # noqa: PLC0415
    from bitta.testing import toy_classifier  # noqa: PLC0415

    session = bitta.Session(toy_classifier(), "bitta", n_queries=1, seed=0)
    inputs = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def step() -> None:
        for query in session.predict(inputs).queries:
            session.answer(query.id, correct=True)
        session.learn()

    for _ in range(3):
        step()
    return step


def two_batches() -> Callable[[], object]:
    """Return `bitta run` on two batches of random images."""
    import numpy as np  # noqa: PLC0415

    from bitta.cli.main import main as command  # noqa: PLC0415

    folder = Path(tempfile.mkdtemp())
    random = np.random.default_rng(0)
    inputs = random.random((16, 3, 8, 8), dtype=np.float32)
    np.savez(folder / "data.npz", inputs=inputs, labels=random.integers(0, 5, 16))
    experiment = folder / "experiment.toml"
    experiment.write_text(EXPERIMENT.format(path=folder / "data.npz"))

    def run() -> None:
        shown, sys.stdout = sys.stdout, sys.stderr
        try:
            if command(["run", str(experiment), "--out", str(folder)]):
                raise SystemExit("bitta run failed")
        finally:
            sys.stdout = shown

    return run


if __name__ == "__main__":
    main()
