"""What a method may know of the source: features and Fisher information of training images."""

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
_MINI_BATCH = 64  # of whose gradient the square is taken: EATA's authors' size
_MAKE = 'make them with "bitta statistics"'


@dataclass(frozen=True, eq=False)
class SourceStatistics:
    """Sums over training images of a model, made once and carried beside its weights."""

    prototypes: Tensor  # (classes, features)
    """Mean feature by predicted class; zero where a class was never predicted."""
    mean: Tensor  # (features,)
    covariance: Tensor  # (features, features)
    """Of all features, divided by their number."""
    fisher: Mapping[str, Tensor]
    """Diagonal Fisher information of scale and shift of normalisation layers, by name."""
    n: int
    """How many images were looked at."""
    weights: str
    """Hash of the model they were made with."""

    @classmethod
    def of(
        cls, wrapped: WrappedModel, batches: Iterable[Tensor], *, fisher_samples: int = 2000
    ) -> Self:
        """Look at images of the source; the Fisher information sees the first of them only."""
        moments, fisher = _Moments(), Fisher(wrapped, fisher_samples)
        for batch in batches:
            inputs = wrapped.prepare_inputs(batch)
            with torch.no_grad():
                moments.add(*wrapped.features(inputs, statistics="running"))
            fisher.add(inputs)
        if not moments.n:
            raise InputError("there are no images to take statistics of; give some.")
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
        """Read what `save` wrote."""
        state = load_state(path)
        if state.pop("kind", None) != _KIND:
            raise InputError(f"{str(path)!r} holds no source statistics; {_MAKE}.")
        return cls(**state)

    @classmethod
    def needed(cls, path: str, model: nn.Module, *, by: str) -> Self:
        """Those in the file a setting names, as far as can be seen of this kind of model."""
        if not path:
            raise SettingError(
                f"{by} needs statistics of the source and source_statistics names no file; {_MAKE}."
            )
        found = cls.load(path)
        shapes = [m.weight.shape for m in model.modules() if isinstance(m, nn.Linear)]
        if found.prototypes.shape not in shapes:
            classes, features = found.prototypes.shape
            raise ModelError(
                f"{path!r} holds statistics of {features} features of {classes} classes, and "
                f"{type(model).__name__} has no such last layer; {_MAKE} from this model."
            )
        return found

    def require_source(self, source: nn.Module | SavedWeights, *, path: str) -> None:
        """Refuse statistics of other weights: their features mean something else."""
        here = weight_hash(source)
        if here != self.weights:
            raise ModelError(
                f"{path!r} holds statistics of a model with weights {self.weights[:12]}, and this "
                f"one's are {here[:12]}; {_MAKE} from this model."
            )


class _Moments:
    """Sums of features, in double precision."""

    def __init__(self) -> None:
        self.n = 0
        self.sum = self.outer = self.by_class = self.counts = torch.zeros(0)

    def add(self, features: Tensor, logits: Tensor) -> None:
        """Take in a batch."""
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


class Fisher:
    """Mean over mini-batches of the squared gradient of CE(f, argmax f), by their own statistics.

    Of scale and shift of normalisation layers, as EATA has it; over so many samples at most.
    """

    def __init__(self, wrapped: WrappedModel, n_samples: int) -> None:
        self.wrapped = wrapped
        self._wanted = n_samples
        self._n_samples = self._n_batches = 0
        chosen = {id(parameter) for parameter in norm_parameters(wrapped.model)}
        named = wrapped.model.named_parameters()
        self._parameters = {name: p for name, p in named if id(p) in chosen}
        self._sums = {name: torch.zeros_like(p) for name, p in self._parameters.items()}

    @property
    def complete(self) -> bool:
        """Whether it has seen all the samples it wants."""
        return self._n_samples >= self._wanted

    def add(self, inputs: Tensor) -> None:
        """Take in a batch, or what of it is still wanted."""
        if self._parameters and not self.complete:
            for batch in inputs[: self._wanted - self._n_samples].split(_MINI_BATCH):
                self._add(batch)

    def mean(self) -> dict[str, Tensor]:
        """By name; nothing where no batch was looked at."""
        if not self._n_batches:
            return {}
        return {name: total / self._n_batches for name, total in self._sums.items()}

    def state_dict(self) -> State:
        """The sums, and of how many."""
        return {
            "sums": dict(self._sums), "n_samples": self._n_samples, "n_batches": self._n_batches
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Go on from a saved state."""
        for name, total in state["sums"].items():
            self._sums[name].copy_(total)
        self._n_samples, self._n_batches = state["n_samples"], state["n_batches"]

    def _add(self, batch: Tensor) -> None:
        parameters = list(self._parameters.values())
        with torch.enable_grad(), _with_gradient(parameters):
            logits = self.wrapped(batch, statistics="batch")
            loss = F.cross_entropy(logits, logits.detach().argmax(-1))
            with self.wrapped.execution.arithmetic():
                gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        for total, gradient in zip(self._sums.values(), gradients, strict=True):
            total.add_(gradient.square())
        self.wrapped.counts.backwards += len(batch)
        self._n_samples += len(batch)
        self._n_batches += 1


@contextmanager
def _with_gradient(parameters: list[nn.Parameter]) -> Iterator[None]:
    before = [parameter.requires_grad for parameter in parameters]
    for parameter in parameters:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter, flag in zip(parameters, before, strict=True):
            parameter.requires_grad_(flag)
