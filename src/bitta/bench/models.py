"""The source model an experiment asks for."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bitta.bench.experiment import ModelConfig
from bitta.errors import InputError, ModelError
from bitta.models import ModelCard, call_model_factory, load_model, weights_path
from bitta.nn import LogitsOf, WrappedModel


class Restricted(nn.Module):
    """A classifier held to some of its classes, in the order of a stream's labels."""

    columns: Tensor

    def __init__(self, model: nn.Module, columns: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("columns", torch.tensor(columns), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """(batch, columns) logits."""
        logits: Tensor = self.model(inputs)[:, self.columns]
        return logits


def build_source(config: ModelConfig) -> tuple[nn.Module, ModelCard | None]:
    """Load weights with their card, or call the user's factory."""
    if config.factory:
        return call_model_factory(config.factory, of="model.factory"), None
    with weights_path(config.weights) as path:
        return load_model(path)


def wanted_size(card: ModelCard | None) -> Mapping[str, int]:
    """How the model wants pictures brought to size: as its card says, or to that of its input."""
    if card is None or card.preprocessing or len(card.input_shape) != 3:
        return card.preprocessing if card else {}
    return {"resize": card.input_shape[-1], "crop": card.input_shape[-1]}


def restricted(model: nn.Module, card: ModelCard | None, classes: Sequence[str]) -> nn.Module:
    """The model's outputs in the order of a stream's classes, where both name theirs.

    As many classes under names none of which it knows are taken to be in the model's order.
    """
    known = card.classes if card else ()
    if not known or not classes or tuple(classes) == known:
        return model
    strange = [name for name in classes if name not in known]
    if not strange and len(set(known)) == len(known):
        return Restricted(model, [known.index(name) for name in classes]).eval()
    if len(classes) == len(known) and len(strange) in (0, len(classes)):
        return model
    raise InputError(
        f"the stream's {len(classes)} classes, {strange[0]!r} among them, and the model's "
        f"{len(known)}, {known[0]!r} among them, are not the same; give a model of the stream's "
        "classes, or name both alike."
    )


@torch.no_grad()
def check_fit(model: nn.Module, inputs: Tensor, truth: Tensor, *, logits: LogitsOf) -> None:
    """One small forward before a long run: do shapes and class counts match?

    `inputs` are a few of the stream, `truth` is every label of it.
    """
    wrapped = WrappedModel(model, logits=logits)
    try:
        n_classes = wrapped(wrapped.prepare_inputs(inputs), statistics="running").shape[1]
    except ModelError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the model cannot read images of shape {tuple(inputs.shape[1:])} ({reason})."
        ) from None
    finally:
        wrapped.close()
    n_labels = int(truth.max()) + 1
    if n_labels > n_classes:
        raise InputError(
            f"labels go up to {n_labels - 1}, but the model knows {n_classes} classes "
            f"(0 to {n_classes - 1})."
        )
