"""How many questions a batch may raise."""

from dataclasses import dataclass

from bitta.config import require, whole


@dataclass(frozen=True, kw_only=True)
class Budget:
    """k questions on every n-th batch, up to a total."""

    n_queries: int
    every: int = 1
    total: int | None = None

    def __post_init__(self) -> None:
        for name in ("n_queries", "every"):
            whole(name, getattr(self, name))
        if self.total is not None:
            whole("total", self.total)
        require(self.n_queries >= 0, "n_queries", self.n_queries, "0 or more")
        require(self.every >= 1, "every", self.every, "1 or more")
        require(self.total is None or self.total >= 0, "total", self.total, "0 or more, or None")

    def allowance(self, *, step: int, asked: int) -> int:
        """Questions allowed on this batch, given how many were asked before it."""
        if step % self.every:
            return 0
        return self.n_queries if self.total is None else min(self.n_queries, self.total - asked)
