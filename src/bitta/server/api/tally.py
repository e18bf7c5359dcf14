"""What was served over HTTP, as the inference protocol counts it."""

from dataclasses import replace
from time import time

from bitta.server.protocol import ModelStatistics, StatisticDuration


class Tally:
    """What the protocol's statistics tell, since the start."""

    def __init__(self) -> None:
        self.statistics = ModelStatistics()

    def succeeded(self, n_images: int, ns: int) -> None:
        """One request was answered."""
        was = self.statistics
        self.statistics = replace(
            was,
            n_images=was.n_images + n_images,
            n_batches=was.n_batches + 1,
            last_ms=int(time() * 1000),
            success=StatisticDuration(was.success.count + 1, was.success.ns + ns),
        )

    def failed(self, ns: int) -> None:
        """One request was refused."""
        was = self.statistics
        self.statistics = replace(was, fail=StatisticDuration(was.fail.count + 1, was.fail.ns + ns))
