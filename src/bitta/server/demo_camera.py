"""Camera of the demonstration: sends images whose appearance changes over time."""

from collections.abc import Callable, Mapping
from threading import Event, Thread
from time import monotonic
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from bitta.corruptions import corrupt
from bitta.seeding import derive_seed, generator
from bitta.streams import COLOUR_FLIPS, coloured_digits, embedded_pack

ImageArray: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"
"""(3, height, width), 0 to 1."""
_MAX_DELAY_SECONDS = 2.0
"""Longest delay that the camera makes up for by sending faster. The rest of a delay is ignored."""


class Scene(Protocol):
    """Endless sequence of labelled images. An image depends only on the seed and its index."""

    def __init__(self, *, seed: int = 0) -> None: ...

    def condition(self, index: int) -> str:
        """Return the name of the condition under which an image is taken."""

    def image(self, index: int) -> tuple[ImageArray, int]:
        """Return an image and its class."""


class ColouredDigits:
    """Digits whose colour predicts the class at first, and later the opposite class."""

    N_ORIGINAL = 768
    """Number of images whose colour predicts the class, before the colours are reversed."""

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._pack = embedded_pack("digits")
        self._order = _ShuffledRows(len(self._pack.labels), seed)

    def condition(self, index: int) -> str:
        """Return the name of the condition."""
        return "original colours" if index < self.N_ORIGINAL else "swapped colours"

    def image(self, index: int) -> tuple[ImageArray, int]:
        """Return a digit. All digits appear once before one is repeated."""
        row = self._order[index]
        images, clean, _ = coloured_digits(
            self._pack.images[row : row + 1],
            self._pack.labels[row : row + 1],
            colour_flip=COLOUR_FLIPS["source_2" if index < self.N_ORIGINAL else "target"],
            seed=derive_seed(self._seed, "camera", index),
        )
        return _to_floats(images[0]), int(clean)


class ChangingWeather:
    """CIFAR-10 under changing corruptions, clean at first."""

    CONDITIONS = ("clear", "brightness", "contrast", "gaussian_noise", "pixelate", "defocus_blur",
                  "fog")  # fmt: skip
    """Repeated in this order. The first leaves images unchanged."""
    IMAGES_PER_CONDITION = 768
    SEVERITY = 4

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._pack = embedded_pack("cifar10")
        self._order = _ShuffledRows(len(self._pack.labels), seed)

    def condition(self, index: int) -> str:
        """Return the name of the corruption."""
        return self.CONDITIONS[index // self.IMAGES_PER_CONDITION % len(self.CONDITIONS)]

    def image(self, index: int) -> tuple[ImageArray, int]:
        """Return an image. All images appear once before one is repeated."""
        row = self._order[index]
        images = self._pack.images[row : row + 1]
        if self.condition(index) != self.CONDITIONS[0]:
            images = corrupt(
                images, self.condition(index), severity=self.SEVERITY,
                seed=derive_seed(self._seed, "camera", index) % 2**31,
            )  # fmt: skip
        return _to_floats(images[0]), int(self._pack.labels[row])


SCENES: Mapping[str, type[Scene]] = {"digits": ColouredDigits, "corruptions": ChangingWeather}


class Camera(Thread):
    """Thread that sends images at a fixed rate until it is stopped."""

    def __init__(
        self,
        scene: Scene,
        send: Callable[[ImageArray, int], None],
        *,
        per_second: float,
        first: int = 0,
    ) -> None:
        super().__init__(name="bitta-camera", daemon=True)
        self._scene, self._send, self._interval = scene, send, 1 / per_second
        self._index = first
        self._stopped = Event()

    def run(self) -> None:
        """Send images at the fixed rate. After a slow response, catch up by at most 2 seconds."""
        due = monotonic()
        while not self._stopped.wait(max(0.0, due - monotonic())):
            due = max(due + self._interval, monotonic() - _MAX_DELAY_SECONDS)
            self._send(*self._scene.image(self._index))
            self._index += 1

    def stop(self) -> None:
        """Stop sending, and wait for the thread."""
        self._stopped.set()
        self.join()


class _ShuffledRows:
    """Endless sequence of rows. Every epoch visits all rows in a new random order."""

    def __init__(self, n: int, seed: int) -> None:
        self._n, self._seed = n, seed
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.long)

    def __getitem__(self, index: int) -> int:
        epoch, offset = divmod(index, self._n)
        if epoch != self._epoch:
            random = generator(self._seed, "camera", "turn", epoch)
            self._epoch, self._order = epoch, torch.randperm(self._n, generator=random)
        return int(self._order[offset])


def _to_floats(image: torch.Tensor) -> ImageArray:
    floats: ImageArray = (image.float() / 255).numpy()
    return floats
