"""Questions and verdicts, under /v1."""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from bitta.records import FeedbackRecord
from bitta.server.api.auth import Caller
from bitta.server.api.documents import refusals
from bitta.server.api.errors import Refused
from bitta.server.api.feed import rung
from bitta.server.api.models import (
    AskedQuestion,
    FeedbackBody,
    Lease,
    NextQuestion,
    Record,
    Records,
    UndoneBody,
)
from bitta.server.api.parts import Annotators, Everybody, KeyedRoute, Operators, Own, Parts
from bitta.server.api.pictures import as_png
from bitta.server.store import (
    LeasedQuestion,
    NewAnswer,
    now,
)
from bitta.server.store.exports import MEDIA_TYPES, export

router = APIRouter(prefix="/v1", tags=["feedback"], route_class=KeyedRoute)

Id = Annotated[str, Path(min_length=1, max_length=100, pattern="^[0-9A-Za-z_-]+$")]
IdempotencyKey = Annotated[
    str,
    Header(
        min_length=1,
        max_length=200,
        pattern="^[!-~]+$",
        description="The same key with the same body gives the stored record again.",
    ),
]
_INVALID = {422: "A field is missing, unknown or not of its exact form."}
_PATIENCE = 2.0
"""Seconds after which a lease of somebody else may have run out unnoticed."""
_EXPORTED = 16_384
"""Characters per part of an export."""


@router.get(
    "/queue/next",
    summary="The next question, under a lease",
    operation_id="next_question",
    response_model=NextQuestion,
    responses={204: {"description": "There is no question now."}, **refusals(_INVALID)},
)
async def next_question(
    parts: Own,
    caller: Annotators,
    wait: Annotated[float, Query(ge=0, le=25, description="Seconds to wait for one.")] = 0,
    besides: Annotated[
        list[Annotated[str, Query(max_length=100)]],
        Query(max_length=20, description="Predictions in hand already, whose questions to leave."),
    ] = [],  # noqa: B006 (never changed)
) -> Response:
    """A question that this annotator holds already comes again first, unless named in `besides`."""
    leased = await _leased(parts, caller, min(wait, parts.settings.wait_seconds), besides)
    if leased is None:
        return Response(status_code=204)
    question = leased.question
    kept = await run_in_threadpool(parts.store.find_image, question.input_sha256)
    body = NextQuestion(
        question=AskedQuestion(
            prediction_id=question.prediction_id,
            label=question.label,
            class_index=question.class_index,
            confidence=question.confidence,
            uncertainty=question.uncertainty,
            image_url=image_url(question.prediction_id) if kept and not kept.deleted_at else None,
            input_sha256=question.input_sha256,
            asked_at=question.asked_at,
            expires_at=question.expires_at,
            lease=Lease(token=leased.lease.token, until=leased.lease.until),
            model_version=question.model_version,
        ),
        left=leased.left,
    )
    return JSONResponse(body.model_dump())


async def _leased(
    parts: Parts, caller: Caller, wait: float, besides: list[str]
) -> LeasedQuestion | None:
    feed, loop = parts.feed, asyncio.get_running_loop()
    until = loop.time() + wait
    with feed.listening():
        while True:
            mark = feed.questions.mark()
            seconds = parts.settings.lease_seconds
            leased = await parts.wait(
                parts.store.lease_question(caller.id, seconds=seconds, besides=besides)
            )
            left = until - loop.time()
            if leased is not None or left <= 0 or feed.closing:
                return leased
            await rung(mark, min(left, _PATIENCE))


@router.post(
    "/feedback",
    summary="One verdict",
    operation_id="give_feedback",
    status_code=201,
    response_model=Record,
    responses={
        200: {"model": Record, "description": "It was stored before; this is the record."},
        **refusals(
            {
                404: "There is no such prediction.",
                410: "The question expired, or went to somebody else.",
                422: "A field is not of its exact form, or the Idempotency-Key was used for "
                'another verdict (code "conflict").',
            }
        ),
    },
)
async def give_feedback(
    parts: Own, caller: Everybody, body: FeedbackBody, idempotency_key: IdempotencyKey
) -> Response:
    """It is durable once this is answered."""
    given = NewAnswer(
        prediction_id=body.prediction_id,
        verdict=body.verdict,
        annotator_id=caller.id,
        idempotency_key=idempotency_key,
        annotator_kind=body.annotator_kind,
        lease=body.lease,
        comment=body.comment,
        metadata=body.metadata,
        shown_at=body.shown_at,
        answered_at=_past(body.answered_at),
        lead_time_ms=body.lead_time_ms,
    )
    if body.lease is None:  # nobody asked, so its image may not be kept yet
        parts.engine.keep_answered(body.prediction_id)
    record = await parts.wait(parts.store.add_answer(given))
    if not record.repeated:
        parts.metrics.answers.labels(record.verdict).inc()
    return JSONResponse(_record(record).model_dump(), 200 if record.repeated else 201)


@router.post(
    "/feedback/{id}/undo",
    summary="Take a verdict back",
    operation_id="undo_feedback",
    response_model=UndoneBody,
    responses=refusals({404: "There is no such feedback of this annotator.", **_INVALID}),
)
async def undo_feedback(parts: Own, caller: Everybody, id: Id) -> UndoneBody:  # noqa: A002
    """Nothing is deleted; whether the model had learned from it already is said."""
    found = await run_in_threadpool(parts.store.find_feedback, id)
    if found is None or (found.annotator_id != caller.id and caller.role != "operator"):
        raise Refused(404, f"there is no feedback {id!r} of yours.")
    undone = await parts.wait(parts.store.undo_answer(id, caller.id))
    return UndoneBody(undone=undone.undone, applied=undone.applied, note=undone.note)


@router.get(
    "/feedback",
    summary="Verdicts, newest first",
    operation_id="list_feedback",
    response_model=Records,
    responses=refusals(_INVALID),
)
async def list_feedback(
    parts: Own,
    caller: Everybody,
    mine: Annotated[bool, Query(description="Only one's own; others' are for operators.")] = True,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[int | None, Query(ge=1, le=2**53, description="A seq.")] = None,
) -> Response:
    """A page; `next` is where the following one begins."""
    if not mine and caller.role != "operator":
        raise Refused(403, f"the role of this key is {caller.role}; mine=false is for operators.")
    found = await run_in_threadpool(
        parts.store.list_feedback, caller.id if mine else None, before=before, limit=limit
    )
    following = found[-1].seq if len(found) == limit else None
    body = Records(feedback=[_record(each) for each in found], next=following)
    return JSONResponse(body.model_dump())


@router.get(
    "/feedback/export",
    summary="Every verdict, as a file",
    operation_id="export_feedback",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Streamed, oldest first.",
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
                "application/json": {"schema": {"type": "array", "items": {"type": "object"}}},
            },
        },
        **refusals(_INVALID),
    },
)
async def export_feedback(
    parts: Own,
    _: Operators,
    format: Annotated[Literal["jsonl", "csv", "labelstudio"], Query()] = "jsonl",  # noqa: A002
) -> Response:
    """jsonl and csv are records; labelstudio is what Label Studio imports."""
    ending = "json" if format == "labelstudio" else format
    names = await run_in_threadpool(parts.store.keys.names)
    return StreamingResponse(
        _joined(export(format, parts.store.all_feedback(), names=names)),
        media_type=MEDIA_TYPES[format],
        headers={"Content-Disposition": f'attachment; filename="feedback.{ending}"'},
    )


@router.get(
    "/predictions/{id}/image",
    summary="The picture a prediction is about",
    operation_id="prediction_image",
    response_class=Response,
    responses={
        200: {"description": "As PNG.", "content": {"image/png": {"schema": {"type": "string"}}}},
        **refusals({404: "There is no such prediction, or its image is not kept.", **_INVALID}),
    },
)
async def prediction_image(parts: Own, caller: Annotators, id: Id) -> Response:  # noqa: A002
    """Annotators see what was asked; operators everything that is kept."""
    png = await run_in_threadpool(_png, parts, id, asked_only=caller.role != "operator")
    if png is None:
        raise Refused(404, f"no image is kept for the prediction {id!r}.")
    return Response(png, media_type="image/png", headers={"Cache-Control": "private, no-store"})


def image_url(prediction_id: str) -> str:
    """Relative to the server."""
    return f"/v1/predictions/{prediction_id}/image"


def _png(parts: Parts, prediction_id: str, *, asked_only: bool) -> bytes | None:
    store = parts.store
    about = (
        store.find_question(prediction_id) if asked_only else store.find_prediction(prediction_id)
    )
    record = about and store.find_image(about.input_sha256)
    if not record or record.deleted_at is not None:
        return None
    content = store.images.read(record.sha256)
    return None if content is None else as_png(content, record)


def _past(moment: int | None) -> int | None:
    """A clock that is ahead is no reason to lose an answer: then it was given when it came."""
    return moment if moment is not None and moment <= now() else None


def _record(record: FeedbackRecord) -> Record:
    return Record(**{name: getattr(record, name) for name in Record.model_fields})


def _joined(pieces: Iterable[str]) -> Iterator[str]:
    """Fewer and larger: each costs a switch of threads."""
    held: list[str] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _EXPORTED:
            yield "".join(held)
            held, size = [], 0
    yield "".join(held)
