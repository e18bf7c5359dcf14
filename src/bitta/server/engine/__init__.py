"""The served model, and the thread that owns it."""

from bitta.server.engine.engine import Engine, EngineOverloadedError, ServingStatus
from bitta.server.engine.served_log import ServedPredictions

__all__ = ["Engine", "EngineOverloadedError", "ServedPredictions", "ServingStatus"]
