"""What is worth clustering, and weighted k-means over its features; needs scikit-learn."""

import random
import warnings
from dataclasses import dataclass
from typing import Any

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
        points = features.detach().cpu().double()
        masses = torch.cat([weights.cpu().double(), torch.ones(n_new).double()])
        # Elkan's algorithm is not for a single cluster.
        algorithm = "elkan" if n_clusters > 1 else "lloyd"
        model = kind(n_clusters, n_init=starts, algorithm=algorithm, random_state=seed % 2**32)
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
