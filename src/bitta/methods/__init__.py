"""Table of all methods by name."""

from collections.abc import Mapping
from typing import Any

from bitta.errors import unknown_name_error
from bitta.methods.base import Adapter
from bitta.methods.bitta import Bitta
from bitta.methods.cotta import Cotta
from bitta.methods.deyo import Deyo
from bitta.methods.eata import Eata, Eta
from bitta.methods.owttt import Owttt
from bitta.methods.rotta import Rotta
from bitta.methods.sar import Sar
from bitta.methods.self_tuning import SelfTuning
from bitta.methods.simatta import Simatta
from bitta.methods.sotta import Sotta
from bitta.methods.source import BNStats, Source
from bitta.methods.tast import Tast
from bitta.methods.tent import Tent

METHODS: Mapping[str, type[Adapter[Any]]] = {
    "source": Source,
    "bn_stats": BNStats,
    "tent": Tent,
    "eta": Eta,
    "eata": Eata,
    "sar": Sar,
    "cotta": Cotta,
    "rotta": Rotta,
    "sotta": Sotta,
    "deyo": Deyo,
    "tast": Tast,
    "owttt": Owttt,
    "simatta": Simatta,
    "bitta": Bitta,
    "self_tuning": SelfTuning,
}


def get_method(name: str) -> type[Adapter[Any]]:
    """Return the method of that name. An error suggests the nearest known name."""
    if name not in METHODS:
        raise unknown_name_error("method", name, METHODS, hint='Run "bitta methods" for the list.')
    return METHODS[name]
