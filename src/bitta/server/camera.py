"""A camera for the demonstration: pictures from the package, whose quality drifts."""

from collections.abc import Callable
from threading import Event, Thread

import numpy as np
import torch

from bitta.corruptions import corrupt
from bitta.seeding import derive, generator
from bitta.streams import embedded_pack

WEATHER = ("brightness", "contrast", "gaussian_noise", "pixelate", "defocus_blur", "fog")
_SPELL = 640  # pictures before the weather changes
_SEVERITY = 4


class Camera(Thread):
    """Sends a picture every so often until it is stopped."""

    def __init__(
        self,
        send: Callable[["np.ndarray[tuple[int, ...], np.dtype[np.float32]]", int], None],
        *,
        per_second: float,
        seed: int = 0,
    ) -> None:
        super().__init__(name="bitta-camera", daemon=True)
        self._send, self._pause, self._seed = send, 1 / per_second, seed
        self._pack = embedded_pack("cifar10")
        self._stopped = Event()
        self.n_sent = 0

    @property
    def weather(self) -> str:
        """What spoils the pictures now."""
        return WEATHER[self.n_sent // _SPELL % len(WEATHER)]

    def run(self) -> None:
        """Picture by picture."""
        n = len(self._pack.images)
        order = torch.randperm(n, generator=generator(self._seed, "camera"))
        while not self._stopped.wait(self._pause):
            row = int(order[self.n_sent % n])
            image = self._pack.images[row : row + 1]
            spoiled = corrupt(
                image, self.weather, severity=_SEVERITY,
                seed=derive(self._seed, "camera", self.n_sent) % 2**31,
            )  # fmt: skip
            self._send((spoiled.float() / 255).numpy(), int(self._pack.labels[row]))
            self.n_sent += 1

    def stop(self) -> None:
        """Send no more."""
        self._stopped.set()
        self.join()
