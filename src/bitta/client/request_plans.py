"""Requests to a server as values, and plans that send them.

Nothing in this module does input or output. A plan is a generator: it yields requests, receives
the outcome of each one, and returns the result of the call. `Client` and `AsyncClient` run the
same plans; one of them blocks and the other awaits.
"""

import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import ceil
from random import Random
from time import monotonic
from typing import Any, Generic, Self, TypeAlias, TypedDict, TypeVar, Unpack, get_args
from urllib.parse import quote
from uuid import uuid4

import httpx

from bitta.client.errors import ClientError, UnavailableError, connection_error, response_error
from bitta.client.images import Image, pack_images
from bitta.client.inference_protocol import JSON_LENGTH_HEADER, read_response, write_request
from bitta.client.retries import Outcome, RetryPolicy
from bitta.config_base import require
from bitta.errors import SettingError
from bitta.records import (
    AnnotatorKind,
    AskedQuestion,
    FeedbackReceipt,
    Lease,
    ServedPrediction,
    SubmittedAnswer,
    UndoReceipt,
    Verdict,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Record = TypeVar("Record", AskedQuestion, FeedbackReceipt, Lease, UndoReceipt)

MAX_POLL_SECONDS = 25
"""Longest time that a server waits for a question before it responds (long polling)."""
_HELD_SECONDS = 0.5
"""If the response "no question" comes faster than this, the server does no long polling."""
_POLL_INTERVAL_SECONDS = 1.0
"""Time between two requests to a server without long polling."""


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[T_co]):
    """One HTTP request, and the function that reads its response."""

    method: str
    path: str
    read: Callable[[httpx.Response], T_co]
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    is_repeatable: bool = True
    """True if sending the request twice has the same effect as sending it once."""
    extra_seconds: float = 0.0
    """Time that the server may take beyond the usual timeout."""
    delay_seconds: float = 0.0
    """Time to wait before sending."""


Plan: TypeAlias = Generator[ApiRequest[Any], Outcome, T]
"""Generator that yields requests, receives their outcomes, and returns the result of a call."""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """Name and shape of the image input of a model."""

    model: str
    name: str
    shape: tuple[int, ...]
    """Shape of one image as an array."""

    @classmethod
    def from_metadata(cls, model: str, metadata: Mapping[str, Any]) -> Self:
        """Read the body of GET /v2/models/NAME."""
        inputs = metadata["inputs"]
        if len(inputs) != 1:
            names = ", ".join(each["name"] for each in inputs)
            raise UnavailableError(
                f"model {model!r} takes {len(inputs)} inputs ({names}); this client sends one."
            )
        return cls(model, inputs[0]["name"], tuple(inputs[0]["shape"][1:]))


class AnswerDetails(TypedDict, total=False):
    """Optional fields of `SubmittedAnswer`, and the idempotency key.

    Times are in microseconds since 1970.
    """

    comment: str | None
    metadata: Mapping[str, Any] | None
    """Any data of the caller, stored with the answer."""
    shown_at: int | None
    """Time at which the annotator saw the question."""
    answered_at: int | None
    """Time of the answer, if it is sent later."""
    lead_time_ms: int | None
    """Milliseconds that the annotator took."""
    annotator_kind: AnnotatorKind
    """HUMAN (the default), CODE or MODEL."""
    idempotency_key: str | None
    """Answers with the same key are stored once. The default is a new key."""


class RequestPlans:
    """Plans of all calls of a client, with the state that the calls share."""

    def __init__(self, url: str, key: str, *, model: str | None, n_retries: int) -> None:
        self._url = url
        self._key_digest = hashlib.sha256(key.encode()).hexdigest()
        """Hash that identifies the owner of the key without revealing the key."""
        self._model = model
        self._model_input: ModelInput | None = None
        self._retry = RetryPolicy(n_retries)
        self._rng = Random()

    def predict(self, images: Image | Sequence[Image]) -> Plan[list[ServedPrediction]]:
        """Fetch a prediction per image, with as many requests as needed."""
        if self._model_input is None:
            model = self._model or (yield from self._send(only_model_request()))
            self._model_input = yield from self._send(model_input_request(model))
        served: list[ServedPrediction] = []
        for request in predict_requests(images, self._model_input):
            served += yield from self._send(request)
        return served

    def next_question(self, wait: float) -> Plan[AskedQuestion | None]:
        """Poll for a question for up to `wait` seconds."""
        end = monotonic() + wait
        delay = 0.0
        while True:
            sent = monotonic() + delay
            poll_seconds = min(MAX_POLL_SECONDS, max(0, ceil(end - sent)))
            question = yield from self._send(next_question_request(poll_seconds, delay))
            received = monotonic()
            if question is not None or received >= end:
                return question
            is_held = received - sent >= _HELD_SECONDS
            delay = 0.0 if is_held else min(_POLL_INTERVAL_SECONDS, end - received)

    def answer(
        self,
        prediction: str | AskedQuestion | ServedPrediction,
        *,
        correct: bool | None = None,
        verdict: Verdict | None = None,
        **details: Unpack[AnswerDetails],
    ) -> Plan[FeedbackReceipt]:
        """Send an answer."""
        body = answer_body(prediction, parse_verdict(correct, verdict), details)
        key = details.get("idempotency_key") or uuid4().hex
        return (yield from self._send(answer_request(body, key)))

    def thumbs(
        self, prediction_id: str, *, up: bool, metadata: Mapping[str, Any] | None
    ) -> Plan[FeedbackReceipt]:
        """Send the answer of a thumbs button.

        All clicks with one API key on the same button of a prediction share one idempotency key.
        """
        verdict = parse_verdict(up, None)
        body = answer_body(prediction_id, verdict, {"metadata": metadata})
        identity = json.dumps(["thumbs", self._key_digest, body], sort_keys=True)
        key = hashlib.sha256(identity.encode()).hexdigest()[:32]
        answered = yield from self._send(answer_request(body, key))
        if answered.repeated and not answered.standing:
            # After up, down and up again, the first answer has been superseded: send a new one.
            return (yield from self._send(answer_request(body, uuid4().hex)))
        return answered

    def undo(self, feedback_id: str) -> Plan[UndoReceipt]:
        """Undo an answer."""
        return (yield from self._send(undo_request(feedback_id)))

    def image(self, prediction: str | AskedQuestion) -> Plan[bytes]:
        """Fetch the image of a prediction."""
        return (yield from self._send(image_request(_prediction_id(prediction))))

    def status(self) -> Plan[dict[str, Any]]:
        """Fetch the status of the server."""
        return (yield from self._send(status_request()))

    def _send(self, request: ApiRequest[T]) -> Plan[T]:
        """Send a request, with retries, and read the response."""
        attempt = 0
        while True:
            outcome = yield request
            if isinstance(outcome, httpx.Response) and outcome.is_success:
                return request.read(outcome)
            delay = self._retry.delay_seconds(
                attempt, outcome, is_repeatable=request.is_repeatable, rng=self._rng
            )
            if delay is None:
                raise self._error(outcome)
            request = replace(request, delay_seconds=delay)
            attempt += 1

    def _error(self, outcome: Outcome) -> ClientError:
        if isinstance(outcome, httpx.Response):
            return response_error(outcome)
        return connection_error(self._url, outcome)


def only_model_request() -> ApiRequest[str]:
    """Return the request for the name of the only model of the server."""

    def read(response: httpx.Response) -> str:
        names = sorted({model["name"] for model in _read_json(response)})
        if len(names) != 1:
            raise SettingError(
                f"the server has {len(names)} models ({', '.join(names)}); choose one with model=."
            )
        return str(names[0])

    return ApiRequest("POST", "v2/repository/index", read, json={})


def model_input_request(model: str) -> ApiRequest[ModelInput]:
    """Return the request for the input of a model."""
    return ApiRequest(
        "GET",
        f"v2/models/{_quote(model)}",
        lambda response: ModelInput.from_metadata(model, _read_json(response)),
    )


def predict_requests(
    images: Image | Sequence[Image], model_input: ModelInput
) -> Iterator[ApiRequest[list[ServedPrediction]]]:
    """Yield as many requests as the images need.

    They are not repeatable, because the server would learn from the same images twice.
    """
    for tensor in pack_images(images, model_input.shape):
        body, headers = write_request(model_input.name, tensor)
        yield ApiRequest(
            "POST",
            f"v2/models/{_quote(model_input.model)}/infer",
            lambda response: read_response(
                response.content, response.headers.get(JSON_LENGTH_HEADER)
            ),
            headers=headers,
            content=body,
            is_repeatable=False,
        )


def next_question_request(
    poll_seconds: int, delay_seconds: float = 0.0
) -> ApiRequest[AskedQuestion | None]:
    """Return the request for the next question. The server waits up to `poll_seconds` for one."""
    return ApiRequest(
        "GET",
        f"v1/queue/next?wait={poll_seconds}",
        lambda response: None if response.status_code == 204 else _read_question(response),
        extra_seconds=poll_seconds,
        delay_seconds=delay_seconds,
    )


def answer_body(
    prediction: str | AskedQuestion | ServedPrediction, verdict: Verdict, details: AnswerDetails
) -> dict[str, Any]:
    """Return the JSON body of an answer, without missing values."""
    given: dict[str, Any] = {**details}
    given.pop("idempotency_key", None)
    if given.get("metadata") is not None:
        given["metadata"] = dict(given["metadata"])
    lease = prediction.lease.token if isinstance(prediction, AskedQuestion) else None
    answer = SubmittedAnswer(_prediction_id(prediction), verdict, lease=lease, **given)
    return {name: value for name, value in asdict(answer).items() if value is not None}


def answer_request(body: Mapping[str, Any], idempotency_key: str) -> ApiRequest[FeedbackReceipt]:
    """Return the request that sends an answer.

    Every retry carries the same key, so the answer is stored once.
    """

    def read(response: httpx.Response) -> FeedbackReceipt:
        is_repeated = response.status_code == 200
        return _as_record(FeedbackReceipt, _read_json(response) | {"repeated": is_repeated})

    headers = {"Idempotency-Key": idempotency_key}
    return ApiRequest("POST", "v1/feedback", read, headers=headers, json=body)


def undo_request(feedback_id: str) -> ApiRequest[UndoReceipt]:
    """Return the request that undoes an answer."""
    return ApiRequest(
        "POST",
        f"v1/feedback/{_quote(feedback_id)}/undo",
        lambda response: _as_record(UndoReceipt, _read_json(response)),
        json={},
    )


def image_request(prediction_id: str) -> ApiRequest[bytes]:
    """Return the request for the image of a prediction, as PNG."""
    path = f"v1/predictions/{_quote(prediction_id)}/image"
    return ApiRequest("GET", path, lambda response: response.content)


def status_request() -> ApiRequest[dict[str, Any]]:
    """Return the request for the status of the server."""
    return ApiRequest("GET", "v1/status", _read_json)


def parse_verdict(correct: bool | None, verdict: Verdict | None) -> Verdict:
    """Return the verdict. Exactly one of the two arguments must be given."""
    if (correct is None) == (verdict is None):
        raise SettingError(
            f"correct is {correct!r} and verdict is {verdict!r}; give exactly one of the two."
        )
    if verdict is not None:
        allowed = get_args(Verdict)
        require(verdict in allowed, "verdict", verdict, ", ".join(map(repr, allowed)))
        return verdict
    require(isinstance(correct, bool), "correct", correct, "True or False")
    return "correct" if correct else "incorrect"


def _prediction_id(prediction: str | AskedQuestion | ServedPrediction) -> str:
    return prediction if isinstance(prediction, str) else prediction.prediction_id


def _read_question(response: httpx.Response) -> AskedQuestion:
    body = _read_json(response)["question"]
    return _as_record(AskedQuestion, body | {"lease": _as_record(Lease, body["lease"])})


def _as_record(record_type: type[Record], body: Mapping[str, Any]) -> Record:
    """Return a record with the fields of a JSON object.

    Unknown fields are ignored, because the server can be newer than the client.
    """
    names = {each.name for each in fields(record_type)}
    try:
        return record_type(**{name: value for name, value in body.items() if name in names})
    except TypeError as error:
        raise UnavailableError(
            f"the response is not a complete {record_type.__name__} ({error}); is the server an "
            "older version of bitta?"
        ) from None


def _read_json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise UnavailableError(
            f"the response to {response.url.path} is not JSON; is this a bitta server?",
            status=response.status_code,
        ) from None


def _quote(name: str) -> str:
    return quote(name, safe="")
