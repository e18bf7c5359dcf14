"""How many operations a batch takes, whatever path carries them out."""

from collections.abc import Callable
from dataclasses import replace

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bitta.metrics import SpeedCase

_FEW = 4


def flops_per_batch(case: SpeedCase, step: Callable[[SpeedCase], Callable[[], object]]) -> int:
    """Operations of convolutions and matrix products in one batch.

    `step` makes a case ready on the plain path, memories full, and returns what runs a batch. Cost
    is the same for every image, so it grows evenly with the batch and with the memories; how fast
    is seen on small cases that ask as many questions, which fit where the case itself may not.
    """
    batch = min(case.batch, max(_FEW, case.n_queries))
    small = replace(case, batch=batch, memory=_FEW)
    count = _counted_flops(step(small))
    per_image = _counted_flops(step(replace(small, batch=batch + 1))) - count
    per_place = (_counted_flops(step(replace(small, memory=2 * _FEW))) - count) / _FEW
    more_images, more_places = case.batch - batch, case.memory - _FEW
    return round(count + per_image * more_images + per_place * more_places)


def _counted_flops(step: Callable[[], object]) -> int:
    # Attention written as products: the fused kernels of a CPU are unknown to the counter.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())
