"""Classifiers, and weights files with a model card."""

from bitta.models.architectures import (
    ARCHITECTURES,
    Architecture,
    build_model,
    call_factory,
    call_model_factory,
    import_object,
    initialise,
)
from bitta.models.catalogue import (
    WeightsEntry,
    describe_weights,
    embedded_names,
    list_weights,
    weights_path,
)
from bitta.models.checkpoints import ImportedModel, import_checkpoint
from bitta.models.tensor_files import check_weights_path
from bitta.models.weights import ModelCard, load_model, read_card, save_model, to_half_precision

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "ImportedModel",
    "ModelCard",
    "WeightsEntry",
    "build_model",
    "call_factory",
    "call_model_factory",
    "check_weights_path",
    "describe_weights",
    "embedded_names",
    "import_checkpoint",
    "import_object",
    "initialise",
    "list_weights",
    "load_model",
    "read_card",
    "save_model",
    "to_half_precision",
    "weights_path",
]
