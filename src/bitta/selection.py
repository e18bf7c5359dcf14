"""Choose which predictions to ask about: uncertainty scores, budget, audits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import floor, inf, isfinite
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from bitta.config_base import check_integer, require
from bitta.errors import unknown_name_error
from bitta.methods.base import Adapter
from bitta.seeding import Key, generator
from bitta.types import Prediction, Query, QueryReason


@dataclass(frozen=True, slots=True)
class Candidates:
    """Batch of predictions to choose questions from."""

    prediction: Prediction
    policy: Callable[[], Tensor]
    """Computes π, (batch, classes). It costs N forward passes, so it is called only if needed."""
    logits: Callable[[], Tensor]
    """Computes the logits of the predictions, (batch, classes)."""
    key: Key
    """Key of the random numbers that a score function may draw."""


ScoreFunction: TypeAlias = Callable[[Candidates], Tensor]
"""Returns the uncertainty of each candidate, (batch,). The most uncertain are chosen."""


_ROUNDING_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Ask k questions on every n-th batch, up to a total.

    A verdict costs 1. For full labels, which cost more, set `price` above 1. Then budget that is
    not spent is carried over: with `n_queries` 1 and a price of 3.32, three batches may pass
    without a question.
    """

    n_queries: int
    """Number k of verdicts that can be paid per batch."""
    every: int = 1
    """Ask on every n-th batch only."""
    total: int | None = None
    """Maximum number of questions; None for no limit."""
    price: float = 1.0
    """Cost of one question, in verdicts."""
    audits: int = 0
    """Number of the `n_queries` questions that are about samples drawn at random."""
    paired_audits: int = 0
    """Number of the `n_queries` questions that are about random samples among those whose served
    label differs from the source model's label."""

    def __post_init__(self) -> None:
        for name in ("n_queries", "every", "total", "audits", "paired_audits"):
            if (given := getattr(self, name)) is not None or name != "total":
                # Convert integers of any type (NumPy, torch) to int, which can be saved.
                object.__setattr__(self, name, check_integer(name, given))
        require(self.n_queries >= 0, "n_queries", self.n_queries, "0 or more")
        require(0 <= self.audits <= self.n_queries, "audits", self.audits, "0 to n_queries")
        n_others = self.n_queries - self.audits
        allowed = "0 to n_queries - audits"
        require(0 <= self.paired_audits <= n_others, "paired_audits", self.paired_audits, allowed)
        require(self.every >= 1, "every", self.every, "1 or more")
        require(self.total is None or self.total >= 0, "total", self.total, "0 or more, or None")
        require(isinstance(self.price, Real), "price", self.price, "a number above 0")
        require(isfinite(self.price) and self.price > 0, "price", self.price, "a number above 0")
        object.__setattr__(self, "price", float(self.price))

    def allowance(self, *, step: int, n_asked: int) -> int:
        """Return the number of questions allowed on this batch after `n_asked` earlier ones."""
        if step % self.every:
            return 0
        allowed = self.n_queries
        if self.price != 1:
            affordable = self.n_queries * (step // self.every + 1) / self.price
            allowed = max(0, floor(affordable + _ROUNDING_TOLERANCE) - n_asked)
        return allowed if self.total is None else min(allowed, self.total - n_asked)

    def count_questions(self, *, n_steps: int, max_per_step: int) -> int:
        """Return the number of questions asked in `n_steps` batches."""
        n_asked = 0
        for step in range(n_steps):
            n_asked += max(0, min(self.allowance(step=step, n_asked=n_asked), max_per_step))
        return n_asked


def entropy(candidates: Candidates) -> Tensor:
    """Entropy of the served probabilities."""
    probs = candidates.prediction.probs
    return -torch.xlogy(probs, probs).sum(-1)


def confidence(candidates: Candidates) -> Tensor:
    """One minus the probability of the served label."""
    return 1 - candidates.prediction.confidence


def energy(candidates: Candidates) -> Tensor:
    """Energy, -log Σ exp(logit). It is high for inputs far from the training data."""
    return -candidates.logits().logsumexp(-1)


def last(candidates: Candidates) -> Tensor:
    """Row number: the last rows of the batch score highest.

    The code published with BiTTA selects this way for its baselines.
    """
    labels = candidates.prediction.labels
    return torch.arange(len(labels), device=labels.device, dtype=torch.float32)


def mc_confidence(candidates: Candidates) -> Tensor:
    """1 - π(y*), Eq. 5 of BiTTA: y* is the deterministic label, π the MC-dropout mean."""
    labels = candidates.prediction.labels
    confidence = candidates.policy().gather(1, labels.unsqueeze(1)).squeeze(1)
    return 1 - confidence


def random(candidates: Candidates) -> Tensor:
    """Uniform random numbers: every row is chosen with the same probability."""
    labels = candidates.prediction.labels
    rng = generator(*candidates.key, device=labels.device)
    return torch.rand(len(labels), generator=rng, device=labels.device)


SCORE_FUNCTIONS: Mapping[str, ScoreFunction] = {
    "mc_confidence": mc_confidence,
    "entropy": entropy,
    "confidence": confidence,
    "energy": energy,
    "random": random,
    "last": last,
}
"""Score functions by the name that the setting `selection` takes."""


def get_score_function(name: str) -> ScoreFunction:
    """Return the score function of that name. An error suggests the nearest known name."""
    if name not in SCORE_FUNCTIONS:
        raise unknown_name_error("selection", name, SCORE_FUNCTIONS)
    return SCORE_FUNCTIONS[name]


class ChosenQueries(NamedTuple):
    """Questions about a batch: the most uncertain samples, then paired audits, then audits."""

    queries: tuple[Query, ...] = ()
    policy: Tensor | None = None  # (batch, classes)
    """π, if it was computed for the choice."""
    n_different: int | None = None
    """Number of samples whose served label differs from the source model's label; None if they were
    not compared."""


class _ScoredSample(NamedTuple):
    """Row number of a sample in its batch, its uncertainty, and its labels."""

    row: int
    uncertainty: float
    label: int
    """Served label."""
    source_label: int
    """Label of the source model; the served label if they were not compared."""


class QuerySelector:
    """Choose the questions of a session within its budget."""

    def __init__(self, adapter: Adapter[Any], budget: Budget) -> None:
        self._adapter, self._budget = adapter, budget
        self._score = get_score_function(adapter.config.selection)

    def select(
        self, inputs: Tensor, prediction: Prediction, *, step: int, n_asked: int, n_served: int
    ) -> ChosenQueries:
        """Choose questions about a batch.

        `n_served` counts the samples of the stream up to the end of this batch, `n_asked` the
        earlier questions.
        """
        allowed = min(self._budget.allowance(step=step, n_asked=n_asked), len(inputs))
        if allowed <= 0:
            return ChosenQueries()
        n_audits = min(self._budget.audits, allowed)
        n_paired = min(self._budget.paired_audits, allowed - n_audits)
        n_uncertain = allowed - n_audits
        scores, policy = self._score_rows(inputs, prediction, n_uncertain, step=step)
        # A stable sort orders ties by row on every device.
        order = scores.sort(descending=True, stable=True).indices
        order = order if n_audits + n_paired else order[:n_uncertain]
        source_labels = self._adapter.source_labels(inputs) if n_paired else prediction.labels
        # Fetch all values from the device in one transfer.
        columns = [order, scores[order], prediction.labels[order], source_labels[order]]
        table = torch.stack([column.double() for column in columns])
        samples = [
            _ScoredSample(int(row), uncertainty, int(label), int(source_label))
            for row, uncertainty, label, source_label in table.T.tolist()
        ]
        # Draw audits from the whole batch before the most uncertain samples are taken. Drawing them
        # from the remainder would overestimate accuracy.
        audited, others = self._draw(samples, n_audits, "audit", step)
        different = [sample for sample in others if sample.label != sample.source_label]
        paired, _ = self._draw(different, n_paired, "paired_audit", step)
        others = [sample for sample in others if sample not in paired]
        # A method excludes a row by the score -inf.
        uncertain = [s for s in others[: n_uncertain - len(paired)] if s.uncertainty > -inf]
        n_different = sum(sample.label != sample.source_label for sample in samples)
        rng = generator(self._adapter.seed, "shown_label", step)
        shows_source = torch.rand(len(paired), generator=rng).lt(0.5).tolist()

        def make_query(place: int, sample: _ScoredSample, reason: QueryReason, shown: int) -> Query:
            return Query(
                id=n_asked + place,
                index=sample.row,
                served_label=sample.label,
                shown_label=shown,
                uncertainty=sample.uncertainty if sample.uncertainty > -inf else 0.0,
                input=inputs[sample.row].detach().clone(),
                step=step,
                version=self._adapter.version,
                position=n_served - len(inputs) + sample.row,
                n_classes=prediction.probs.shape[-1],
                reason=reason,
                n_represented=n_different / len(paired) if reason == "paired_audit" else 0.0,
            )

        chosen: list[tuple[_ScoredSample, QueryReason, int]] = [
            *((sample, "uncertain", sample.label) for sample in uncertain),
            *(
                (sample, "paired_audit", sample.source_label if is_source else sample.label)
                for sample, is_source in zip(paired, shows_source, strict=True)
            ),
            *((sample, "audit", sample.label) for sample in audited),
        ]
        queries = tuple(make_query(place, *choice) for place, choice in enumerate(chosen))
        return ChosenQueries(queries, policy, n_different if n_paired else None)

    def _draw(
        self, samples: list[_ScoredSample], n: int, purpose: str, step: int
    ) -> tuple[list[_ScoredSample], list[_ScoredSample]]:
        """Draw n samples at random. Return them and the others."""
        rng = generator(self._adapter.seed, purpose, step)
        drawn = torch.randperm(len(samples), generator=rng)[:n].tolist()
        others = [sample for place, sample in enumerate(samples) if place not in drawn]
        return [samples[place] for place in drawn], others

    def _score_rows(
        self, inputs: Tensor, prediction: Prediction, n_queries: int, *, step: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return the uncertainty of each row, (batch,), and π if it was computed."""
        if n_queries <= 0:
            return torch.zeros(len(inputs), device=inputs.device), None
        scores = self._adapter.query_scores(inputs, n_queries)
        if scores is not None:
            return scores, None
        policies: list[Tensor] = []

        def policy() -> Tensor:
            policies.append(self._adapter.policy(inputs))
            return policies[-1]

        key = (self._adapter.seed, "selection", step)
        logits = partial(self._adapter.logits, inputs)
        scores = self._score(Candidates(prediction, policy, logits, key))
        return scores, policies[-1] if policies else None
