"""Time and memory, with the device caught up."""

import resource
import sys
from time import perf_counter

import torch


class Stopwatch:
    """Seconds between `start` and `stop`, both taken when the device has nothing left to do."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = 0.0

    def start(self) -> None:
        """Begin."""
        self._synchronise()
        self._started = perf_counter()

    def stop(self) -> float:
        """Seconds since the start."""
        self._synchronise()
        return perf_counter() - self._started

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def peak_memory(device: torch.device) -> int:
    """Most bytes held at once: tensors on a GPU, the whole process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_memory(device: torch.device) -> None:
    """Forget earlier work, where that is possible: on a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
