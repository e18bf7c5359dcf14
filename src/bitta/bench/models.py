"""The source model an experiment asks for."""

import importlib
import inspect
import os
import sys
from contextlib import suppress
from importlib.resources import as_file, files

import torch
from torch import nn

from bitta.bench.experiment import ModelConfig
from bitta.errors import InputError, ModelError, SettingError
from bitta.models import load_model
from bitta.nn import LogitsOf, Network
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
def check_fit(model: nn.Module, stream: Stream, *, logits: LogitsOf) -> None:
    """One small forward before a long run: do shapes and class counts match?"""
    network = Network(model, logits=logits)
    inputs = next(stream.batches()).inputs[:2]
    try:
        n_classes = network(network.accepted(inputs), statistics="running").shape[1]
    except ModelError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the model cannot read images of shape {tuple(inputs.shape[1:])} ({reason})."
        ) from None
    finally:
        network.close()
    n_labels = int(stream.truth.max()) + 1
    if n_labels > n_classes:
        raise InputError(
            f"labels go up to {n_labels - 1}, but the model knows {n_classes} classes "
            f"(0 to {n_classes - 1})."
        )


def _from_factory(text: str) -> nn.Module:
    module, _, function = text.partition(":")
    if not module or not function or module.startswith("."):
        raise SettingError(f'model.factory is {text!r}; "module:function" is needed.')
    try:
        # The console script, unlike `python -m`, does not look in the working directory.
        sys.path.insert(0, os.getcwd())
        factory = getattr(importlib.import_module(module), function)
        with suppress(ValueError):  # builtins have no signature
            inspect.signature(factory).bind()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise SettingError(f"model.factory {text!r} cannot be loaded ({error}).") from None
    except TypeError as error:
        raise SettingError(f"model.factory {text!r} cannot be called ({error}).") from None
    finally:
        sys.path.remove(os.getcwd())
    model = factory()
    if not isinstance(model, nn.Module):
        raise SettingError(f"model.factory {text!r} returned a {type(model).__name__}.")
    return model
