"""Small results for the tests of reports."""

import re

from bitta.metrics import Reliability
from bitta.report.sections import read_sections
from bitta.results import RunResult, StepRecord

DOMAINS = ("fog", "snow")
ENVIRONMENT = {
    "bitta": "0.1.0", "torch": "2.11.0", "python": "3.12.0", "device": "cpu", "threads": 1,
    "source_weights": "a" * 64, "code": "b" * 64, "stream": "c" * 64,
}  # fmt: skip
FEEDBACK = {
    "n_queries": 3, "every": 1, "labels": "verdict", "equal": "count", "flip": 0.0, "error": 0.0,
    "delay": 0, "answer_every": 1,
}  # fmt: skip


def made_run(name, method, right, *, seed=0, domains=DOMAINS, n=10, seconds=0.5, **changed):
    """Make a run with `right` correct samples of `n` per batch, and domains of equal length."""
    per_domain = len(right) // len(domains)
    asked = 0 if method in ("source", "bn_stats") else changed.get("n_queries", 3)
    steps = [
        StepRecord(
            domains[min(index // per_domain, len(domains) - 1)],
            n,
            n_correct,
            asked,
            asked,
            0,
            {},
            seconds,
            **changed.get("step", {}),
        )
        for index, n_correct in enumerate(right)
    ]
    feedback = {key: changed.get(key, value) for key, value in FEEDBACK.items()}
    experiment = {
        "name": name,
        "stream": {"kind": "cifar10-c", "order": "continual", "path": ""},
        "model": {"weights": "embedded:cifar10-resnet8", "factory": "", "logits": ""},
        "feedback": feedback,
        "seed": seed,
        "method": {"name": method, **changed.get("settings", {})},
    }
    return RunResult(
        experiment, f"{n * len(right)} samples, seed {seed}", ENVIRONMENT, steps,
        changed.get("reliability", Reliability()), 10, 10, 1_000_000, "d" * 64,
        extra=changed.get("extra", {}),
        policy_reliability=changed.get("policy_reliability", Reliability()),
    )  # fmt: skip


def made_sections(folder, runs):
    """Save the runs and read them as sections."""
    for index, run in enumerate(runs):
        run.save(folder / f"{index:03}.json")
    return read_sections([folder])


def made_section(folder, runs):
    """Save runs of one protocol and read them as one section."""
    [section] = made_sections(folder, runs)
    return section


def numbers_in(text):
    """Return all numbers of a text, with their signs."""
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", text)]
