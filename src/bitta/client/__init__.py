"""Python client of a bitta server: predict, answer, and read the state of the server.

>>> from bitta.client import Client                                          # doctest: +SKIP
>>> with Client("http://127.0.0.1:8000", key) as client:                     # doctest: +SKIP
...     [served] = client.predict("cat.jpg")
...     client.answer(served.prediction_id, correct=served.label == "cat")
"""

try:
    import httpx as _httpx  # noqa: F401
except ImportError as error:
    raise ImportError(
        'bitta.client needs httpx, which is not installed; run: pip install "bitta[client]"'
    ) from error

from bitta.client.client import AsyncClient, Client
from bitta.client.errors import (
    AccessError,
    ClientError,
    ConflictError,
    ExpiredError,
    NotFoundError,
    RateError,
    RefusedError,
    UnavailableError,
)
from bitta.client.request_plans import AnswerDetails
from bitta.records import AskedQuestion, FeedbackReceipt, ServedPrediction, UndoReceipt

__all__ = [
    "AccessError",
    "AnswerDetails",
    "AskedQuestion",
    "AsyncClient",
    "Client",
    "ClientError",
    "ConflictError",
    "ExpiredError",
    "FeedbackReceipt",
    "NotFoundError",
    "RateError",
    "RefusedError",
    "ServedPrediction",
    "UnavailableError",
    "UndoReceipt",
]
