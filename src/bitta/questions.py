"""Which of what was served to ask about: the most doubtful, and some at random."""

from functools import partial
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitta.adapter import Adapter
from bitta.seeding import generator
from bitta.selection import Budget, Candidates, selector_named
from bitta.types import Prediction, Query


class Chosen(NamedTuple):
    """Questions, most doubtful first, then audits."""

    queries: tuple[Query, ...] = ()
    policy: Tensor | None = None  # (batch, classes)
    """π, where the choice needed it."""


class Questioner:
    """Chooses questions for a session, as far as its budget allows."""

    def __init__(self, adapter: Adapter[Any], budget: Budget) -> None:
        self._adapter, self._budget = adapter, budget
        self._select = selector_named(adapter.config.selection)

    def choose(
        self, inputs: Tensor, judged: Prediction, *, step: int, asked: int, seen: int
    ) -> Chosen:
        """Ask about some of a batch, the last of `seen` samples; `asked` were asked before."""
        allowed = min(self._budget.allowance(step=step, asked=asked), len(inputs))
        if allowed <= 0:
            return Chosen()
        n_audits = min(self._budget.audits, allowed)
        n_doubtful = allowed - n_audits
        doubts, policy = self._doubts(inputs, judged, n_doubtful, step=step)
        # Stable, so that equals go by place on every device.
        rows = doubts.sort(descending=True, stable=True).indices
        rows = rows if n_audits else rows[:n_doubtful]
        # One transfer for all that the questions need to know.
        known = torch.stack([rows.double(), judged.labels[rows].double(), doubts[rows].double()])
        ordered = [(int(row), int(label), doubt) for row, label, doubt in known.T.tolist()]
        # Of all, and before the doubtful: what is left when those are taken is easier than usual.
        chance = generator(self._adapter.seed, "audit", step)
        drawn = torch.randperm(len(ordered), generator=chance)[:n_audits].tolist()
        audited = [ordered[place] for place in drawn]
        others = [one for place, one in enumerate(ordered) if place not in drawn]
        doubtful = [one for one in others[:n_doubtful] if one[2] > -inf]
        queries = tuple(
            Query(
                id=asked + place,
                index=row,
                label=label,
                uncertainty=doubt if doubt > -inf else 0.0,
                input=inputs[row].detach().clone(),
                step=step,
                version=self._adapter.step,
                position=seen - len(inputs) + row,
                audit=place >= len(doubtful),
            )
            for place, (row, label, doubt) in enumerate(doubtful + audited)
        )
        return Chosen(queries, policy)

    def _doubts(
        self, inputs: Tensor, judged: Prediction, n_queries: int, *, step: int
    ) -> tuple[Tensor, Tensor | None]:
        """How doubtful each row is, (batch,), and π if that took it."""
        if n_queries <= 0:
            return torch.zeros(len(inputs), device=inputs.device), None
        wishes = self._adapter.wishes(inputs, n_queries)
        if wishes is not None:
            return wishes, None
        seen: list[Tensor] = []

        def policy() -> Tensor:
            seen.append(self._adapter.policy(inputs))
            return seen[-1]

        key = (self._adapter.seed, "selection", step)
        logits = partial(self._adapter.logits, inputs)
        doubts = self._select(Candidates(judged, policy, logits, key))
        return doubts, seen[-1] if seen else None
