"""What of SimATTA's anchors is drawn, how much it counts, and when training stops to gain."""

import torch
from torch import Tensor

_SHARE = 0.2  # of the loss, until there are enough source-like samples
_WINDOW = 6  # steps, the last of which is not looked at
_PATIENCE = 6  # windows


def anchor_share(n_anchors: int, n_source_like: int, *, cold_start: int) -> float:
    """a = |A| / (|A| + |S|), at most a fifth while S is small; all of it where S is empty."""
    if not n_source_like:
        return 1.0
    share = n_anchors / (n_anchors + n_source_like)
    return min(_SHARE, share) if n_source_like < cold_start else share


def row_weights(n_right: int, n_wrong: int, n_like: int, *, share: float) -> Tensor:
    """(3, rows): what [correct; incorrect; source-like] rows count in a, a, 1 - a times a mean."""
    parts = ((n_right, share), (n_wrong, share), (n_like, 1 - share))
    blocks = [torch.full((1, n), part) / max(1, n) for n, part in parts]
    weights: Tensor = torch.block_diag(*blocks)
    return weights


def drawn_rows(n: int, most: int, random_key: torch.Generator) -> Tensor:
    """At most so many of n rows, none of them twice, in ascending order."""
    return torch.randperm(n, generator=random_key)[:most].sort().values


class Patience:
    """Ends when the mean loss over a window of steps fails to fall six times in a row."""

    def __init__(self) -> None:
        self._window: list[Tensor] = []
        self._best = float("inf")
        self._failed = 0

    def ends(self, loss: Tensor) -> bool:
        """Whether to stop after a step with this loss."""
        self._window.append(loss)
        if len(self._window) < _WINDOW:
            return False
        mean = float(sum(self._window[:-1])) / (_WINDOW - 1)
        self._window = []
        self._failed = 0 if mean < self._best else self._failed + 1
        self._best = min(self._best, mean)
        return self._failed >= _PATIENCE
