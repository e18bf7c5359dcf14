"""Surgery on any `nn.Module`: borrowed, used, given back as it was."""

from bitta.nn.blocks import below_the_top
from bitta.nn.ema import follow
from bitta.nn.execution import Execution, Precision
from bitta.nn.loan import give_back
from bitta.nn.logits import LogitsOf
from bitta.nn.mecta import MectaNorm
from bitta.nn.network import Network, Sampling
from bitta.nn.norm import Call, Normaliser, Statistics, batch_norms, scale_and_shift
from bitta.nn.perturb import perturbed
from bitta.nn.restore import restore_stochastically
from bitta.nn.robust import RobustNorm
from bitta.nn.room import room
from bitta.nn.sam import uphill
from bitta.nn.sites import Sites
from bitta.nn.snapshot import Snapshot, weight_hash

__all__ = [
    "Call",
    "Execution",
    "LogitsOf",
    "MectaNorm",
    "Network",
    "Normaliser",
    "Precision",
    "RobustNorm",
    "Sampling",
    "Sites",
    "Snapshot",
    "Statistics",
    "batch_norms",
    "below_the_top",
    "follow",
    "give_back",
    "perturbed",
    "restore_stochastically",
    "room",
    "scale_and_shift",
    "uphill",
    "weight_hash",
]
