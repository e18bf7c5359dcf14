"""What was served lately, for streams that come in smaller pieces than statistics need."""

import torch
from torch import Tensor

from bitta.types import Prediction, State


class Window:
    """The newest `size` samples with what was served for them; full once so many are new."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.fresh = 0
        """Samples added since the window was last taken."""
        self._inputs: Tensor | None = None
        self._probs: Tensor | None = None

    def fills(self, inputs: Tensor) -> bool:
        """Whether these inputs complete the window."""
        return self.fresh + len(inputs) >= self.size

    def around(self, inputs: Tensor) -> Tensor:
        """The window as it will be with these inputs, which come last."""
        earlier = max(self.size, self.fresh + len(inputs)) - len(inputs)
        if self._inputs is None or not earlier:
            return inputs
        return torch.cat([self._inputs[-earlier:], inputs])

    def add(self, inputs: Tensor, served: Prediction) -> None:
        """Let the oldest go."""
        self.fresh += len(inputs)
        keep = max(self.size, self.fresh)
        # A copy: the caller may fill the same memory with the next request.
        pieces = [self._inputs, inputs] if self._inputs is not None else [inputs]
        shares = [self._probs, served.probs] if self._probs is not None else [served.probs]
        self._inputs = torch.cat(pieces)[-keep:]
        self._probs = torch.cat(shares)[-keep:]

    def take(self) -> tuple[Tensor, Prediction]:
        """All of it, to ask about and to learn from; from now on it is old."""
        assert self._inputs is not None
        assert self._probs is not None
        self.fresh = 0
        confidence, labels = self._probs.max(-1)
        return self._inputs, Prediction(labels, self._probs, confidence)

    def clear(self) -> None:
        """Forget everything."""
        self.fresh = 0
        self._inputs = self._probs = None

    def state_dict(self) -> State:
        """Samples, predictions, and how many of them are new."""
        return {"fresh": self.fresh, "inputs": self._inputs, "probs": self._probs}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Go on from a saved state."""
        self.fresh = state["fresh"]
        self._inputs = None if state["inputs"] is None else state["inputs"].to(device)
        self._probs = None if state["probs"] is None else state["probs"].to(device)
