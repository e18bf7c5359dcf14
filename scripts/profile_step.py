"""Measure the time of a BiTTA batch by kind of GPU kernel or CPU operator.

    python scripts/profile_step.py --device cuda --out reproduction/results/speed/profile.json

A ResNet-18 for small images learns from batches of 64 random images, with full memories, 4 dropout
passes and 3 updates per batch.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from time import perf_counter

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from bitta.bench.models import device_named
from bitta.bench.speed import random_batches, session_with_full_memories, speed_cases
from bitta.results import describe_environment

N_STEPS = 5
KINDS = {
    "convolutions": (
        "xmma",
        "cutlass",
        "convolve",
        "conv",
        "nhwc",
        "nchw",
        "cask",
        "wgrad",
        "dgrad",
    ),
    "normalisation": ("moments", "normalise", "add_slices", "batch_norm", "batchnorm", "bn_"),
    "dropout": ("drop", "distribution", "random"),
    "optimiser": ("multi_tensor", "foreach", "_fused"),
    "copies and fills": ("copy", "Memcpy", "Memset", "Fill", "fill", "Cat", "cat"),
}
REST = "other element-wise work"


def main() -> None:
    """Profile a few steps. Print and write the time of each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cpu or cuda (default: cuda)")
    parser.add_argument("--model", default="resnet18", help="architecture (default: resnet18)")
    parser.add_argument(
        "--precision", default="auto", help="precision of the session (default: auto)"
    )
    parser.add_argument("--out", type=Path, help="result to write, .json")
    arguments = parser.parse_args()
    device = device_named(arguments.device)
    (case,) = speed_cases(["headline"], changes={"model": arguments.model})
    session = session_with_full_memories(case, device, precision=arguments.precision)
    inputs = random_batches(case, device)
    for index in range(6):
        session.step(inputs[index % 2])
    is_cuda = device.type == "cuda"
    started = perf_counter()
    with profile(
        activities=[ProfilerActivity.CUDA if is_cuda else ProfilerActivity.CPU]
    ) as profiled:
        for index in range(N_STEPS):
            session.step(inputs[index % 2])
        if is_cuda:
            torch.cuda.synchronize(device)
    wall = perf_counter() - started
    by_kind = milliseconds(profiled.events(), cuda=is_cuda)
    for kind, ms in by_kind.items():
        print(f"{kind:<26} {ms:6.2f} ms a batch")
    table = {
        "environment": describe_environment(device, ""),
        "execution": str(session.execution),
        "milliseconds_by_kind": by_kind,
        "milliseconds_in_all": sum(by_kind.values()),
        "wall_milliseconds_under_the_profiler": 1000 * wall / N_STEPS,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(table, indent=1) + "\n")


def milliseconds(events, *, cuda):
    """Return the time per batch of each kind of kernel or operator, largest first."""
    total = Counter()
    for event in events:
        if cuda == (event.device_type == DeviceType.CUDA):
            microseconds = event.device_time_total if cuda else event.self_cpu_time_total
            total[kind_of(event.name)] += microseconds / 1000 / N_STEPS
    return {kind: round(ms, 3) for kind, ms in total.most_common()}


def kind_of(name: str) -> str:
    """Return the kind of a kernel by its name."""
    return next((kind for kind, marks in KINDS.items() if any(m in name for m in marks)), REST)


if __name__ == "__main__":
    main()
