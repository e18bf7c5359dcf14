"""Compare the fast path with the eager one on the first batches of CIFAR-10-C, in float32.

    python scripts/check_fast_path.py --device cuda --out reproduction/results/speed/fast-path.json

TF32 is off. CIFAR-10 must be installed ("bitta data get cifar10"). Each method runs with memories
of 8, which are full after a few batches, so that the captured update is used, and with memories of
64, BiTTA's default.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn

from bitta import Session, Simulated
from bitta.bench.streams import StreamConfig, build_stream
from bitta.models import load_model
from bitta.nn import weight_hash
from bitta.results import describe_environment
from bitta.statefile import write_atomically
from bitta.streams import Stream

N_BATCHES = 10


def main() -> None:
    """Compare both paths. Print and write the differences."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="device of both paths (default: cuda)")
    parser.add_argument("--out", required=True, help="result to write, .json")
    parser.add_argument(
        "--weights",
        default="weights/cifar10-resnet18.safetensors",
        help="weights file of the model",
    )
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.backends.cudnn.deterministic = True  # otherwise two runs of the same path differ
    config = StreamConfig(kind="cifar10-c", corruptions="gaussian_noise", n_samples=64 * N_BATCHES)
    stream = build_stream(config, seed=0)
    model, _ = load_model(arguments.weights)
    checks = [
        compare_paths(stream, model.to(device), method, size)
        for method in ("bitta", "tent")
        for size in (8, 64)
    ]
    for check in checks:
        print(json.dumps(check))
    table = {
        "environment": describe_environment(device, weight_hash(model)),
        "stream": stream.protocol,
        "checks": checks,
    }
    write_atomically(Path(arguments.out), (json.dumps(table, indent=1) + "\n").encode())


def compare_paths(stream: Stream, model: nn.Module, method: str, memory: int) -> dict[str, object]:
    """Compare labels and questions of every batch, and the weights at the end."""
    eager = run_path(stream, model, method, memory, eager=True)
    fast = run_path(stream, model, method, memory, eager=False)
    pairs = zip(eager[2].values(), fast[2].values(), strict=True)
    return {
        "method": method,
        "memories": memory,
        "batches": N_BATCHES,
        "labels_equal": eager[0] == fast[0],
        "questions_equal": eager[1] == fast[1],
        "largest_weight_difference": max((a - b).abs().max().item() for a, b in pairs),
        "plain": eager[3],
        "fast": fast[3],
    }


def run_path(stream, model, method, memory, *, eager):
    """Run the stream on one path. Return labels, questions, weights and the name of the path."""
    session = Session(
        model, method, n_queries=3, correct_memory=memory, incorrect_memory=memory, copy=True,
        feedback=Simulated(stream.truth), eager=eager, precision="float32",
    )  # fmt: skip
    labels, asked = [], []
    for batch in stream.batches():
        prediction, *_ = session.step(batch.inputs)
        labels.append(prediction.labels.tolist())
        asked.append([(query.position, query.label) for query in prediction.queries])
    weights = {name: tensor.double().cpu() for name, tensor in session.model.state_dict().items()}
    return labels, asked, weights, str(session.execution)


if __name__ == "__main__":
    main()
