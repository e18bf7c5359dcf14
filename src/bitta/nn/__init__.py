"""Temporary changes to any `nn.Module`: BatchNorm statistics, dropout, fast execution."""

from bitta.nn.batchnorm import (
    BatchNormCall,
    Normaliser,
    RobustNorm,
    Statistics,
    batch_norms,
    norm_parameters,
)
from bitta.nn.fast.execution import Execution, Precision, explain_out_of_memory
from bitta.nn.mc_dropout import FORWARD_ERRORS
from bitta.nn.prepare_and_restore import (
    LogitsPosition,
    ModelRestorer,
    explain_forward_error,
    restore_model,
)
from bitta.nn.structure import Sites, norm_parameters_below_top
from bitta.nn.weights import (
    SavedWeights,
    named_tensors,
    perturbed_weights,
    restore_stochastically,
    sam_ascent,
    update_teacher,
    weight_hash,
)
from bitta.nn.wrapped_model import SamplingSettings, WrappedModel

__all__ = [
    "FORWARD_ERRORS",
    "BatchNormCall",
    "Execution",
    "LogitsPosition",
    "ModelRestorer",
    "Normaliser",
    "Precision",
    "RobustNorm",
    "SamplingSettings",
    "SavedWeights",
    "Sites",
    "Statistics",
    "WrappedModel",
    "batch_norms",
    "explain_forward_error",
    "explain_out_of_memory",
    "named_tensors",
    "norm_parameters",
    "norm_parameters_below_top",
    "perturbed_weights",
    "restore_model",
    "restore_stochastically",
    "sam_ascent",
    "update_teacher",
    "weight_hash",
]
