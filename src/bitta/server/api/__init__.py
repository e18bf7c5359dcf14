"""HTTP API of the server: inference, feedback, operation, and the two pages."""

from bitta.server.api.app import create_app

__all__ = ["create_app"]
