"""ColoredMNIST: digits whose colour gives the label away in the source and lies in the target.

After Arjovsky et al., 2019, with the values of the code published with BiTTA: the label is whether
the digit is 5 or more; a noisy label flips it with probability .25; ink is red if the noisy label
is 0, green if it is 1; that colour flips with the chance of the domain. Models train on noisy
labels; accuracy is measured on clean ones.
"""

import torch
from torch import Tensor

from bitta.seeding import generator

CHANCES = {"source_1": 0.2, "source_2": 0.1, "target": 0.9}
_LABEL_NOISE = 0.25


def coloured_digits(
    digits: Tensor, numerals: Tensor, *, colour_flip: float, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Images (n, 3, h, w), clean labels and noisy labels from grey digits (n, h, w)."""
    chance = generator(seed, "colour", str(colour_flip))
    clean = (numerals >= 5).long()
    noisy = clean ^ (torch.rand(len(clean), generator=chance) < _LABEL_NOISE).long()
    colour = noisy ^ (torch.rand(len(clean), generator=chance) < colour_flip).long()
    images = torch.zeros(len(digits), 3, *digits.shape[1:], dtype=torch.uint8)
    images[torch.arange(len(digits)), colour] = digits
    return images, clean, noisy
