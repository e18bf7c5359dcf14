"""BN-Stats: normalise each batch by its own statistics.

Nado et al., 2020, https://arxiv.org/abs/2006.10963; Schneider et al., NeurIPS 2020.
Departures: none known. A model without BatchNorm is served as it is.
"""

from typing import ClassVar

from bitta.methods.source import Source
from bitta.nn import Statistics


class BNStats(Source):
    """Replace the source statistics by those of the batch being served."""

    paper: ClassVar[str] = "Nado et al., 2020"
    statistics: Statistics = "batch"
    policy_statistics: Statistics = "batch"
