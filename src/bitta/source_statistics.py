"""Source statistics that some methods need: feature moments and Fisher information."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitta.errors import InputError, ModelError, SettingError
from bitta.nn import SavedWeights, WrappedModel, norm_parameters, weight_hash
from bitta.statefile import load_state, save_state
from bitta.types import State

_KIND = "source statistics"
_MINI_BATCH = 64  # Rows per squared gradient, as in the code of EATA's authors.
_HOW_TO_MAKE = 'make them with "bitta statistics"'


@dataclass(frozen=True, eq=False)
class SourceStatistics:
    """Statistics over training images of a model, stored in a file beside its weights."""

    prototypes: Tensor  # (classes, features)
    """Mean feature by predicted class; zero for a class that was never predicted."""
    mean: Tensor  # (features,)
    covariance: Tensor  # (features, features)
    """Covariance of the features, with the number of images as divisor."""
    fisher: Mapping[str, Tensor]
    """Diagonal Fisher information of scale and shift of normalisation layers, by name."""
    n: int
    """Number of images."""
    weights: str
    """Hash of the model's weights."""

    @classmethod
    def compute(
        cls, wrapped: WrappedModel, batches: Iterable[Tensor], *, fisher_samples: int = 2000
    ) -> Self:
        """Compute the statistics of source images.

        The Fisher information is computed from the first `fisher_samples` images.
        """
        moments, fisher = _FeatureSums(), FisherInformation(wrapped, fisher_samples)
        for batch in batches:
            inputs = wrapped.prepare_inputs(batch)
            with torch.no_grad():
                moments.add(*wrapped.features(inputs, statistics="running"))
            fisher.add(inputs)
        if not moments.n:
            raise InputError("no images were given; source statistics need at least one.")
        mean = moments.sum / moments.n
        covariance = moments.outer / moments.n - torch.outer(mean, mean)
        counts = moments.counts.clamp_min(1).unsqueeze(1)
        return cls(
            prototypes=(moments.by_class / counts).float().cpu(),
            mean=mean.float().cpu(),
            covariance=covariance.float().cpu(),
            fisher={name: value.cpu() for name, value in fisher.mean().items()},
            n=moments.n,
            weights=weight_hash(wrapped.model),
        )

    def save(self, path: str | Path) -> None:
        """Write one safetensors file."""
        save_state(path, {"kind": _KIND, **asdict(self)})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file written by `save`."""
        state = load_state(path)
        if state.pop("kind", None) != _KIND:
            raise InputError(f"{str(path)!r} holds no source statistics; {_HOW_TO_MAKE}.")
        return cls(**state)

    @classmethod
    def load_for(cls, path: str, model: nn.Module, *, method: str) -> Self:
        """Read the file of the setting `source_statistics`. Check that the shapes fit the model."""
        if not path:
            raise SettingError(
                f"{method} needs source statistics, and source_statistics names no file; "
                f"{_HOW_TO_MAKE}."
            )
        statistics = cls.load(path)
        shapes = [m.weight.shape for m in model.modules() if isinstance(m, nn.Linear)]
        if statistics.prototypes.shape not in shapes:
            classes, features = statistics.prototypes.shape
            raise ModelError(
                f"{path!r} holds statistics of {features} features and {classes} classes, but "
                f"{type(model).__name__} has no such last layer; {_HOW_TO_MAKE} from this model."
            )
        return statistics

    def require_source(self, source: nn.Module | SavedWeights, *, path: str) -> None:
        """Raise an error if the statistics belong to other weights."""
        given = weight_hash(source)
        if given != self.weights:
            raise ModelError(
                f"{path!r} holds statistics of a model with weights {self.weights[:12]}, and the "
                f"weights of this model are {given[:12]}; {_HOW_TO_MAKE} from this model."
            )


class _FeatureSums:
    """Sums of features in double precision."""

    def __init__(self) -> None:
        self.n = 0
        self.sum = self.outer = self.by_class = self.counts = torch.zeros(0)

    def add(self, features: Tensor, logits: Tensor) -> None:
        """Add a batch."""
        features, chosen = features.double(), F.one_hot(logits.argmax(-1), logits.shape[-1])
        if not self.n:
            n_features, n_classes = features.shape[1], logits.shape[1]
            self.sum = features.new_zeros(n_features)
            self.outer = features.new_zeros(n_features, n_features)
            self.by_class = features.new_zeros(n_classes, n_features)
            self.counts = features.new_zeros(n_classes)
        self.n += len(features)
        self.sum += features.sum(0)
        self.outer += features.T @ features
        self.by_class += chosen.to(features).T @ features
        self.counts += chosen.sum(0)


class FisherInformation:
    """Diagonal Fisher information of scale and shift of the normalisation layers, as in EATA.

    It is the mean, over mini-batches, of the squared gradient of the cross-entropy with the
    predicted labels. Each mini-batch is normalised by its own statistics. At most `n_samples`
    samples are used.
    """

    def __init__(self, wrapped: WrappedModel, n_samples: int) -> None:
        self.wrapped = wrapped
        self._max_samples = n_samples
        self._n_samples = self._n_batches = 0
        chosen = {id(parameter) for parameter in norm_parameters(wrapped.model)}
        named = wrapped.model.named_parameters()
        self._parameters = {name: p for name, p in named if id(p) in chosen}
        self._sums = {name: torch.zeros_like(p) for name, p in self._parameters.items()}

    @property
    def is_complete(self) -> bool:
        """True if the maximum number of samples was added."""
        return self._n_samples >= self._max_samples

    def add(self, inputs: Tensor) -> None:
        """Add a batch, up to the maximum number of samples."""
        if self._parameters and not self.is_complete:
            for batch in inputs[: self._max_samples - self._n_samples].split(_MINI_BATCH):
                self._add_mini_batch(batch)

    def mean(self) -> dict[str, Tensor]:
        """Return the information by parameter name; empty before the first batch."""
        if not self._n_batches:
            return {}
        return {name: total / self._n_batches for name, total in self._sums.items()}

    def state_dict(self) -> State:
        """Return the sums and the numbers of samples and batches."""
        return {
            "sums": dict(self._sums), "n_samples": self._n_samples, "n_batches": self._n_batches
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        for name, total in state["sums"].items():
            self._sums[name].copy_(total)
        self._n_samples, self._n_batches = state["n_samples"], state["n_batches"]

    def _add_mini_batch(self, batch: Tensor) -> None:
        parameters = list(self._parameters.values())
        with torch.enable_grad(), _requiring_gradients(parameters):
            logits = self.wrapped(batch, statistics="batch")
            loss = F.cross_entropy(logits, logits.detach().argmax(-1))
            with self.wrapped.execution.tf32_mode():
                gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        for total, gradient in zip(self._sums.values(), gradients, strict=True):
            total.add_(gradient.square())
        self.wrapped.counts.backwards += len(batch)
        self._n_samples += len(batch)
        self._n_batches += 1


@contextmanager
def _requiring_gradients(parameters: list[nn.Parameter]) -> Iterator[None]:
    before = [parameter.requires_grad for parameter in parameters]
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter, flag in zip(parameters, before, strict=True):
            parameter.requires_grad_(flag)
