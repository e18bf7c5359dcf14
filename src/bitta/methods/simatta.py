"""SimATTA: learn from a few answered samples that represent clusters of uncertain samples.

Gui, Li and Ji, ICLR 2024, "Active Test-Time Adaptation: Theoretical Analyses and An Algorithm".
The method learns from full labels and from verdicts: the probability of a label judged incorrect
falls (SimATTA_BIN of the BiTTA paper). Departures from the authors' code: one question per cluster
up to `n_queries`, largest clusters first. The sample nearest to the centre is asked about. Memories
are bounded, and so is the number of clusters. There are at most `steps` updates per epoch; the
authors make two more. The samples that an answer represents are determined when it arrives.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config_base import require
from bitta.losses import complementary_loss, entropy
from bitta.memory import FifoMemory, MixedBatch
from bitta.methods.base import GradientAdapter, GradientConfig, stack_losses
from bitta.methods.clustering import ClusterCache, Clusters, import_k_means
from bitta.nn import WrappedModel, explain_out_of_memory
from bitta.seeding import RandomKey, derive_seed
from bitta.types import Feedback, JudgedSamples, Losses, State, move_to_device

_MAX_SOURCE_LIKE_PER_BATCH = 100
_TERMS = ("correct", "incorrect", "source_like")
_MAX_ANCHOR_SHARE = 0.2  # Limit of a, the weight of anchors, with few source-like samples.
_BLOCK_SIZE = 6  # Updates per block of `LossPlateau`. The mean leaves out the last one.
_MAX_FAILED_BLOCKS = 6


@dataclass(frozen=True, kw_only=True)
class SimattaConfig(GradientConfig):
    """Settings of SimATTA. The number of questions is a setting of the session.

    Anchors are the answered samples. They replace the memories of correct and incorrect samples.
    """

    lr: float = 1e-4
    """Learning rate of SGD, whose momentum restarts on each batch. The default is the value of the
    BiTTA paper for CIFAR and of the authors for Tiny-ImageNet. With 1e-3, their value on PACS, some
    models collapse."""
    momentum: float = 0.9
    """Momentum of SGD. The default is the authors' value."""
    steps: int = 30
    """Updates per epoch, each on a mini-batch. The authors use 30 on PACS."""
    batch_size: int = 64
    """Number of anchors, and of source-like samples, in a mini-batch. The code published with BiTTA
    has 64."""
    high_entropy: float = 1e-3
    """Lowest entropy of the adapted model at which a sample may be asked about. The BiTTA paper has
    1e-3 (e_h) for CIFAR, the authors 1e-2 on PACS."""
    low_entropy: float = 1e-4
    """Limit of the entropy of the source model for source-like samples. The BiTTA paper (e_l) has
    1e-4 for CIFAR-10 and 1e-5 for CIFAR-100, the authors 1e-4 on PACS."""
    clusters: int = 10
    """Number of clusters of the first batch. The default is the authors' value."""
    cluster_growth: int = 3
    """Number of clusters added on each batch. The BiTTA paper has 3, the authors 1."""
    starts: int = 1
    """Number of clusterings from different first centres. The best one is used. The authors use
    10."""
    cold_start: int = 100
    """With fewer source-like samples than this, anchors have at most a fifth of the loss. The
    default is the authors' value."""
    max_anchors: int = 192
    """Capacity of the memory of answered samples. The authors keep all."""
    max_source_like: int = 1000
    """Capacity of the memory of source-like samples. The authors keep all."""
    complementary_eps: float = 0.0
    """Constant added inside the logarithm of the loss on incorrect samples. The code published with
    BiTTA has 1e-6, which ignores the samples with the highest confidence."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "reference": {"starts": 10, "complementary_eps": 1e-6}
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        amounts = "high_entropy", "low_entropy", "cluster_growth", "cold_start", "complementary_eps"
        for name in amounts:
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("steps", "batch_size", "clusters", "starts", "max_anchors", "max_source_like"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")


class Simatta(GradientAdapter[SimattaConfig]):
    """Asks about one sample per cluster. Trains on answered and on source-like samples."""

    Config = SimattaConfig
    paper: ClassVar[str] = "Gui et al., ICLR 2024"
    needs: ClassVar[str] = "answers, scikit-learn"
    n_queries: ClassVar[int] = 3

    def __init__(self, wrapped: WrappedModel, config: SimattaConfig, *, seed: int = 0) -> None:
        import_k_means()  # Raises an error now if scikit-learn is missing.
        super().__init__(wrapped, config, seed=seed)
        self.anchors = AnchorMemory(config.max_anchors)
        self.source_like = FifoMemory(config.max_source_like)
        self.source_model = wrapped.clone_model()
        """The source model. It never changes."""
        self._clusters = ClusterCache()

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """Return all parameters."""
        return list(model.parameters())

    def make_optimiser(self) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return self.make_sgd(momentum=self.config.momentum)

    @torch.no_grad()
    def query_scores(self, inputs: Tensor, n_queries: int) -> Tensor:
        """Return the cluster size of each central sample; -inf for all other rows."""
        features, entropies = self._compute_features(inputs)
        entropies = entropies[len(self.anchors) :]
        candidates = find_uncertain_rows(entropies, self.config.high_entropy)
        n_free = self._n_clusters() - len(self.anchors)
        if len(candidates) < n_free:
            # Too few candidates for the clusters: choose the most uncertain rows.
            chosen = [(int(row), 1) for row in find_uncertain_rows(entropies, 0.0)[:n_free]]
        elif len(candidates):
            clusters = self._find_clusters(features, candidates)
            chosen = [(int(candidates[row]), size) for row, size in clusters.find_unanchored()]
        else:
            chosen = []
        scores = torch.full((len(inputs),), -torch.inf)
        for row, size in chosen[:n_queries]:
            scores[row] = size
        return scores.to(inputs.device)

    @torch.enable_grad()
    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Remember answers and source-like samples, then make `steps` updates per epoch."""
        self._remember_answers(unlabelled, feedback)
        self._remember_source_like(unlabelled)
        right, right_labels = self.anchors.with_verdict(correct=True)
        wrong, wrong_labels = self.anchors.with_verdict(correct=False)
        inputs = torch.cat([right, wrong, self.source_like.inputs])
        self._reset_momentum()
        losses = self._train(MixedBatch(inputs, right_labels, wrong_labels))
        self.version += 1
        return losses

    def objective(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """Return the terms of (1 - a) CE(source-like) + a (CE(correct) + complementary(incorrect)).

        They are computed on a random mini-batch.
        """
        counts, mini_batch = self._draw_mini_batch(mixed, random_key)
        return _drop_empty_terms(self._weighted_terms(*mini_batch), counts)

    def update(self, mixed: MixedBatch, epoch: int) -> dict[str, Tensor]:
        """Draw a mini-batch and make one update. Only the update is captured as a CUDA graph."""
        random_key = RandomKey((self.seed, "adapt", self.version, epoch))
        counts, mini_batch = self._draw_mini_batch(mixed, random_key)
        terms = self.trained_model.run_or_replay(
            "update", self._update_on_mini_batch, mini_batch, random_key, step=self.version
        )
        return _drop_empty_terms(terms, counts)

    def forget(self, sample_ids: Iterable[int]) -> None:
        """Remove answered samples from the anchors."""
        self.anchors.remove(sample_ids)

    def reset(self) -> None:
        """Also empty the memories."""
        super().reset()
        self.anchors.clear()
        self.source_like.clear()

    def state_dict(self) -> State:
        """Return the state, with anchors and source-like samples.

        The optimiser has no state between batches.
        """
        return super().state_dict() | {
            "optimiser": {},
            "anchors": self.anchors.state_dict(),
            "source_like": self.source_like.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        super().load_state_dict(state)
        self.source_weights.restore(self.source_model.model)
        self.anchors.load_state_dict(state["anchors"], device=self.wrapped.device)
        self.source_like.load_state_dict(state["source_like"], device=self.wrapped.device)

    def close(self) -> None:
        """Restore the model and delete the copy of the source model."""
        self.source_model.close()
        super().close()

    @torch.no_grad()
    def _remember_answers(self, unlabelled: Tensor, feedback: Feedback) -> None:
        """Add answers to the anchors, and update the weights of all anchors.

        The number of new samples in a cluster is divided equally among the weights of its anchors.
        If no answer is late, the clusters are those that the questions came from. A late answer is
        clustered with the batch in which it arrives.
        """
        answered = torch.cat([feedback.correct.inputs, feedback.incorrect.inputs])
        features, entropies = self._compute_features(torch.cat([answered, unlabelled]))
        entropies = entropies[len(self.anchors) :].clone()
        entropies[: len(answered)].clamp_min_(self.config.high_entropy)
        candidates = find_uncertain_rows(entropies, self.config.high_entropy)
        is_answered = candidates < len(answered)
        represents = torch.cat([torch.ones(len(self.anchors)).bool(), is_answered])
        weights = torch.zeros(len(answered))
        if len(candidates) and represents.any():
            clusters = self._find_clusters(features, candidates)
            shares = clusters.share_new_samples(represents)
            older, new = shares.tensor_split((len(self.anchors),))
            self.anchors.weights = self.anchors.weights + older.to(self.anchors.weights)
            weights[candidates[is_answered]] = new[is_answered]
        self.anchors.add(feedback, weights)

    @torch.no_grad()
    def _remember_source_like(self, unlabelled: Tensor) -> None:
        """Add the samples of lowest entropy in the source model, with its labels."""
        rows, labels = torch.zeros(0).long(), torch.zeros(0).long()
        if len(unlabelled):
            logits = self.source_model(unlabelled, statistics="running")
            entropies, labels = entropy(logits), logits.argmax(-1)
            order = entropies.argsort(stable=True)[:_MAX_SOURCE_LIKE_PER_BATCH]
            rows = order[entropies[order] < self.config.low_entropy]
        rows = rows.to(unlabelled.device)
        self.source_like.add(JudgedSamples(unlabelled[rows], labels.to(rows.device)[rows]))

    def _train(self, mixed: MixedBatch) -> Losses:
        """Make `steps` updates per epoch. Stop when the loss on anchors stops falling."""
        updates: list[dict[str, Tensor]] = []
        plateau = LossPlateau()
        n_updates = self.config.epochs * self.config.steps if len(mixed.inputs) else 0
        with explain_out_of_memory(
            f"a step on {2 * self.config.batch_size} samples", "set a smaller batch_size."
        ):
            for number in range(n_updates):
                if number:
                    self.between_updates()
                terms = self.update(mixed, number)
                updates.append(terms)
                on_anchors = [terms[name] for name in ("correct", "incorrect") if name in terms]
                if on_anchors and plateau.is_reached(torch.stack(on_anchors).sum()):
                    break
        return stack_losses(updates, like=mixed.inputs)

    def _update_on_mini_batch(
        self,
        *mini_batch: Tensor,
        random_key: RandomKey,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        terms = self.backward(lambda: self._weighted_terms(*mini_batch))
        self.optimiser.step()
        return {name: term.detach() for name, term in terms.items()}

    def _weighted_terms(self, inputs: Tensor, labels: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """Return all three terms as weighted sums over rows; 0 for a term without rows."""
        logits = self.trained_model(inputs, statistics="running")
        cross_entropy = F.cross_entropy(logits, labels, reduction="none")
        loss = partial(complementary_loss, eps=self.config.complementary_eps)
        complementary = torch.vmap(loss)(logits, labels)
        losses = torch.stack([cross_entropy, complementary, cross_entropy])  # (terms, rows)
        terms = torch.where(weights > 0, weights * losses, 0).sum(-1)
        return dict(zip(_TERMS, terms, strict=True))

    def _draw_mini_batch(
        self, mixed: MixedBatch, random_key: RandomKey
    ) -> tuple[list[int], list[Tensor]]:
        """Return the number of rows of each term, and inputs, labels and weights of the rows.

        The rows are [correct; incorrect; source-like]. Their shapes are constant once there are
        enough samples of both kinds.
        """
        n_anchors, n_source_like = mixed.n_judged, len(self.source_like)
        max_rows = self.config.batch_size
        anchors = draw_rows(n_anchors, max_rows, random_key.at("anchors"))
        source_like = draw_rows(n_source_like, max_rows, random_key.at("source-like"))
        n_correct = int((anchors < len(mixed.correct)).sum())
        counts = [n_correct, len(anchors) - n_correct, len(source_like)]
        share = anchor_share(n_anchors, n_source_like, cold_start=self.config.cold_start)
        device = mixed.inputs.device
        rows = move_to_device(torch.cat([anchors, n_anchors + source_like]), device)
        labels = torch.cat([mixed.correct, mixed.incorrect, self.source_like.labels])
        weights = move_to_device(row_weights(*counts, share=share), device)
        return counts, [mixed.inputs[rows], labels[rows], weights]

    def _reset_momentum(self) -> None:
        """Set the momentum to 0 in place: captured graphs refer to these tensors."""
        for values in self.optimiser.state.values():
            if torch.is_tensor(values.get("momentum_buffer")):
                values["momentum_buffer"].zero_()

    def _compute_features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and entropies of [anchors; inputs] in the adapted model."""
        rows = inputs if self.anchors.inputs is None else torch.cat([self.anchors.inputs, inputs])
        if not len(rows):
            return torch.zeros(0, 1), torch.zeros(0)
        features, logits = self.wrapped.features(rows, statistics="running")
        return features, entropy(logits)

    def _find_clusters(self, features: Tensor, candidates: Tensor) -> Clusters:
        """Return the clusters of [anchors; candidates]."""
        n_anchors = len(self.anchors)
        rows = torch.cat([torch.arange(n_anchors), n_anchors + candidates])
        return self._clusters.find(
            features.cpu()[rows],
            self.anchors.weights,
            n_clusters=self._n_clusters(),
            starts=self.config.starts,
            seed=derive_seed(self.seed, "clusters", self.version),
        )

    def _n_clusters(self) -> int:
        """Return the number of clusters. Each batch adds some, at most `max_anchors` in total."""
        config = self.config
        return config.clusters + min(self.version * config.cluster_growth, config.max_anchors)


class AnchorMemory:
    """Memory of the newest `capacity` answered samples, with verdicts and weights."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def __len__(self) -> int:
        return len(self.labels)

    def clear(self) -> None:
        """Drop all anchors."""
        self.inputs: Tensor | None = None  # (anchors, ...), oldest first
        self.labels = torch.zeros(0, dtype=torch.long)  # (anchors,) the labels that were judged
        self.correct = torch.zeros(0, dtype=torch.bool)  # (anchors,) the verdicts
        self.weights = torch.zeros(0)  # (anchors,) number of samples that each one represents
        self.sample_ids: list[int | None] = []
        """Id of each anchor, oldest first."""

    def add(self, feedback: Feedback, weights: Tensor) -> None:
        """Add answers, [correct; incorrect], and drop the oldest anchors beyond the capacity."""
        right, wrong = feedback.correct, feedback.incorrect
        verdicts = [torch.ones_like(right.labels), torch.zeros_like(wrong.labels)]
        older = [] if self.inputs is None else [self.inputs]
        device = right.inputs.device
        self.inputs = self._newest(*older, right.inputs, wrong.inputs)
        self.labels = self._newest(self.labels.to(device), right.labels, wrong.labels)
        self.correct = self._newest(self.correct.to(device), *(v.bool() for v in verdicts))
        self.weights = self._newest(self.weights.to(device), weights.to(device))
        self.sample_ids = [*self.sample_ids, *_list_ids(right), *_list_ids(wrong)]
        self.sample_ids = self.sample_ids[-self.capacity :]

    def remove(self, sample_ids: Iterable[int]) -> None:
        """Remove the anchors with these ids. Ids that are not stored are ignored."""
        removed = set(sample_ids)
        if self.inputs is None or removed.isdisjoint(self.sample_ids):
            return
        kept = [row for row, id_ in enumerate(self.sample_ids) if id_ not in removed]
        self.inputs, self.labels = self.inputs[kept], self.labels[kept]
        self.correct, self.weights = self.correct[kept], self.weights[kept]
        self.sample_ids = [self.sample_ids[row] for row in kept]

    def with_verdict(self, *, correct: bool) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of the anchors with this verdict, after the first `add`."""
        assert self.inputs is not None, "anchors cannot be read before the first add"
        has_verdict = self.correct if correct else ~self.correct
        return self.inputs[has_verdict], self.labels[has_verdict]

    def state_dict(self) -> State:
        """Return all anchors."""
        names = ("inputs", "labels", "correct", "weights", "sample_ids")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Continue from a saved state."""
        self.inputs = None if state["inputs"] is None else state["inputs"].to(device)
        self.labels = state["labels"].to(device)
        self.correct = state["correct"].to(device)
        self.weights = state["weights"].to(device)
        self.sample_ids = list(state["sample_ids"])

    def _newest(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts)[-self.capacity :]


def _list_ids(samples: JudgedSamples) -> Sequence[int | None]:
    return samples.sample_ids or [None] * len(samples.labels)


class LossPlateau:
    """Detects that the mean loss over a block of updates failed to fall six times in a row."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._best = float("inf")
        self._n_failed = 0

    def is_reached(self, loss: Tensor) -> bool:
        """Add the loss of an update. Return True if training should stop."""
        self._losses.append(loss)
        if len(self._losses) < _BLOCK_SIZE:
            return False
        mean = float(sum(self._losses[:-1])) / (_BLOCK_SIZE - 1)
        self._losses = []
        self._n_failed = 0 if mean < self._best else self._n_failed + 1
        self._best = min(self._best, mean)
        return self._n_failed >= _MAX_FAILED_BLOCKS


def find_uncertain_rows(entropies: Tensor, min_entropy: float) -> Tensor:
    """Return the rows with at least this entropy, most uncertain first, on the CPU."""
    entropies = entropies.cpu()
    order = entropies.argsort(descending=True, stable=True)
    return order[entropies[order] >= min_entropy]


def anchor_share(n_anchors: int, n_source_like: int, *, cold_start: int) -> float:
    """Return the weight of anchors in the loss, a = |A| / (|A| + |S|).

    A are the anchors, S the source-like samples. The weight is at most a fifth while S is smaller
    than `cold_start`, and 1 if S is empty.
    """
    if not n_source_like:
        return 1.0
    share = n_anchors / (n_anchors + n_source_like)
    return min(_MAX_ANCHOR_SHARE, share) if n_source_like < cold_start else share


def row_weights(n_correct: int, n_incorrect: int, n_source_like: int, *, share: float) -> Tensor:
    """Return the weight of each row in each of the three terms, (3, rows).

    The weighted sum of a term is its mean over rows, times `share`, `share` and 1 - `share`.
    """
    parts = ((n_correct, share), (n_incorrect, share), (n_source_like, 1 - share))
    blocks = [torch.full((1, n), part) / max(1, n) for n, part in parts]
    weights: Tensor = torch.block_diag(*blocks)
    return weights


def draw_rows(n_rows: int, max_rows: int, rng: torch.Generator) -> Tensor:
    """Draw up to `max_rows` of `n_rows` rows without replacement, in ascending order."""
    return torch.randperm(n_rows, generator=rng)[:max_rows].sort().values


def _drop_empty_terms(terms: dict[str, Tensor], counts: list[int]) -> dict[str, Tensor]:
    return {name: terms[name] for name, n_rows in zip(_TERMS, counts, strict=True) if n_rows}
