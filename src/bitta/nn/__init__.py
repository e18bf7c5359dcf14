"""Surgery on any `nn.Module`: borrowed, used, given back as it was."""

from bitta.nn.execution import Execution, Precision
from bitta.nn.loan import give_back
from bitta.nn.logits import LogitsOf
from bitta.nn.network import Network, Sampling
from bitta.nn.norm import Call, Normaliser, Statistics, batch_norms, scale_and_shift
from bitta.nn.restore import restore_stochastically
from bitta.nn.room import room
from bitta.nn.sites import Sites
from bitta.nn.snapshot import Snapshot, weight_hash

__all__ = [
    "Call",
    "Execution",
    "LogitsOf",
    "Network",
    "Normaliser",
    "Precision",
    "Sampling",
    "Sites",
    "Snapshot",
    "Statistics",
    "batch_norms",
    "give_back",
    "restore_stochastically",
    "room",
    "scale_and_shift",
    "weight_hash",
]
