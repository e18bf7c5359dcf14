"""The device a user asks for."""

import torch

from bitta.errors import SettingError


def device_named(name: str) -> torch.device:
    """A device that is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingError(f"device is {name!r}; allowed: cpu, cuda, cuda:1 ...") from None
    if device.type not in ("cpu", "cuda"):
        raise SettingError(f"device is {name!r}; allowed: cpu, cuda, cuda:1 ...")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingError(
            f"device is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices; use cpu."
        )
    return device
