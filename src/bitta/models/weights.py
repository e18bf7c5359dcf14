"""Weights as safetensors with their card in the header."""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from bitta.errors import InputError
from bitta.models.card import ModelCard
from bitta.models.resnet import CifarResNet, build_model
from bitta.statefile import write_atomically


def save_model(path: str | Path, model: nn.Module, card: ModelCard) -> None:
    """Write weights and card."""
    tensors = {name: tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_atomically(path, save(tensors, metadata={"bitta.model": json.dumps(asdict(card))}))


def load_model(path: str | Path) -> tuple[CifarResNet, ModelCard]:
    """Rebuild a model, ready to serve."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = (file.metadata() or {}).get("bitta.model")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise InputError(f"there are no weights at {str(path)!r}.") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{str(path)!r} is not a readable safetensors file ({error}).") from None
    if header is None:
        raise InputError(
            f"{str(path)!r} does not say which architecture it belongs to; weights written by "
            '"bitta pretrain" do, and model.factory = "module:function" loads any other model.'
        )
    fields = json.loads(header)
    fields |= {"classes": tuple(fields["classes"]), "input_shape": tuple(fields["input_shape"])}
    card = ModelCard(**fields)
    model = build_model(card.architecture, **card.arguments)
    model.load_state_dict({name: tensor.to(torch.float32) if tensor.is_floating_point() else tensor
                           for name, tensor in tensors.items()})  # fmt: skip
    return model.eval(), card
