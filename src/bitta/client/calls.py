"""Every call as a value: what is sent, and what is made of the answer. No I/O."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote
from uuid import uuid4

from bitta.client.errors import ClientError, UnavailableError, kind_of
from bitta.client.images import Image, pack
from bitta.client.library import httpx
from bitta.client.records import Answered, Kind, ModelInput, Question, Served, Undone, Verdict
from bitta.client.wire import JSON_LENGTH, read_response, write_request
from bitta.config import require
from bitta.errors import SettingError

T_co = TypeVar("T_co", covariant=True)
LONGEST_WAIT = 25
"""Seconds for which a server holds a call for the next question."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """One request; `repeatable` if doing it twice is as doing it once."""

    method: str
    path: str
    read: Callable[[httpx.Response], T_co]
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    repeatable: bool = True
    extra_time: float = 0.0
    """Seconds beyond the usual that the server may take."""


def models() -> Call[str]:
    """The name of the only model."""

    def read(response: httpx.Response) -> str:
        names = sorted({each["name"] for each in _json(response)})
        if len(names) != 1:
            raise SettingError(
                f"the server has {len(names)} models ({', '.join(names)}); say which with model=."
            )
        return str(names[0])

    return Call("POST", "v2/repository/index", read, json={})


def model_input(model: str) -> Call[ModelInput]:
    """What the model takes."""
    return Call("GET", f"v2/models/{_quoted(model)}", lambda got: ModelInput.of(model, _json(got)))


def predictions(images: Image | Sequence[Image], of: ModelInput) -> Iterator[Call[list[Served]]]:
    """As many requests as the images need. Twice is not as once: each would be served twice."""
    for tensor in pack(images, of.shape):
        body, headers = write_request(of.name, tensor)
        yield Call(
            "POST",
            f"v2/models/{_quoted(of.model)}/infer",
            lambda got: read_response(got.content, got.headers.get(JSON_LENGTH)),
            headers=headers,
            content=body,
            repeatable=False,
        )


def next_question(wait: int) -> Call[Question | None]:
    """The next question under a lease; None if there is none within `wait` seconds."""
    return Call(
        "GET",
        f"v1/queue/next?wait={wait}",
        lambda got: None if got.status_code == 204 else Question.of(_json(got)),
        extra_time=wait,
    )


def answer(
    of: str | Question | Served,
    *,
    correct: bool | None = None,
    verdict: Verdict | None = None,
    comment: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    shown_at: int | None = None,
    answered_at: int | None = None,
    lead_time_ms: int | None = None,
    kind: Kind = "HUMAN",
    idempotency_key: str | None = None,
) -> Call[Answered]:
    """One verdict; the key is made once, so that every retry is the same answer."""
    body = {
        "prediction_id": of if isinstance(of, str) else of.prediction_id,
        "verdict": _verdict(correct, verdict),
        "lease": of.lease if isinstance(of, Question) else None,
        "comment": comment,
        "metadata": None if metadata is None else dict(metadata),
        "shown_at": shown_at,
        "answered_at": answered_at,
        "lead_time_ms": lead_time_ms,
        "annotator_kind": kind,
    }
    return Call(
        "POST",
        "v1/feedback",
        _read_answered,
        headers={"Idempotency-Key": idempotency_key or uuid4().hex},
        json={name: value for name, value in body.items() if value is not None},
    )


def thumbs(
    prediction_id: str, *, up: bool, metadata: Mapping[str, Any] | None, by: str
) -> Call[Answered]:
    """One verdict whose key is the same for every click of the same owner on the same button."""
    call = answer(prediction_id, correct=up, metadata=metadata)
    said = json.dumps(["thumbs", by, call.json], sort_keys=True)
    key = hashlib.sha256(said.encode()).hexdigest()[:32]
    return replace(call, headers={"Idempotency-Key": key})


def undo(feedback_id: str) -> Call[Undone]:
    """Take an answer back."""

    def read(response: httpx.Response) -> Undone:
        body = _json(response)
        return Undone(body["undone"], body["applied"], body["note"])

    return Call("POST", f"v1/feedback/{_quoted(feedback_id)}/undo", read, json={})


def status() -> Call[dict[str, Any]]:
    """How the server fares."""
    return Call("GET", "v1/status", _json)


def image(prediction_id: str) -> Call[bytes]:
    """The picture as PNG."""
    path = f"v1/predictions/{_quoted(prediction_id)}/image"
    return Call("GET", path, lambda response: response.content)


def refusal(response: httpx.Response) -> ClientError:
    """The error of a response, in the server's words."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("error"), str):
        # Not ours: a proxy's page, or another server.
        body = {"error": f"the server answered {response.status_code} to {response.url.path}."}
    status_, code = response.status_code, str(body.get("code", ""))
    return kind_of(status_, code)(
        body["error"],
        status=status_,
        code=code,
        request_id=response.headers.get("X-Request-Id", ""),
    )


def no_answer(url: str, error: httpx.RequestError) -> UnavailableError:
    """The error of a call that got no response."""
    reason = str(error) or type(error).__name__
    return UnavailableError(f"no answer from {url} ({reason}); does the server run there?")


def _verdict(correct: bool | None, verdict: Verdict | None) -> Verdict:
    if (correct is None) == (verdict is None):
        raise SettingError("give either correct=True or False, or verdict=; one of the two.")
    if verdict is not None:
        allowed = ("correct", "incorrect", "skip")
        require(verdict in allowed, "verdict", verdict, ", ".join(map(repr, allowed)))
        return verdict
    require(isinstance(correct, bool), "correct", correct, "True or False")
    return "correct" if correct else "incorrect"


def _read_answered(response: httpx.Response) -> Answered:
    record = _json(response)
    return Answered(
        record["id"],
        record["prediction_id"],
        record["verdict"],
        record["status"],
        repeated=response.status_code == 200,
        record=record,
    )


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise UnavailableError(
            f"the answer to {response.url.path} is not JSON; is this a bitta server?",
            status=response.status_code,
        ) from None


def _quoted(name: str) -> str:
    return quote(name, safe="")
