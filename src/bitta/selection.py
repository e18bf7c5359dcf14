"""Choose which predictions to ask about: scores, budget, random audits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import floor, inf, isfinite
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from bitta.config import require, whole
from bitta.errors import unknown
from bitta.methods.base import Adapter
from bitta.seeding import Key, generator
from bitta.types import Prediction, Query


@dataclass(frozen=True, slots=True)
class Candidates:
    """A batch of predictions, any of which could be asked about."""

    prediction: Prediction
    policy: Callable[[], Tensor]
    """Computes π, (batch, classes); costs N passes, so only those who need it call it."""
    logits: Callable[[], Tensor]
    """Computes what was served before it was made into probabilities, (batch, classes)."""
    key: Key
    """Where chance, if any, is drawn from."""


Selector: TypeAlias = Callable[[Candidates], Tensor]
"""Gives each candidate an uncertainty, (batch,); the highest are asked about. Changes nothing."""


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


def entropy(candidates: Candidates) -> Tensor:
    """Highest entropy of the probabilities served."""
    probs = candidates.prediction.probs
    return -torch.xlogy(probs, probs).sum(-1)


def confidence(candidates: Candidates) -> Tensor:
    """Lowest probability of the label served."""
    return 1 - candidates.prediction.confidence


def energy(candidates: Candidates) -> Tensor:
    """Lowest negative energy, log Σ exp(logit): the input is far from what the model knows."""
    return -candidates.logits().logsumexp(-1)


def last(candidates: Candidates) -> Tensor:
    """The last of the batch, as the published code asks for its baselines."""
    labels = candidates.prediction.labels
    return torch.arange(len(labels), device=labels.device, dtype=torch.float32)


def mc_confidence(candidates: Candidates) -> Tensor:
    """1 - π(y*), Eq. 5: y* is the deterministic label, π the MC-dropout mean."""
    labels = candidates.prediction.labels
    confidence = candidates.policy().gather(1, labels.unsqueeze(1)).squeeze(1)
    return 1 - confidence


def random(candidates: Candidates) -> Tensor:
    """Uniform numbers: every prediction is as likely to be asked about."""
    labels = candidates.prediction.labels
    random_key = generator(*candidates.key, device=labels.device)
    return torch.rand(len(labels), generator=random_key, device=labels.device)


SELECTORS: Mapping[str, Selector] = {
    "mc_confidence": mc_confidence,
    "entropy": entropy,
    "confidence": confidence,
    "energy": energy,
    "random": random,
    "last": last,
}


def selector_named(name: str) -> Selector:
    """Look a selector up; an unknown name gets the nearest known one."""
    if name not in SELECTORS:
        raise unknown("selection", name, SELECTORS)
    return SELECTORS[name]


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
        random_key = generator(self._adapter.seed, "audit", step)
        drawn = torch.randperm(len(ordered), generator=random_key)[:n_audits].tolist()
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
        choose_rows = self._adapter.choose_rows(inputs, n_queries)
        if choose_rows is not None:
            return choose_rows, None
        seen: list[Tensor] = []

        def policy() -> Tensor:
            seen.append(self._adapter.policy(inputs))
            return seen[-1]

        key = (self._adapter.seed, "selection", step)
        logits = partial(self._adapter.logits, inputs)
        doubts = self._select(Candidates(judged, policy, logits, key))
        return doubts, seen[-1] if seen else None
