"""Weights in safetensors files with a model card in the header."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitta.errors import InputError, ModelError
from bitta.models.architectures import build_model
from bitta.models.tensor_files import read_metadata, read_tensors, write_tensors


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Description of a model, stored in the header of its weights file."""

    architecture: str
    arguments: Mapping[str, Any]
    """Arguments of `build_model`: n_classes, mean, std, and changes to the architecture."""
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    preprocessing: Mapping[str, int] = field(default_factory=dict)
    """Resizing of the shorter side, then crop of the centre: {"resize": 256, "crop": 224}. Empty if
    images already have the `input_shape`."""
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """Accuracy in percent, by the name of the test set."""
    source: str = ""
    """Training data."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the training."""
    terms: str = ""
    """Licence or terms of use."""

    def as_text(self) -> str:
        """Return the card as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str, *, path: str) -> Self:
        """Read a card from the JSON of `as_text`. `path` is used in the error message."""
        try:
            fields = json.loads(text)
            fields |= {name: tuple(fields[name]) for name in ("classes", "input_shape")}
            return cls(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"the card in {path!r} cannot be read ({type(error).__name__}: {error}); if a "
                "newer version of bitta wrote it, update bitta."
            ) from None


_CARD = "bitta.model"
_N_SHOWN_NAMES = 3
_COUNTER = "num_batches_tracked"


def save_model(
    path: str | Path,
    model: nn.Module,
    card: ModelCard,
    *,
    half: bool = False,
    part_bytes: int | None = None,
) -> list[Path]:
    """Write weights and card, and return the paths of the files.

    `half` stores floats in half precision, except for tensors with values that it cannot hold.
    `part_bytes` is the maximum size of a file. Larger weights are split into parts.
    """
    tensors = {name: tensor.detach().cpu().contiguous()
               for name, tensor in model.state_dict().items()}  # fmt: skip
    if half:
        tensors = {name: to_half_precision(tensor) for name, tensor in tensors.items()}
    return write_tensors(path, tensors, {_CARD: card.as_text()}, part_bytes=part_bytes)


def load_model(path: str | Path) -> tuple[nn.Module, ModelCard]:
    """Load a model in evaluation mode, with weights in single precision.

    `path` is the path of the file, or of any of its parts.
    """
    tensors, metadata = read_tensors(path)
    card = _parse_card(metadata, path)
    model = build_model(card.architecture, **card.arguments)
    load_weights(model, tensors, path=str(path), architecture=card.architecture)
    return model.eval(), card


def read_card(path: str | Path) -> ModelCard:
    """Read only the card, without the weights."""
    return _parse_card(read_metadata(path), path)


def load_weights(
    model: nn.Module, tensors: Mapping[str, Tensor], *, path: str, architecture: str
) -> None:
    """Load tensors into a model by name. Batch counters may be missing."""
    needed = model.state_dict()
    missing = [name for name in needed if name not in tensors and not name.endswith(_COUNTER)]
    unknown = [name for name in tensors if name not in needed]
    mismatched = [
        f"{name} is {tuple(tensor.shape)} instead of {tuple(needed[name].shape)}"
        for name, tensor in tensors.items()
        if name in needed and tensor.shape != needed[name].shape
    ]
    if missing or unknown or mismatched:
        problems = (
            *_count_names(missing, "key is missing", "keys are missing"),
            *_count_names(unknown, "key is unknown", "keys are unknown"),
            *_count_names(mismatched, "shape differs", "shapes differ"),
        )
        raise ModelError(
            f"the weights in {path!r} do not fit {architecture}: {'; '.join(problems)}. "
            "Give the architecture and the number of classes they were trained with."
        )
    model.load_state_dict(
        {name: tensor.float() if tensor.is_floating_point() else tensor
         for name, tensor in tensors.items()},
        strict=False,
    )  # fmt: skip


def _parse_card(metadata: Mapping[str, str], path: str | Path) -> ModelCard:
    if _CARD not in metadata:
        raise InputError(
            f"{str(path)!r} does not say which architecture it belongs to; "
            '"bitta models import" adds that, and model.factory = "module:function" loads any '
            "other model."
        )
    return ModelCard.from_text(metadata[_CARD], path=str(path))


def to_half_precision(tensor: Tensor) -> Tensor:
    """Return a tensor in half precision, or unchanged if it holds integers or too large values."""
    if not tensor.is_floating_point():
        return tensor
    half = tensor.to(torch.float16)
    return half if half.isfinite().all() else tensor


def _count_names(names: Sequence[str], singular: str, plural: str) -> list[str]:
    """Return ["3 keys are missing (a, b, c, ...)"], or an empty list."""
    if not names:
        return []
    more = ", ..." if len(names) > _N_SHOWN_NAMES else ""
    noun = singular if len(names) == 1 else plural
    return [f"{len(names)} {noun} ({', '.join(names[:_N_SHOWN_NAMES])}{more})"]
