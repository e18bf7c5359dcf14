"""Weighted k-means for SimATTA: clusters of anchors (answered samples) and new samples."""

import math
import random
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitta.errors import SettingError


def import_k_means() -> tuple[Any, type[Warning]]:
    """Return scikit-learn's `KMeans`, and the class of its warning about too few points."""
    random_state = random.getstate()
    try:
        from sklearn.cluster import KMeans  # noqa: PLC0415 (an extra)
        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415
    except ImportError:
        raise SettingError(
            "SimATTA needs scikit-learn, which is not installed; run: pip install 'bitta[cluster]'"
        ) from None
    finally:
        random.setstate(random_state)  # Importing scikit-learn draws a number.
    return KMeans, ConvergenceWarning


def draw_first_centres(
    points: Tensor, masses: Tensor, *, n_clusters: int, starts: int, seed: int
) -> Tensor:
    """Draw the rows of the first centres by k-means++, (starts, clusters).

    Each centre is the best of a few candidates. Points far from the earlier centres are drawn more
    often. The result equals that of scikit-learn, which computes the same distances again for each
    centre of each start. Here they are computed once for all starts.
    """
    n_trials = 2 + int(math.log(n_clusters))
    rng = np.random.RandomState(seed % 2**32)
    drawn = rng.random_sample((starts, 1 + (n_clusters - 1) * n_trials))
    first, later = torch.from_numpy(drawn).tensor_split((1,), dim=1)
    distances = torch.cdist(points, points).square_()
    cumulated = masses.cumsum(0)
    row = torch.searchsorted(cumulated / cumulated[-1], first.contiguous(), right=True).squeeze(1)
    rows, nearest = [row], distances[row]  # (starts, points)
    for shares in later.unflatten(1, (n_clusters - 1, n_trials)).unbind(1):
        cumulated = (nearest * masses).cumsum(1)
        tried = torch.searchsorted(cumulated, shares * cumulated[:, -1:])
        tried = tried.clamp_max_(len(points) - 1)
        nearer = torch.minimum(distances[tried], nearest.unsqueeze(1))  # (starts, trials, points)
        best = (nearer @ masses).argmin(1, keepdim=True)
        rows.append(tried.gather(1, best).squeeze(1))
        nearest = nearer[torch.arange(starts), best.squeeze(1)]
    return torch.stack(rows, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """Cluster of each point, and its distance from the centre. Anchors are the first points."""

    labels: Tensor  # (points,)
    distances: Tensor  # (points,)
    n_anchors: int
    """Number of anchors. The other points are new samples, each of weight 1."""

    @classmethod
    def find(
        cls, features: Tensor, weights: Tensor, *, n_clusters: int, starts: int, seed: int
    ) -> "Clusters":
        """Cluster points, (points, features). `weights` are those of the anchors, the first points.

        The best of `starts` clusterings is returned.
        """
        n_anchors, n_new = len(weights), len(features) - len(weights)
        if n_clusters >= len(features):
            return cls(torch.arange(len(features)), torch.zeros(len(features)), n_anchors)
        k_means, few_points_warning = import_k_means()
        masses = torch.cat([weights.cpu().double(), torch.ones(n_new).double()])
        points = _reduce_dimensions(features.detach().cpu().double())
        rows = draw_first_centres(points, masses, n_clusters=n_clusters, starts=starts, seed=seed)
        centres_by_start = iter(rows.numpy())
        # Elkan's algorithm needs two clusters. Lloyd's changes the thread limit of the process.
        model = k_means(
            n_clusters,
            init=lambda x, *_, **__: x[next(centres_by_start)],
            n_init=starts,
            algorithm="elkan" if n_clusters > 1 else "lloyd",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", few_points_warning)
            model.fit(points.numpy(), sample_weight=masses.numpy())
        labels = torch.from_numpy(model.labels_).long()
        centres = torch.from_numpy(model.cluster_centers_)
        return cls(labels, (points - centres[labels]).norm(dim=1), n_anchors)

    def find_unanchored(self) -> list[tuple[int, int]]:
        """Return the central new sample and the size of each cluster without an anchor.

        The largest cluster comes first. A sample is given by its row among the new samples.
        """
        anchored = set(self.labels[: self.n_anchors].tolist())
        members: dict[int, list[int]] = {}
        for row, label in enumerate(self.labels[self.n_anchors :].tolist()):
            if label not in anchored:
                members.setdefault(label, []).append(row)
        distances = self.distances[self.n_anchors :].tolist()
        found = [(min(rows, key=distances.__getitem__), len(rows)) for rows in members.values()]
        return sorted(found, key=lambda pair: -pair[1])

    def share_new_samples(self, is_representative: Tensor) -> Tensor:
        """Return the number of new samples that each point represents, (points,).

        The representatives in a cluster share its new samples.
        """
        n_clusters = int(self.labels.max()) + 1
        is_new = torch.arange(len(self.labels)) >= self.n_anchors
        sizes = torch.bincount(self.labels[is_new], minlength=n_clusters)
        n_sharing = torch.bincount(self.labels[is_representative], minlength=n_clusters)
        shares = sizes / n_sharing.clamp_min(1)
        return torch.where(is_representative, shares[self.labels], 0.0)


class ClusterCache:
    """Cache of the last clusters. A batch is clustered twice: to choose questions and to learn."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, Tensor, dict[str, int], Clusters] | None = None

    def find(self, features: Tensor, weights: Tensor, **settings: int) -> Clusters:
        """Return the clusters of these points. They are computed once."""
        if self._last is not None:
            last_features, last_weights, last_settings, clusters = self._last
            is_same = settings == last_settings and torch.equal(weights, last_weights)
            if is_same and torch.equal(features, last_features):
                return clusters
        clusters = Clusters.find(features, weights, **settings)
        self._last = features.clone(), weights.clone(), settings, clusters
        return clusters


def _reduce_dimensions(points: Tensor) -> Tensor:
    """Centre and rotate the points, so that they need no more dimensions than there are points."""
    points = points - points.mean(0)
    different, number = points.unique(dim=0, return_inverse=True)
    if different.shape[1] <= different.shape[0]:
        return points
    # Rotate equal points once: rounding must not separate them.
    rotated: Tensor = torch.linalg.qr(different.T, mode="r").R.T
    return rotated[number]
