"""SimATTA: learn from a few answered samples that stand for clusters of uncertain ones.

Gui, Li and Ji, ICLR 2024, "Active Test-Time Adaptation: Theoretical Analyses and An Algorithm".
Full labels and verdicts alike: a sample judged incorrect is kept away from the label it was shown
with (SimATTA_BIN of the BiTTA paper). Departures from the authors' code: a question per cluster up
to the session's number of them, the largest clusters first; the sample asked about is the nearest
of its cluster; memories are bounded, and the number of clusters with them; at most `steps` updates
a batch, where theirs are two more; what an answer stands for is found when it arrives.
"""

import math
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.config import require
from bitta.errors import SettingError
from bitta.losses import complementary_loss, entropy
from bitta.memory import FifoMemory, MixedBatch
from bitta.methods.balance import Patience, anchor_share, drawn_rows, row_weights
from bitta.methods.base import GradientAdapter, GradientConfig
from bitta.nn import WrappedModel, explain_out_of_memory
from bitta.seeding import RandomKey, derive_seed
from bitta.types import Feedback, JudgedSamples, Losses, State, move_to_device


class Anchors:
    """The newest `capacity` answered samples, each with its verdict and how many it stands for."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clear()

    def __len__(self) -> int:
        return len(self.labels)

    def clear(self) -> None:
        """Forget everything."""
        self.inputs: Tensor | None = None  # (anchors, ...), oldest first
        self.labels = torch.zeros(0, dtype=torch.long)  # (anchors,) as judged
        self.correct = torch.zeros(0, dtype=torch.bool)  # (anchors,) the verdict
        self.weights = torch.zeros(0)  # (anchors,) samples of the stream it stands for
        self.sample_ids: list[int | None] = []
        """Id of each anchor, oldest first."""

    def add(self, feedback: Feedback, weights: Tensor) -> None:
        """Take answers in, [correct; incorrect], and let the oldest anchors go."""
        right, wrong = feedback.correct, feedback.incorrect
        verdicts = [torch.ones_like(right.labels), torch.zeros_like(wrong.labels)]
        older = [] if self.inputs is None else [self.inputs]
        device = right.inputs.device
        self.inputs = self._newest(*older, right.inputs, wrong.inputs)
        self.labels = self._newest(self.labels.to(device), right.labels, wrong.labels)
        self.correct = self._newest(self.correct.to(device), *(v.bool() for v in verdicts))
        self.weights = self._newest(self.weights.to(device), weights.to(device))
        self.sample_ids = [*self.sample_ids, *_sample_ids(right), *_sample_ids(wrong)]
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
        """Inputs and labels of those judged alike; there must have been an `add`."""
        assert self.inputs is not None, "anchors are read only after their first add"
        alike = self.correct if correct else ~self.correct
        return self.inputs[alike], self.labels[alike]

    def state_dict(self) -> State:
        """All of it."""
        names = ("inputs", "labels", "correct", "weights", "sample_ids")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: State, *, device: torch.device) -> None:
        """Go on from a saved state."""
        self.inputs = None if state["inputs"] is None else state["inputs"].to(device)
        self.labels = state["labels"].to(device)
        self.correct = state["correct"].to(device)
        self.weights = state["weights"].to(device)
        self.sample_ids = list(state["sample_ids"])

    def _newest(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts)[-self.capacity :]


def _sample_ids(samples: JudgedSamples) -> Sequence[int | None]:
    return samples.sample_ids or [None] * len(samples.labels)


class Parted:
    """Remembers the last clusters: a batch is parted when it is asked about and when answered."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor, dict[str, int], Clusters] | None = None

    def __call__(self, features: Tensor, weights: Tensor, **how: int) -> "Clusters":
        """Clusters of these points, computed once."""
        if self._last is not None:
            points, masses, manner, clusters = self._last
            same = how == manner and torch.equal(weights, masses) and torch.equal(features, points)
            if same:
                return clusters
        clusters = Clusters.of(features, weights, **how)
        self._last = features.clone(), weights.clone(), how, clusters
        return clusters


def uncertain_rows(entropies: Tensor, least: float) -> Tensor:
    """Rows of at least so much entropy on the host, most uncertain first."""
    entropies = entropies.cpu()
    order = entropies.argsort(descending=True, stable=True)
    return order[entropies[order] >= least]


def k_means() -> tuple[Any, type[Warning]]:
    """What clusters, and what it says where fewer points differ than there are clusters."""
    random_key = random.getstate()
    try:
        from sklearn.cluster import KMeans  # noqa: PLC0415 (an extra)
        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415
    except ImportError:
        raise SettingError(
            "SimATTA finds clusters with scikit-learn, which is not installed; "
            "run: pip install 'bitta[cluster]'"
        ) from None
    finally:
        random.setstate(random_key)  # importing it draws a number
    return KMeans, ConvergenceWarning


def first_centres(
    points: Tensor, masses: Tensor, *, n_clusters: int, starts: int, seed: int
) -> Tensor:
    """Rows of the points that k-means begins from, (starts, clusters), as k-means++ draws them.

    Each is the best of a few, drawn by how far they are from those before it. Draws and outcome are
    scikit-learn's; it measures the same distances again for each centre of each start, where here
    they are known from the beginning and all starts go on together.
    """
    trials = 2 + int(math.log(n_clusters))
    random_key = np.random.RandomState(seed % 2**32)
    drawn = random_key.random_sample((starts, 1 + (n_clusters - 1) * trials))
    first, later = torch.from_numpy(drawn).tensor_split((1,), dim=1)
    apart = torch.cdist(points, points).square_()
    reach = masses.cumsum(0)
    row = torch.searchsorted(reach / reach[-1], first.contiguous(), right=True).squeeze(1)
    rows, nearest = [row], apart[row]  # (starts, points)
    for shares in later.unflatten(1, (n_clusters - 1, trials)).unbind(1):
        reach = (nearest * masses).cumsum(1)
        tried = torch.searchsorted(reach, shares * reach[:, -1:]).clamp_max_(len(points) - 1)
        nearer = torch.minimum(apart[tried], nearest.unsqueeze(1))  # (starts, trials, points)
        best = (nearer @ masses).argmin(1, keepdim=True)
        rows.append(tried.gather(1, best).squeeze(1))
        nearest = nearer[torch.arange(starts), best.squeeze(1)]
    return torch.stack(rows, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """Which cluster each point is in, and how far it is from its centre; anchors come first."""

    labels: Tensor  # (points,)
    distances: Tensor  # (points,)
    n_anchors: int
    """How many of the points are anchors; the others are new samples, each of weight 1."""

    @classmethod
    def of(
        cls, features: Tensor, weights: Tensor, *, n_clusters: int, starts: int, seed: int
    ) -> "Clusters":
        """Part points, (points, features); `weights` are of the anchors, which come first.

        The best of so many `starts` is taken.
        """
        n_anchors, n_new = len(weights), len(features) - len(weights)
        if n_clusters >= len(features):
            alone = torch.arange(len(features))
            return cls(alone, torch.zeros(len(features)), n_anchors)
        kind, unlike = k_means()
        masses = torch.cat([weights.cpu().double(), torch.ones(n_new).double()])
        points = _turned(features.detach().cpu().double())
        rows = first_centres(points, masses, n_clusters=n_clusters, starts=starts, seed=seed)
        begin = iter(rows.numpy())
        # Elkan's algorithm is not for a single cluster; Lloyd's limits the threads of others.
        algorithm = "elkan" if n_clusters > 1 else "lloyd"
        model = kind(
            n_clusters, init=lambda x, *_, **__: x[next(begin)], n_init=starts, algorithm=algorithm
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", unlike)
            model.fit(points.numpy(), sample_weight=masses.numpy())
        labels = torch.from_numpy(model.labels_).long()
        centres = torch.from_numpy(model.cluster_centers_)
        return cls(labels, (points - centres[labels]).norm(dim=1), n_anchors)

    def unanchored(self) -> list[tuple[int, int]]:
        """New sample nearest to the centre, and size, of each cluster without an anchor.

        The largest cluster comes first; samples are counted from the first new one.
        """
        anchored = set(self.labels[: self.n_anchors].tolist())
        members: dict[int, list[int]] = {}
        for row, label in enumerate(self.labels[self.n_anchors :].tolist()):
            if label not in anchored:
                members.setdefault(label, []).append(row)
        away = self.distances[self.n_anchors :].tolist()
        found = [(min(rows, key=away.__getitem__), len(rows)) for rows in members.values()]
        return sorted(found, key=lambda one: -one[1])

    def shares(self, standing: Tensor) -> Tensor:
        """How many new samples each point stands for, (points,).

        Those of a cluster are shared by the points in it for which `standing` is true.
        """
        n_clusters = int(self.labels.max()) + 1
        new = torch.arange(len(self.labels)) >= self.n_anchors
        sizes = torch.bincount(self.labels[new], minlength=n_clusters)
        sharing = torch.bincount(self.labels[standing], minlength=n_clusters).clamp_min(1)
        return torch.where(standing, (sizes / sharing)[self.labels], 0.0)


def _turned(points: Tensor) -> Tensor:
    """The same points about their middle, turned into as few dimensions as there are points."""
    points = points - points.mean(0)
    different, which = points.unique(dim=0, return_inverse=True)
    if different.shape[1] <= different.shape[0]:
        return points
    # Equal ones are turned once: rounding must not part them.
    turned: Tensor = torch.linalg.qr(different.T, mode="r").R.T
    return turned[which]


_PER_BATCH = 100  # source-like samples
_TERMS = ("correct", "incorrect", "source_like")


@dataclass(frozen=True, kw_only=True)
class SimattaConfig(GradientConfig):
    """Settings of SimATTA; the number of questions belongs to the session.

    It keeps anchors instead of memories of correct and incorrect samples.
    """

    lr: float = 1e-4
    """Step size of SGD, begun anew on each batch; the BiTTA paper's for CIFAR, the authors' for
    Tiny-ImageNet. Theirs on PACS, 1e-3, takes some models apart."""
    momentum: float = 0.9
    """Momentum of SGD; the authors' value."""
    steps: int = 30
    """Mini-batches per epoch, of which there is one on each batch; the authors: 30 on PACS."""
    batch_size: int = 64
    """Anchors, and source-like samples, in a mini-batch; the code published with BiTTA has 64."""
    high_entropy: float = 1e-3
    """Samples are asked about from this entropy of the adapted model on; the BiTTA paper's e_h for
    CIFAR. The authors: 1e-2 on PACS."""
    low_entropy: float = 1e-4
    """Below this entropy of the source model a sample is source-like; the BiTTA paper's e_l for
    CIFAR-10, 1e-5 for CIFAR-100. The authors: 1e-4 on PACS."""
    clusters: int = 10
    """Clusters of the first batch; the authors' value."""
    cluster_growth: int = 3
    """How many more there are on each batch; the BiTTA paper's value. The authors: 1."""
    starts: int = 1
    """Clusterings of a batch, from other first centres, of which the best is taken; the authors'
    value is 10."""
    cold_start: int = 100
    """Until there are so many source-like samples, anchors have at most a fifth of the loss; the
    authors' value."""
    max_anchors: int = 192
    """Answered samples that are kept; the authors keep all."""
    max_source_like: int = 1000
    """Source-like samples that are kept; the authors keep all."""
    complementary_eps: float = 0.0
    """Inside the logarithm for incorrect samples. The code published with BiTTA has 1e-6, which
    leaves those alone that the model is surest about."""

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
    """Ask about one sample per cluster; train on what was answered and on what the source knows."""

    Config = SimattaConfig
    paper: ClassVar[str] = "Gui et al., ICLR 2024"
    needs: ClassVar[str] = "answers, scikit-learn"
    n_queries: ClassVar[int] = 3

    def __init__(self, wrapped: WrappedModel, config: SimattaConfig, *, seed: int = 0) -> None:
        k_means()  # refused now if it is not there, not in mid-stream
        super().__init__(wrapped, config, seed=seed)
        self.anchors = Anchors(config.max_anchors)
        self.source_like = FifoMemory(config.max_source_like)
        self.teacher = wrapped.clone_model()
        """The source model; it never changes."""
        self._parted = Parted()

    def select_parameters(self, model: nn.Module) -> list[nn.Parameter]:
        """All of them."""
        return list(model.parameters())

    def make_optimiser(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return self.make_sgd(momentum=self.config.momentum)

    @torch.no_grad()
    def query_scores(self, inputs: Tensor, n_queries: int) -> Tensor:
        """How many uncertain samples a sample is to stand for; those of other clusters at -inf."""
        features, entropies = self._seen(inputs)
        entropies = entropies[len(self.anchors) :]
        candidates = uncertain_rows(entropies, self.config.high_entropy)
        free = self._n_clusters() - len(self.anchors)
        if len(candidates) < free:
            # Too few to part into so many clusters: the most uncertain, each for itself.
            chosen = [(int(row), 1) for row in uncertain_rows(entropies, 0.0)[:free]]
        elif len(candidates):
            clusters = self._clusters(features, candidates)
            chosen = [(int(candidates[row]), size) for row, size in clusters.unanchored()]
        else:
            chosen = []
        query_scores = torch.full((len(inputs),), -torch.inf)
        for row, size in chosen[:n_queries]:
            query_scores[row] = size
        return query_scores.to(inputs.device)

    @torch.enable_grad()
    def adapt(self, unlabelled: Tensor, feedback: Feedback) -> Losses:
        """Take in answers and source-like samples; then `steps` mini-batches of both."""
        self._take_answers(unlabelled, feedback)
        self._take_source_like(unlabelled)
        right, right_labels = self.anchors.with_verdict(correct=True)
        wrong, wrong_labels = self.anchors.with_verdict(correct=False)
        inputs = torch.cat([right, wrong, self.source_like.inputs])
        self._drop_momentum()
        losses = self._train(MixedBatch(inputs, right_labels, wrong_labels))
        self.version += 1
        return losses

    def objective(self, mixed: MixedBatch, random_key: RandomKey) -> dict[str, Tensor]:
        """(1 - a) CE(source-like) + a (CE(correct) + complementary(incorrect)), of drawn rows."""
        counts, drawn = self._mini_batch(mixed, random_key)
        return _with_rows(self._terms(*drawn), counts)

    def forget(self, sample_ids: Iterable[int]) -> None:
        """Remove answered samples from the anchors."""
        self.anchors.remove(sample_ids)

    def reset(self) -> None:
        """Empty memories, too."""
        super().reset()
        self.anchors.clear()
        self.source_like.clear()

    def state_dict(self) -> State:
        """Anchors and source-like samples beside the rest."""
        return super().state_dict() | {
            "optimiser": {},  # begun anew on each batch
            "anchors": self.anchors.state_dict(),
            "source_like": self.source_like.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        super().load_state_dict(state)
        self.source_weights.restore(self.teacher.model)
        self.anchors.load_state_dict(state["anchors"], device=self.wrapped.device)
        self.source_like.load_state_dict(state["source_like"], device=self.wrapped.device)

    def close(self) -> None:
        """Give the model back, and let the source's copy go."""
        self.teacher.close()
        super().close()

    @torch.no_grad()
    def _take_answers(self, unlabelled: Tensor, feedback: Feedback) -> None:
        """Anchors, old and new, share the uncertain samples of their clusters.

        With every answer at hand these are the clusters that were asked about: the same samples in
        the same order. A late answer stands for its cluster among the samples it arrives with.
        """
        answered = torch.cat([feedback.correct.inputs, feedback.incorrect.inputs])
        features, entropies = self._seen(torch.cat([answered, unlabelled]))
        uncertain = entropies[len(self.anchors) :].clone()
        uncertain[: len(answered)].clamp_min_(self.config.high_entropy)
        candidates = uncertain_rows(uncertain, self.config.high_entropy)
        standing = torch.cat([torch.ones(len(self.anchors)).bool(), candidates < len(answered)])
        weights = torch.zeros(len(answered))
        if len(candidates) and standing.any():
            shares = self._clusters(features, candidates).shares(standing)
            older, new = shares.tensor_split((len(self.anchors),))
            self.anchors.weights = self.anchors.weights + older.to(self.anchors.weights)
            weights[candidates[candidates < len(answered)]] = new[candidates < len(answered)]
        self.anchors.add(feedback, weights)

    @torch.no_grad()
    def _take_source_like(self, unlabelled: Tensor) -> None:
        """The samples that the source model is surest about, with its labels."""
        rows, labels = torch.zeros(0).long(), torch.zeros(0).long()
        if len(unlabelled):
            logits = self.teacher(unlabelled, statistics="running")
            entropies, labels = entropy(logits), logits.argmax(-1)
            order = entropies.argsort(stable=True)[:_PER_BATCH]
            rows = order[entropies[order] < self.config.low_entropy]
        rows = rows.to(unlabelled.device)
        self.source_like.add(JudgedSamples(unlabelled[rows], labels.to(rows.device)[rows]))

    def _train(self, mixed: MixedBatch) -> Losses:
        """`steps` times per epoch, unless the anchors stop gaining."""
        taken: list[dict[str, Tensor]] = []
        patience = Patience()
        n_steps = self.config.epochs * self.config.steps if len(mixed.inputs) else 0
        with explain_out_of_memory(
            f"a step on {2 * self.config.batch_size} samples", "set a smaller batch_size."
        ):
            for number in range(n_steps):
                if number:
                    self.between_updates()
                taken.append(self._descend(mixed, number))
                on_anchors = [taken[-1][n] for n in ("correct", "incorrect") if n in taken[-1]]
                if on_anchors and patience.ends(torch.stack(on_anchors).sum()):
                    break
        # Which terms there are depends on what was drawn.
        names = dict.fromkeys(name for terms in taken for name in terms)
        absent = mixed.inputs.new_full((), torch.nan, dtype=torch.float32)
        return Losses({n: torch.stack([terms.get(n, absent) for terms in taken]) for n in names})

    def _descend(self, mixed: MixedBatch, epoch: int) -> dict[str, Tensor]:
        """Draw first: a GPU repeats the step on other rows, not the drawing of them."""
        random_key = RandomKey((self.seed, "adapt", self.version, epoch))
        counts, drawn = self._mini_batch(mixed, random_key)
        terms = self.trained_model.run_or_replay(
            "descend", self._step, drawn, random_key, turn=self.version
        )
        return _with_rows(terms, counts)

    def _step(self, *drawn: Tensor, random_key: RandomKey) -> dict[str, Tensor]:  # noqa: ARG002
        terms = self.backward(lambda: self._terms(*drawn))
        self.optimiser.step()
        return {name: term.detach() for name, term in terms.items()}

    def _terms(self, inputs: Tensor, labels: Tensor, weights: Tensor) -> dict[str, Tensor]:
        """All three, 0 where a term has no rows: sums of weighted rows, whichever they are."""
        logits = self.trained_model(inputs, statistics="running")
        towards = F.cross_entropy(logits, labels, reduction="none")
        complementary = partial(complementary_loss, eps=self.config.complementary_eps)
        away = torch.vmap(complementary)(logits, labels)
        each = torch.stack([towards, away, towards])  # (terms, rows)
        terms = torch.where(weights > 0, weights * each, 0).sum(-1)
        return dict(zip(_TERMS, terms, strict=True))

    def _mini_batch(
        self, mixed: MixedBatch, random_key: RandomKey
    ) -> tuple[list[int], list[Tensor]]:
        """How many rows each term has; and of [correct; incorrect; source-like] rows the inputs,
        labels and weights, of shapes that stay once there are enough of both kinds."""
        n_anchors, n_like = mixed.n_judged, len(self.source_like)
        most = self.config.batch_size
        judged = drawn_rows(n_anchors, most, random_key.at("anchors"))
        like = drawn_rows(n_like, most, random_key.at("source-like"))
        n_right = int((judged < len(mixed.correct)).sum())
        counts = [n_right, len(judged) - n_right, len(like)]
        share = anchor_share(n_anchors, n_like, cold_start=self.config.cold_start)
        device = mixed.inputs.device
        rows = move_to_device(torch.cat([judged, n_anchors + like]), device)
        labels = torch.cat([mixed.correct, mixed.incorrect, self.source_like.labels])
        weights = move_to_device(row_weights(*counts, share=share), device)
        return counts, [mixed.inputs[rows], labels[rows], weights]

    def _drop_momentum(self) -> None:
        """Begin SGD anew, in place: what is captured has the momenta in it."""
        for slot in self.optimiser.state.values():
            if torch.is_tensor(slot.get("momentum_buffer")):
                slot["momentum_buffer"].zero_()

    def _seen(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features and entropies of [anchors; inputs] by the adapted model."""
        both = inputs if self.anchors.inputs is None else torch.cat([self.anchors.inputs, inputs])
        if not len(both):
            return torch.zeros(0, 1), torch.zeros(0)
        features, logits = self.wrapped.features(both, statistics="running")
        return features, entropy(logits)

    def _clusters(self, features: Tensor, candidates: Tensor) -> Clusters:
        """Of [anchors; candidates]."""
        n_anchors = len(self.anchors)
        rows = torch.cat([torch.arange(n_anchors), n_anchors + candidates])
        return self._parted(
            features.cpu()[rows],
            self.anchors.weights,
            n_clusters=self._n_clusters(),
            starts=self.config.starts,
            seed=derive_seed(self.seed, "clusters", self.version),
        )

    def _n_clusters(self) -> int:
        """More on every batch, as anchors get more, and no more than those can become."""
        config = self.config
        return config.clusters + min(self.version * config.cluster_growth, config.max_anchors)


def _with_rows(terms: dict[str, Tensor], counts: list[int]) -> dict[str, Tensor]:
    return {name: terms[name] for name, n_rows in zip(_TERMS, counts, strict=True) if n_rows}
