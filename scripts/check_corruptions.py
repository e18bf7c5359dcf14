"""Check the corruption generator by the accuracy of a known model at severity 5.

python scripts/check_corruptions.py --cifar FOLDER --weights CHECKPOINT --out FILE.json

The model is the CIFAR ResNet-18 whose accuracies with the upstream generator are in `UPSTREAM`. The
exit code is 1 if one of the fifteen accuracies differs by more than 2 points, or by more than 3 for
a corruption in `WITH_OTHER_LIBRARIES`.
"""

import argparse
import json
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import torch

from bitta.corruptions import CORRUPTIONS, corrupt
from bitta.models import import_checkpoint
from bitta.results import describe_environment
from bitta.statefile import write_atomically
from bitta.streams import CIFAR10_CLASSES, read_cifar10

UPSTREAM = {
    "gaussian_noise": 29.7, "shot_noise": 36.9, "impulse_noise": 23.9, "defocus_blur": 53.0,
    "glass_blur": 47.6, "motion_blur": 62.6, "zoom_blur": 59.6, "snow": 75.0, "frost": 60.7,
    "fog": 68.0, "brightness": 89.8, "contrast": 29.2, "elastic_transform": 75.3,
    "pixelate": 45.5, "jpeg_compression": 75.4,
}  # fmt: skip
WITH_OTHER_LIBRARIES = {"glass_blur", "motion_blur", "snow"}
"""Corruptions whose upstream code uses other libraries. They may differ by 3 points."""


def main() -> None:
    """Measure the accuracy on each corruption and compare it with the upstream one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar", required=True, help="folder of CIFAR-10")
    parser.add_argument("--weights", required=True, help="the checkpoint, .safetensors")
    parser.add_argument("--out", required=True, help="result to write, .json")
    parser.add_argument("--device", default="cpu", help="for the model; corruptions run on the CPU")
    arguments = parser.parse_args()
    test = read_cifar10(arguments.cifar, train=False)
    images = test.images[torch.arange(len(test.labels))]
    model = import_checkpoint(
        arguments.weights, "resnet18", classes=CIFAR10_CLASSES,
        mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616),
    ).model.to(arguments.device).eval()  # fmt: skip
    rows = {}
    for name in CORRUPTIONS:
        started = perf_counter()
        corrupted = corrupt(images, name)
        seconds = perf_counter() - started
        rows[name] = {
            "accuracy": accuracy(model, corrupted, test.labels, arguments.device),
            "upstream": UPSTREAM[name],
            "seconds": round(seconds, 2),
            "sha256": sha256(corrupted.numpy().tobytes()).hexdigest(),
        }
        print(
            f"{name:<18} {rows[name]['accuracy']:6.2f}  upstream {UPSTREAM[name]:5.1f}", flush=True
        )
    result = {
        "clean": accuracy(model, images, test.labels, arguments.device),
        "mean": round(sum(row["accuracy"] for row in rows.values()) / len(rows), 2),
        "mean_upstream": round(sum(UPSTREAM.values()) / len(UPSTREAM), 2),
        "worst": max(abs(row["accuracy"] - row["upstream"]) for row in rows.values()),
        "corruptions": rows,
        "environment": describe_environment(torch.device(arguments.device), ""),
    }
    write_atomically(Path(arguments.out), (json.dumps(result, indent=1) + "\n").encode())
    print(f"mean {result['mean']}, upstream {result['mean_upstream']}; clean {result['clean']}")
    differing = [
        name
        for name, row in rows.items()
        if abs(row["accuracy"] - row["upstream"]) > (3 if name in WITH_OTHER_LIBRARIES else 2)
    ]
    raise SystemExit(f"too far from upstream: {', '.join(differing)}" if differing else 0)


@torch.no_grad()
def accuracy(
    model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, device: str
) -> float:
    """Return the percentage of correct labels."""
    n_correct = sum(
        int((model(part.to(device).float() / 255).argmax(-1).cpu() == truth).sum())
        for part, truth in zip(images.split(500), labels.split(500), strict=True)
    )
    return round(100 * n_correct / len(labels), 2)


if __name__ == "__main__":
    main()
