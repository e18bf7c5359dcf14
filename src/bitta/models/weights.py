"""Weights as safetensors files with a model card in the header."""

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
    """Travels inside the weight file, so that it cannot be lost or mixed up."""

    architecture: str
    arguments: Mapping[str, Any]
    """Constructor arguments beyond the architecture's own: classes, pixel mean and deviation."""
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    preprocessing: Mapping[str, int] = field(default_factory=dict)
    """How a picture gets to `input_shape`: {"resize": 256, "crop": 224} is shorter side, then
    centre. Empty where images come in their own size."""
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """Percent, by the name of the set it was measured on."""
    source: str = ""
    """What it was trained on."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    terms: str = ""

    def as_text(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str, *, path: str) -> Self:
        """Read what `as_text` wrote; `path` is for the error."""
        try:
            fields = json.loads(text)
            fields |= {name: tuple(fields[name]) for name in ("classes", "input_shape")}
            return cls(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"the card in {path!r} cannot be read ({type(error).__name__}: {error}); "
                "was it written by a newer version?"
            ) from None


_CARD = "bitta.model"
_NAMED = 3
_COUNTER = "num_batches_tracked"


def save_model(
    path: str | Path,
    model: nn.Module,
    card: ModelCard,
    *,
    half: bool = False,
    part_bytes: int | None = None,
) -> list[Path]:
    """Write weights and card; the paths written to.

    `half` stores floats in half precision, but for tensors whose values it cannot hold.
    `part_bytes` is the most a file may take: weights that are larger go into several.
    """
    tensors = {name: tensor.detach().cpu().contiguous()
               for name, tensor in model.state_dict().items()}  # fmt: skip
    if half:
        tensors = {name: halved(tensor) for name, tensor in tensors.items()}
    return write_tensors(path, tensors, {_CARD: card.as_text()}, part_bytes=part_bytes)


def load_model(path: str | Path) -> tuple[nn.Module, ModelCard]:
    """Rebuild a model, ready to serve; `path` is that of the file, of its parts' whole or of one.

    Weights come in full precision whatever they were stored in.
    """
    tensors, metadata = read_tensors(path)
    card = _card_in(metadata, path)
    model = build_model(card.architecture, **card.arguments)
    load_weights(model, tensors, path=str(path), architecture=card.architecture)
    return model.eval(), card


def read_card(path: str | Path) -> ModelCard:
    """The card alone, without reading weights."""
    return _card_in(read_metadata(path), path)


def load_weights(
    model: nn.Module, tensors: Mapping[str, Tensor], *, path: str, architecture: str
) -> None:
    """Put tensors into a model, key for key; counters of batches may be missing."""
    needed = model.state_dict()
    missing = [name for name in needed if name not in tensors and not name.endswith(_COUNTER)]
    strange = [name for name in tensors if name not in needed]
    unlike = [
        f"{name} is {tuple(tensor.shape)} instead of {tuple(needed[name].shape)}"
        for name, tensor in tensors.items()
        if name in needed and tensor.shape != needed[name].shape
    ]
    if missing or strange or unlike:
        faults = (
            *_counted(missing, "key is missing", "keys are missing"),
            *_counted(strange, "key is unknown", "keys are unknown"),
            *_counted(unlike, "shape differs", "shapes differ"),
        )
        raise ModelError(
            f"the weights in {path!r} do not fit {architecture}: {'; '.join(faults)}. "
            "Give the architecture and the number of classes they were trained with."
        )
    model.load_state_dict(
        {name: tensor.float() if tensor.is_floating_point() else tensor
         for name, tensor in tensors.items()},
        strict=False,
    )  # fmt: skip


def _card_in(metadata: Mapping[str, str], path: str | Path) -> ModelCard:
    if _CARD not in metadata:
        raise InputError(
            f"{str(path)!r} does not say which architecture it belongs to; "
            '"bitta models import" adds that, and model.factory = "module:function" loads any '
            "other model."
        )
    return ModelCard.from_text(metadata[_CARD], path=str(path))


def halved(tensor: Tensor) -> Tensor:
    """In half precision, unless it is no float or holds values that half precision cannot."""
    if not tensor.is_floating_point():
        return tensor
    half = tensor.to(torch.float16)
    return half if half.isfinite().all() else tensor


def _counted(names: Sequence[str], one: str, several: str) -> list[str]:
    """["3 keys are missing (a, b, c, ...)"], or nothing."""
    if not names:
        return []
    more = ", ..." if len(names) > _NAMED else ""
    what = one if len(names) == 1 else several
    return [f"{len(names)} {what} ({', '.join(names[:_NAMED])}{more})"]
