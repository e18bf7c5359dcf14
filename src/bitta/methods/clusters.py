"""What is worth clustering, and weighted k-means over its features; needs scikit-learn."""

import math
import random
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitta.errors import SettingError


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
    chance = random.getstate()
    try:
        from sklearn.cluster import KMeans  # noqa: PLC0415 (an extra)
        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415
    except ImportError:
        raise SettingError(
            "SimATTA finds clusters with scikit-learn, which is not installed; "
            "run: pip install 'bitta[cluster]'"
        ) from None
    finally:
        random.setstate(chance)  # importing it draws a number
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
    chance = np.random.RandomState(seed % 2**32)
    drawn = chance.random_sample((starts, 1 + (n_clusters - 1) * trials))
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
