"""Classifiers, and weights that know what they are."""

from bitta.models.card import ModelCard
from bitta.models.resnet import ARCHITECTURES, CifarResNet, build_model, initialise
from bitta.models.weights import load_model, save_model

__all__ = [
    "ARCHITECTURES",
    "CifarResNet",
    "ModelCard",
    "build_model",
    "initialise",
    "load_model",
    "save_model",
]
