"""Classifiers, and weights that know what they are."""

from bitta.models.architectures import (
    ARCHITECTURES,
    Architecture,
    build_model,
    from_factory,
    initialise,
)
from bitta.models.catalogue import Entry, catalogue, embedded_names, entry_of, weights_at
from bitta.models.checkpoints import Imported, import_checkpoint
from bitta.models.tensor_files import check_target
from bitta.models.weights import ModelCard, halved, load_model, read_card, save_model

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Entry",
    "Imported",
    "ModelCard",
    "build_model",
    "catalogue",
    "check_target",
    "embedded_names",
    "entry_of",
    "from_factory",
    "halved",
    "import_checkpoint",
    "initialise",
    "load_model",
    "read_card",
    "save_model",
    "weights_at",
]
