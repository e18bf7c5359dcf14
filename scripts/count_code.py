"""Count the source code, and the code behind one BiTTA step, one run and two server requests.

    python scripts/count_code.py [--source src]

The counts are files and lines per package, docstrings that start with a question word, and the
files and functions that each of these calls uses: one warm step (predict, answer, learn),
`bitta run` on two batches, one `/infer` request to a warm server, and one answer to it.
"""

import argparse
import ast
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

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
    parser.add_argument(
        "--source",
        type=Path,
        default=Path(__file__).parents[1] / "src",
        help="folder that holds the package bitta",
    )
    source = parser.parse_args().source.resolve()
    sys.path.insert(0, str(source))
    package = source / "bitta"
    tracer = Tracer(package)
    counts = count_files(package) | {
        "step": tracer.count(warm_step()),
        "run": tracer.count(two_batches()),
    }
    counts |= requests_to_a_server(tracer)
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


class Tracer:
    """Records the functions of the package that any thread enters while it is on."""

    def __init__(self, package: Path) -> None:
        self._root = str(package)
        self._entered: set[tuple[str, str, int]] = set()
        self._is_on = False
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def count(self, work: Callable[[], object]) -> dict[str, int]:
        """Call `work` and count the files and functions entered until it returns."""
        self._entered.clear()
        self._is_on = True
        try:
            work()
        finally:
            self._is_on = False
        entered = set(self._entered)
        return {"files": len({file for file, *_ in entered}), "functions": len(entered)}

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        named = not code.co_name.startswith("<")
        if self._is_on and event == "call" and named and code.co_filename.startswith(self._root):
            self._entered.add((code.co_filename, code.co_qualname, code.co_firstlineno))


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
    """Return `bitta run` on two batches of random images, after a first run.

    The first run imports modules, so that the count holds no class definitions.
    """
    import numpy as np  # noqa: PLC0415

    from bitta.cli.main import main as command  # noqa: PLC0415

    folder = Path(tempfile.mkdtemp())
    random = np.random.default_rng(0)
    inputs = random.random((16, 3, 8, 8), dtype=np.float32)
    np.savez(folder / "data.npz", inputs=inputs, labels=random.integers(0, 5, 16))
    experiment = folder / "experiment.toml"
    experiment.write_text(EXPERIMENT.format(path=folder / "data.npz"))

    def run(out: str = "second") -> None:
        with redirect_stdout(sys.stderr):
            if command(["run", str(experiment), "--out", str(folder / out)]):
                raise SystemExit("bitta run failed")

    run("first")
    return run


def requests_to_a_server(tracer: Tracer) -> dict[str, dict[str, int]]:
    """Start a server in this process and count one `/infer` request and one answer."""
    from bitta.cli.main import main as command  # noqa: PLC0415

    folder = tempfile.mkdtemp()
    with redirect_stdout(StringIO()) as printed:
        command(["keys", "create", "--role", "operator", "--name", "count", "--data-dir", folder])
    key = next(word for word in printed.getvalue().split() if len(word) > 30)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    image = {"name": "image", "datatype": "FP32", "shape": [1, 3, 32, 32], "data": [0.5] * 3072}
    counts: dict[str, dict[str, int]] = {}

    def call(path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            url + path,
            data=json.dumps(body).encode() if body else None,
            headers={
                "Authorization": f"Bearer {key}",
                "Content-Type": "application/json",
                "Idempotency-Key": uuid4().hex,
            },
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    def infer() -> str:
        body = {"inputs": [image], "outputs": [{"name": "prediction_id"}]}
        outputs = call("/v2/models/cifar10-resnet8/infer", body)["outputs"]
        return str(outputs[0]["data"][0])

    def answer(prediction: str) -> None:
        call("/v1/feedback", {"prediction_id": prediction, "verdict": "correct"})

    def send_requests() -> None:
        try:
            wait_until_ready(url)
            answer(infer())
            counts["infer"] = tracer.count(infer)
            prediction = infer()
            time.sleep(1)
            counts["answer"] = tracer.count(lambda: answer(prediction))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=send_requests)
    thread.start()
    with redirect_stdout(sys.stderr):
        arguments = ["--model", "embedded:cifar10-resnet8", "--data-dir", folder]
        command(["serve", *arguments, "--port", url.rpartition(":")[2]])
    thread.join()
    return counts


def wait_until_ready(url: str) -> None:
    """Return once the server takes requests."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not become ready within 60 seconds")


if __name__ == "__main__":
    main()
