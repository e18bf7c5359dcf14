"""What following a stream cost on the data the model came from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Accuracy in percent on the clean counterpart of a stream."""

    n_samples: int
    before: float
    """Of the source model."""
    after: float
    """Of what is served once the stream is over."""

    @property
    def drop(self) -> float:
        """Points that were lost; below 0 where some were gained."""
        return self.before - self.after
