"""The server's HTTP face: inference, feedback, operation."""

from bitta.server.api.app import create_app
from bitta.server.api.run import serve

__all__ = ["create_app", "serve"]
