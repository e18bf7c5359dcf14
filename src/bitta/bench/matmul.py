"""What the machine itself can do: its rate at one large matrix product."""

import torch

from bitta.metrics import DeviceTimer
from bitta.nn import Execution

_SIDES = {"cuda": 8192, "cpu": 1024}
"""Large enough to keep the device busy, small enough to be measured in a second or two."""
_WARM_UP = 3
_TIMES = 10


def matmul_rate(device: torch.device, execution: Execution) -> float:
    """Operations per second of a square product in the arithmetic of a run; best of several."""
    side = _SIDES[device.type]
    dtype = torch.bfloat16 if execution.precision == "bfloat16" else torch.float32
    chance = torch.Generator(device).manual_seed(0)
    left, right = (
        torch.rand((side, side), generator=chance, device=device).to(dtype) for _ in range(2)
    )
    watch = DeviceTimer(device)
    seconds = []
    with execution.arithmetic(), torch.no_grad():
        for _ in range(_WARM_UP + _TIMES):
            watch.start()
            torch.mm(left, right)
            seconds.append(watch.stop())
    return float(2 * side**3 / min(seconds[_WARM_UP:]))
