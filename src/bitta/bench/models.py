"""The source model an experiment asks for."""

import importlib
from importlib.resources import as_file, files

import torch
from torch import nn

from bitta.bench.experiment import ModelConfig
from bitta.errors import InputError, ModelError, SettingError
from bitta.models import load_model
from bitta.streams import Stream

_EMBEDDED = "embedded:"


def build_source(config: ModelConfig) -> nn.Module:
    """Load weights, or call the user's factory."""
    if config.factory:
        return _from_factory(config.factory)
    if not config.weights.startswith(_EMBEDDED):
        return load_model(config.weights)[0]
    name = config.weights.removeprefix(_EMBEDDED)
    asset = files("bitta") / "assets" / f"{name}.safetensors"
    if not asset.is_file():
        raise SettingError(
            f"model.weights is {config.weights!r}; embedded are digits-resnet8, cifar10-resnet8."
        )
    with as_file(asset) as path:
        return load_model(path)[0]


@torch.no_grad()
def check_fit(model: nn.Module, stream: Stream, *, logits: str) -> None:
    """One small forward before a long run: do shapes and class counts match?"""
    inputs = next(stream.batches()).inputs[:2]
    try:
        output = model.eval()(inputs)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the model cannot read images of shape {tuple(inputs.shape[1:])} ({reason})."
        ) from None
    output = getattr(output, logits, None) if logits else output
    if not isinstance(output, torch.Tensor) or output.dim() != 2:
        raise ModelError("the model does not return logits (batch, classes); see model.logits.")
    n_labels = int(stream.truth.max()) + 1
    if n_labels > output.shape[1]:
        raise InputError(
            f"labels go up to {n_labels - 1}, but the model knows {output.shape[1]} classes "
            f"(0 to {output.shape[1] - 1})."
        )


def _from_factory(text: str) -> nn.Module:
    module, _, function = text.partition(":")
    if not module or not function:
        raise SettingError(f'model.factory is {text!r}; "module:function" is needed.')
    try:
        model = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise SettingError(f"model.factory {text!r} cannot be loaded ({error}).") from None
    if not isinstance(model, nn.Module):
        raise SettingError(f"model.factory {text!r} returned a {type(model).__name__}.")
    return model
