"""How many questions a batch may raise."""

from dataclasses import dataclass
from math import floor, isfinite
from numbers import Real

from bitta.config import require, whole

_TINY = 1e-9


@dataclass(frozen=True, kw_only=True)
class Budget:
    """k questions on every n-th batch, up to a total.

    Where a question costs more than the verdict that k is counted in, its `price` is saved up for
    over the batches: at 3.32 three batches of one may pass without a question.
    """

    n_queries: int
    every: int = 1
    total: int | None = None
    price: float = 1.0
    """Of one question, in verdicts."""
    audits: int = 0
    """How many of a batch's questions are about samples drawn at random."""

    def __post_init__(self) -> None:
        for name in ("n_queries", "every", "total", "audits"):
            if (given := getattr(self, name)) is not None or name != "total":
                # As a plain number, which can be saved, of whatever type it was given.
                object.__setattr__(self, name, whole(name, given))
        require(self.n_queries >= 0, "n_queries", self.n_queries, "0 or more")
        require(0 <= self.audits <= self.n_queries, "audits", self.audits, "0 to n_queries")
        require(self.every >= 1, "every", self.every, "1 or more")
        require(self.total is None or self.total >= 0, "total", self.total, "0 or more, or None")
        require(isinstance(self.price, Real), "price", self.price, "a number above 0")
        require(isfinite(self.price) and self.price > 0, "price", self.price, "a number above 0")
        object.__setattr__(self, "price", float(self.price))

    def allowance(self, *, step: int, asked: int) -> int:
        """Questions allowed on this batch, given how many were asked before it."""
        if step % self.every:
            return 0
        allowed = self.n_queries
        if self.price != 1:
            saved = self.n_queries * (step // self.every + 1) / self.price
            allowed = max(0, floor(saved + _TINY) - asked)
        return allowed if self.total is None else min(allowed, self.total - asked)

    def questions(self, *, steps: int, most: int) -> int:
        """How many are asked in so many batches, none of which has room for more than `most`."""
        asked = 0
        for step in range(steps):
            asked += max(0, min(self.allowance(step=step, asked=asked), most))
        return asked
