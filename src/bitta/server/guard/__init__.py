"""What watches the model while it learns: estimates, verdicts, time; nothing here does I/O."""

from bitta.server.guard.audits import Audited, SameAsSource
from bitta.server.guard.collapse import CollapseDetector, Verdict, Window
from bitta.server.guard.drift import History, Point
from bitta.server.guard.duty import DutyCycle
from bitta.server.guard.latency import Latencies
from bitta.server.guard.settings import GuardConfig
from bitta.server.guard.wilson import Interval, wilson

__all__ = [
    "Audited",
    "CollapseDetector",
    "DutyCycle",
    "GuardConfig",
    "History",
    "Interval",
    "Latencies",
    "Point",
    "SameAsSource",
    "Verdict",
    "Window",
    "wilson",
]
