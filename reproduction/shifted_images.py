"""Streams of the generalisation suite: small data sets under simple shifts.

An experiment names them with kind = "factory":

    factory = "reproduction.shifted_images:digits"
    domains = "rotation"

Digits and CIFAR-10 come from the packs in the package. Clothes (Fashion-MNIST) are used for
development only and come from "bitta data get fashion-mnist".
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bitta.seeding import generator
from bitta.streams import Domain, Images, data_set_folder, embedded_pack, hash_parts, read_mnist

ROTATION = 45.0
"""Angle in degrees."""
NOISE = {1: 0.4, 3: 0.12}
"""Standard deviation of the noise by the number of channels, for pixels in 0 to 1."""

Shift = Callable[[Tensor], Tensor]
"""Returns shifted images. Images are floats in 0 to 1, (n, channels, height, width)."""


def add_noise(images: Tensor) -> Tensor:
    """Add Gaussian noise to every value. It is the same in every run."""
    noise = torch.randn(images.shape, generator=generator(0, "noise"))
    return images + NOISE[images.shape[1]] * noise


def rotate(images: Tensor) -> Tensor:
    """Rotate by 45 degrees. The corners are filled with the nearest pixels of the edge."""
    angle = torch.deg2rad(torch.tensor(ROTATION))
    cos, sin = angle.cos().item(), angle.sin().item()
    maps = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(images), 2, 3)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def invert(images: Tensor) -> Tensor:
    """Exchange dark and bright."""
    return 1 - images


SHIFTS: Mapping[str, Shift] = {
    "clean": lambda images: images,
    "noise": add_noise,
    "rotation": rotate,
    "inversion": invert,
}


class ShiftedImages(Images):
    """Images that are shifted when the first of them is read."""

    def __init__(self, images: Tensor, shift: str) -> None:
        self._images, self._shift = images, shift
        self._shifted: Tensor | None = None

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return shifted uint8 images."""
        if self._shifted is None:
            floats = SHIFTS[self._shift](self._images / 255)
            self._shifted = (255 * floats).round().clamp(0, 255).to(torch.uint8)
        return self._shifted[rows]

    @property
    def fingerprint(self) -> str:
        """Hash of the shifted images."""
        return hash_parts(self[torch.arange(len(self))])


def shifted_domains(images: Tensor, labels: Tensor, classes: tuple[str, ...]) -> list[Domain]:
    """Return a domain for each shift."""
    return [Domain(name, ShiftedImages(images, name), labels, classes) for name in SHIFTS]


def _from_pack(name: str) -> list[Domain]:
    pack = embedded_pack(name)
    images = pack.images if pack.images.dim() == 4 else pack.images[:, None]
    return shifted_domains(images, pack.labels, pack.classes)


digits = partial(_from_pack, "digits")
cifar10 = partial(_from_pack, "cifar10")


def clothes() -> list[Domain]:
    """Return the 10,000 test images of Fashion-MNIST under each shift."""
    images, labels = read_mnist(data_set_folder("fashion-mnist"), train=False)
    return shifted_domains(images[:, None], labels, tuple("0123456789"))
