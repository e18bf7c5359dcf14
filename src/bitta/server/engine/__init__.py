"""The model behind a server, and the one thread that owns it."""

from bitta.server.engine.config import EngineConfig
from bitta.server.engine.engine import Engine, Overloaded, Status
from bitta.server.engine.learner import LearnerConfig
from bitta.server.engine.ledger import Served

__all__ = ["Engine", "EngineConfig", "LearnerConfig", "Overloaded", "Served", "Status"]
