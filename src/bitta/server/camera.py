"""A camera for the demonstration: pictures from the package, clean at first, then they change."""

from collections.abc import Callable, Mapping
from threading import Event, Thread
from time import monotonic
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from bitta.corruptions import corrupt
from bitta.seeding import derive_seed, generator
from bitta.streams import CHANCES, coloured_digits, embedded_pack

Picture: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"
"""(3, height, width), 0 to 1."""
_BEHIND = 2.0  # seconds


class Scene(Protocol):
    """What a camera sees; a picture depends on the seed and its place alone."""

    def __init__(self, *, seed: int = 0) -> None: ...

    def spell(self, place: int) -> str:
        """What the pictures around this place have in common."""

    def picture(self, place: int) -> tuple[Picture, int]:
        """The picture at a place, from 0 on, and its class."""


class ColouredDigits:
    """Digits whose colour tells the class as in training, and after a while the opposite."""

    FAITHFUL = 768
    """Pictures before the colour begins to lie."""

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._pack = embedded_pack("digits")
        self._rows = _Rows(len(self._pack.labels), seed)

    def spell(self, place: int) -> str:
        """Whether the colour can be believed."""
        return "faithful colours" if place < self.FAITHFUL else "lying colours"

    def picture(self, place: int) -> tuple[Picture, int]:
        """One digit; all of them come once before one comes again."""
        row = self._rows.at(place)
        images, clean, _ = coloured_digits(
            self._pack.images[row : row + 1],
            self._pack.labels[row : row + 1],
            colour_flip=CHANCES["source_2" if place < self.FAITHFUL else "target"],
            seed=derive_seed(self._seed, "camera", place),
        )
        return _floats(images[0]), int(clean)


class Weather:
    """CIFAR-10 in changing weather, beginning with none."""

    SPELLS = ("clear", "brightness", "contrast", "gaussian_noise", "pixelate", "defocus_blur",
              "fog")  # fmt: skip
    """Over and over; the first leaves pictures as they are."""
    LENGTH = 768
    """Pictures of a spell."""
    SEVERITY = 4

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed
        self._pack = embedded_pack("cifar10")
        self._rows = _Rows(len(self._pack.labels), seed)

    def spell(self, place: int) -> str:
        """What spoils the pictures."""
        return self.SPELLS[place // self.LENGTH % len(self.SPELLS)]

    def picture(self, place: int) -> tuple[Picture, int]:
        """One image; all of them come once before one comes again."""
        row = self._rows.at(place)
        images = self._pack.images[row : row + 1]
        if self.spell(place) != self.SPELLS[0]:
            images = corrupt(
                images, self.spell(place), severity=self.SEVERITY,
                seed=derive_seed(self._seed, "camera", place) % 2**31,
            )  # fmt: skip
        return _floats(images[0]), int(self._pack.labels[row])


SCENES: Mapping[str, type[Scene]] = {"digits": ColouredDigits, "corruptions": Weather}


class Camera(Thread):
    """Sends a picture every so often until it is stopped."""

    def __init__(
        self,
        scene: Scene,
        send: Callable[[Picture, int], None],
        *,
        per_second: float,
        first: int = 0,
    ) -> None:
        super().__init__(name="bitta-camera", daemon=True)
        self._scene, self._send, self._pause = scene, send, 1 / per_second
        self._place = first
        self._stopped = Event()

    def run(self) -> None:
        """Picture by picture, by the clock; what a slow server has missed by far is not made up."""
        due = monotonic()
        while not self._stopped.wait(max(0.0, due - monotonic())):
            due = max(due + self._pause, monotonic() - _BEHIND)
            self._send(*self._scene.picture(self._place))
            self._place += 1

    def stop(self) -> None:
        """Send no more."""
        self._stopped.set()
        self.join()


class _Rows:
    """All rows in an order drawn by chance, then all in another, and so on."""

    def __init__(self, n: int, seed: int) -> None:
        self._n, self._seed = n, seed
        self._turn, self._order = -1, torch.empty(0, dtype=torch.long)

    def at(self, place: int) -> int:
        turn, at = divmod(place, self._n)
        if turn != self._turn:
            chance = generator(self._seed, "camera", "turn", turn)
            self._turn, self._order = turn, torch.randperm(self._n, generator=chance)
        return int(self._order[at])


def _floats(image: torch.Tensor) -> Picture:
    made: Picture = (image.float() / 255).numpy()
    return made
