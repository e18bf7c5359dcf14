"""Time a BiTTA batch with one part of the fast path changed at a time.

    python scripts/vary_speed.py --device cuda --out reproduction/results/speed/parts.json

A ResNet-18 for small images learns from batches of 64 random images, with full memories, 4 dropout
passes and 3 updates per batch. One process times all variants.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from bitta.bench.models import device_named
from bitta.bench.speed import random_batches, session_with_full_memories, speed_cases
from bitta.metrics import DeviceTimer, peak_memory, reset_peak_memory
from bitta.results import describe_environment
from bitta.session import Session
from bitta.speed_records import SpeedCase

N_WARM_UP, N_TIMED = 6, 20


def main() -> None:
    """Time every variant. Print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cpu or cuda (default: cuda)")
    parser.add_argument("--model", default="resnet18", help="architecture (default: resnet18)")
    parser.add_argument("--out", type=Path, help="result to write, .json")
    arguments = parser.parse_args()
    device = device_named(arguments.device)
    (case,) = speed_cases(["headline"], changes={"model": arguments.model})
    measured = {}
    for name, (settings, change) in VARIANTS.items():
        measured[name] = time_variant(case, device, settings, change)
        print(
            f"{name:<28} {measured[name]['ms']:7.1f} ms {measured[name]['peak_mb']:7.0f} MB",
            flush=True,
        )
    table = {"environment": describe_environment(device, ""), "measured": measured}
    if arguments.out:
        arguments.out.write_text(json.dumps(table, indent=1) + "\n")


def time_variant(case: SpeedCase, device: torch.device, settings: dict, change: Callable) -> dict:
    """Return the median milliseconds of a batch, and the peak memory from the first batch on."""
    reset_peak_memory(device)
    with session_with_full_memories(case, device, **settings) as session:
        change(session)
        inputs = random_batches(case, device)
        timer, ms = DeviceTimer(device), []
        for index in range(N_WARM_UP + N_TIMED):
            timer.start()
            session.step(inputs[index % 2])
            ms.append(1000 * timer.stop())
        torch.backends.cudnn.benchmark = False
        peak = peak_memory(device)
    return {
        "ms": median(ms[N_WARM_UP:]),
        "peak_mb": peak / 1e6,
        "execution": str(session.execution),
    }


def unchanged(_: Session) -> None:
    """Keep the default path."""


def without_graphs(session: Session) -> None:
    """Launch every kernel from Python."""
    session.adapter.wrapped.graphs.enabled = False


def without_kernels(session: Session) -> None:
    """Do normalisation and dropout pass by pass, with PyTorch's kernels."""
    wrapped = session.adapter.wrapped
    wrapped.execution = replace(wrapped.execution, kernels=False)


def without_fused_optimiser(session: Session) -> None:
    """Update parameters group by group."""
    wrapped = session.adapter.wrapped
    wrapped.execution = replace(wrapped.execution, fused=False)
    session.adapter.optimiser = session.adapter.make_optimiser()


def with_autotuning(_: Session) -> None:
    """Let cuDNN try its algorithms on every new shape."""
    torch.backends.cudnn.benchmark = True


VARIANTS = {
    "as it is": ({}, unchanged),
    "without graphs": ({}, without_graphs),
    "without our kernels": ({}, without_kernels),
    "without a fused optimiser": ({}, without_fused_optimiser),
    "with cuDNN autotuning": ({}, with_autotuning),
    "in TF32": ({"precision": "tf32"}, unchanged),
    "eager, TF32": ({"eager": True, "precision": "tf32"}, unchanged),
    "eager, bfloat16": ({"eager": True, "precision": "bfloat16"}, unchanged),
}


if __name__ == "__main__":
    main()
