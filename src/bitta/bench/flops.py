"""How many operations a batch takes, whatever path carries them out."""

from collections.abc import Callable
from dataclasses import replace

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bitta.metrics import Case

_FEW = 4


def flops_per_batch(case: Case, step: Callable[[Case], Callable[[], object]]) -> int:
    """Operations of convolutions and matrix products in one batch.

    `step` makes a case ready on the plain path, memories full, and returns what runs a batch. Cost
    is the same for every image, so it is a·batch + b·mixed; a and b come from two small cases,
    which fit where the case itself may not.
    """
    small = replace(case, batch=_FEW, memory=_FEW)
    larger = replace(small, memory=2 * _FEW)
    count, larger_count = _counted(step(small)), _counted(step(larger))
    rows = larger.mixed - small.mixed
    per_mixed = (larger_count - count) / rows if rows else 0.0
    per_served = (count - per_mixed * small.mixed) / small.batch
    return round(per_served * case.batch + per_mixed * case.mixed)


def _counted(step: Callable[[], object]) -> int:
    # Attention written as products: the fused kernels of a CPU are unknown to the counter.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())
