"""Talk to a bitta server from Python: predict, answer, look.

>>> from bitta.client import Client                                          # doctest: +SKIP
>>> with Client("http://127.0.0.1:8000", key) as client:                     # doctest: +SKIP
...     [served] = client.predict("cat.jpg")
...     client.answer(served.prediction_id, correct=served.label == "cat")
"""

from bitta.client.asynchronous import AsyncClient
from bitta.client.client import Client
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
from bitta.client.records import Answered, Question, Served, Undone

__all__ = [
    "AccessError",
    "Answered",
    "AsyncClient",
    "Client",
    "ClientError",
    "ConflictError",
    "ExpiredError",
    "NotFoundError",
    "Question",
    "RateError",
    "RefusedError",
    "Served",
    "UnavailableError",
    "Undone",
]
