"""Surgery on any `nn.Module`: borrowed, used, given back as it was."""

from bitta.nn.batchnorm import (
    Call,
    Normaliser,
    RobustNorm,
    Statistics,
    batch_norms,
    scale_and_shift,
)
from bitta.nn.fast.execution import Execution, Precision, explain_out_of_memory
from bitta.nn.mecta import MectaNorm
from bitta.nn.prepared_model import LogitsOf, give_back
from bitta.nn.structure import Sites, below_the_top
from bitta.nn.weights import (
    Snapshot,
    follow,
    perturbed,
    restore_stochastically,
    uphill,
    weight_hash,
)
from bitta.nn.wrapped_model import Sampling, WrappedModel

__all__ = [
    "Call",
    "Execution",
    "LogitsOf",
    "MectaNorm",
    "Normaliser",
    "Precision",
    "RobustNorm",
    "Sampling",
    "Sites",
    "Snapshot",
    "Statistics",
    "WrappedModel",
    "batch_norms",
    "below_the_top",
    "explain_out_of_memory",
    "follow",
    "give_back",
    "perturbed",
    "restore_stochastically",
    "scale_and_shift",
    "uphill",
    "weight_hash",
]
