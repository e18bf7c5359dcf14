"""The source model and the device of an experiment."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bitta.bench.experiment import ModelConfig
from bitta.errors import InputError, ModelError, SettingError
from bitta.models import ModelCard, call_model_factory, load_model, weights_path
from bitta.nn import LogitsPosition, WrappedModel


class ClassSubset(nn.Module):
    """A classifier restricted to some of its classes, in the order of the stream's labels."""

    columns: Tensor

    def __init__(self, model: nn.Module, columns: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("columns", torch.tensor(columns), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (batch, columns) logits."""
        logits: Tensor = self.model(inputs)[:, self.columns]
        return logits


def load_source_model(config: ModelConfig) -> tuple[nn.Module, ModelCard | None]:
    """Load weights with their card, or call the user's factory, which has no card."""
    if config.factory:
        return call_model_factory(config.factory, of="model.factory"), None
    with weights_path(config.weights) as path:
        return load_model(path)


def image_size_of(card: ModelCard | None) -> Mapping[str, int]:
    """Return resize and crop of the images: those of the card, or else the input size."""
    if card is None or card.preprocessing or len(card.input_shape) != 3:
        return card.preprocessing if card else {}
    return {"resize": card.input_shape[-1], "crop": card.input_shape[-1]}


def match_classes(model: nn.Module, card: ModelCard | None, classes: Sequence[str]) -> nn.Module:
    """Return a model with outputs in the order of the stream's classes, if both have names.

    If the model knows none of the names, but the number of classes is the same, its order is kept.
    """
    known = card.classes if card else ()
    if not known or not classes or tuple(classes) == known:
        return model
    unknown = [name for name in classes if name not in known]
    if not unknown and len(set(known)) == len(known):
        return ClassSubset(model, [known.index(name) for name in classes]).eval()
    if len(classes) == len(known) and len(unknown) in (0, len(classes)):
        return model
    raise InputError(
        f"the stream has {len(classes)} classes, such as {unknown[0]!r}, but the model has "
        f"{len(known)} others, such as {known[0]!r}; give a model with the stream's classes, or "
        "use the same class names in both."
    )


@torch.no_grad()
def check_fit(model: nn.Module, inputs: Tensor, truth: Tensor, *, logits: LogitsPosition) -> None:
    """Check with one small forward pass that the shapes and numbers of classes match.

    `inputs` are a few images of the stream, `truth` holds all labels of the stream.
    """
    wrapped = WrappedModel(model, logits=logits)
    try:
        n_classes = wrapped(wrapped.prepare_inputs(inputs), statistics="running").shape[1]
    except ModelError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the model cannot read images of shape {tuple(inputs.shape[1:])} ({reason}); give "
            "images of another size, or another model."
        ) from None
    finally:
        wrapped.close()
    n_labels = int(truth.max()) + 1
    if n_labels > n_classes:
        raise InputError(
            f"labels go up to {n_labels - 1}, but the model knows {n_classes} classes "
            f"(0 to {n_classes - 1}); give a model with more classes, or check the labels."
        )


def device_named(name: str) -> torch.device:
    """Return the device with this name. Raise an error if the machine does not have it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise SettingError(f"device is {name!r}; allowed: cpu, cuda, cuda:1 ...") from None
    if device.type not in ("cpu", "cuda"):
        raise SettingError(f"device is {name!r}; allowed: cpu, cuda, cuda:1 ...")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise SettingError(
            f"device is {name!r}, but torch sees {torch.cuda.device_count()} CUDA devices; use cpu."
        )
    return device
