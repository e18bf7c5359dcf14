"""Weather: what stands between the camera and the scene."""

import torch
from torch import Tensor

_FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))


def fog(x: Tensor, severity: int, chance: torch.Generator) -> Tensor:
    """Add a plasma cloud, then scale back so that the brightest value stays."""
    amount, decay = _FOG[severity - 1]
    brightest = x.amax((1, 2, 3), keepdim=True)
    cloud = _plasma(len(x), x.shape[-1], decay, chance, x.device)
    return (x + amount * cloud.unsqueeze(1)) * brightest / (brightest + amount)


def _plasma(
    n_maps: int, side: int, decay: float, chance: torch.Generator, device: torch.device
) -> Tensor:
    """Diamond-square on a torus, (n_maps, side, side) in [0, 1]; side is a power of two."""
    plane = torch.zeros(n_maps, side, side, device=device)
    wibble, step = 100.0, side
    while step >= 2:
        half = step // 2
        corners = plane[:, ::step, ::step]
        shape = corners.shape

        def wobble(shape: torch.Size = shape, reach: float = wibble**2) -> Tensor:
            return (torch.rand(shape, generator=chance, device=device) * 2 - 1) * reach

        right, below = corners.roll(-1, 2), corners.roll(-1, 1)
        centres = (corners + right + below + right.roll(-1, 1)) / 4 + wobble()
        plane[:, half::step, half::step] = centres
        plane[:, ::step, half::step] = (
            corners + right + centres + centres.roll(1, 1)
        ) / 4 + wobble()
        plane[:, half::step, ::step] = (
            corners + below + centres + centres.roll(1, 2)
        ) / 4 + wobble()
        wibble, step = wibble / decay, half
    plane -= plane.amin((1, 2), keepdim=True)
    return plane / plane.amax((1, 2), keepdim=True)
