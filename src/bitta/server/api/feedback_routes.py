"""Routes for questions and feedback under /v1."""

import asyncio
import io
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Header, Path, Query
from PIL import Image
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from bitta.errors import InputError
from bitta.records import AskedQuestion, FeedbackRecord, UndoReceipt
from bitta.server.api.authentication import Caller
from bitta.server.api.dependencies import (
    AnnotatorCaller,
    AnyCaller,
    AppState,
    AppStateDependency,
    AuthenticatedRoute,
    OperatorCaller,
)
from bitta.server.api.errors import ApiError
from bitta.server.api.events import wait_for_notification
from bitta.server.api.openapi import error_responses
from bitta.server.api.schemas import (
    FeedbackPage,
    FeedbackRequest,
    NextQuestion,
    shared_fields,
)
from bitta.server.store import ImageRecord, LeasedQuestion, NewAnswer, now
from bitta.server.store.exports import MEDIA_TYPES, export_records

router = APIRouter(prefix="/v1", tags=["feedback"], route_class=AuthenticatedRoute)

Id = Annotated[str, Path(min_length=1, max_length=100, pattern="^[0-9A-Za-z_-]+$")]
IdempotencyKey = Annotated[
    str,
    Header(
        min_length=1,
        max_length=200,
        pattern="^[!-~]+$",
        description="A repeated request with the same key and body returns the stored record.",
    ),
]
INVALID = {422: "A field is missing, unknown or invalid."}
_FEEDBACK_RECORD = TypeAdapter(FeedbackRecord)
_LEASE_POLL_SECONDS = 2.0
"""Maximum time between two tries. A lease of another annotator ends without a notification."""
_EXPORT_CHUNK_CHARACTERS = 16_384


@router.get(
    "/queue/next",
    summary="Get the next question, with a lease",
    operation_id="next_question",
    response_model=NextQuestion,
    responses={204: {"description": "There is no open question."}, **error_responses(INVALID)},
)
async def next_question(
    state: AppStateDependency,
    caller: AnnotatorCaller,
    wait: Annotated[float, Query(ge=0, le=25, description="Seconds to wait for a question.")] = 0,
    exclude: Annotated[
        list[Annotated[str, Query(max_length=100)]],
        Query(max_length=20, description="Predictions whose questions to leave out."),
    ] = [],  # noqa: B006 (never changed)
) -> Response:
    """Questions that this annotator already holds come first, except those in `exclude`."""
    leased = await _lease(state, caller, min(wait, state.settings.max_poll_seconds), exclude)
    if leased is None:
        return Response(status_code=204)
    question = leased.question
    image = await run_in_threadpool(state.store.find_image, question.input_sha256)
    has_image = image is not None and not image.deleted_at
    body = NextQuestion(
        question=AskedQuestion(
            **shared_fields(question, AskedQuestion.__dataclass_fields__),
            image_url=image_url(question.prediction_id) if has_image else None,
            lease=leased.lease,
        ),
        left=leased.left,
    )
    return JSONResponse(body.model_dump())


async def _lease(
    state: AppState, caller: Caller, wait_seconds: float, exclude: list[str]
) -> LeasedQuestion | None:
    watcher, loop = state.log_watcher, asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    with watcher.waiting():
        while True:
            notification = watcher.new_questions.next_notification()
            lease_seconds = state.settings.lease_seconds
            leased = await state.wait(
                state.store.lease_question(caller.id, seconds=lease_seconds, exclude=exclude)
            )
            seconds_left = deadline - loop.time()
            if leased is not None or seconds_left <= 0 or watcher.is_closing:
                return leased
            await wait_for_notification(notification, min(seconds_left, _LEASE_POLL_SECONDS))


@router.post(
    "/feedback",
    summary="Give a verdict",
    operation_id="give_feedback",
    status_code=201,
    response_model=FeedbackRecord,
    responses={
        200: {"model": FeedbackRecord, "description": "The record of an earlier equal request."},
        **error_responses(
            {
                404: "There is no such prediction.",
                410: "The question expired, or was given to another annotator.",
                422: "A field is invalid, or the Idempotency-Key was used for another verdict "
                '(code "conflict").',
            }
        ),
    },
)
async def give_feedback(
    state: AppStateDependency,
    caller: AnyCaller,
    body: FeedbackRequest,
    idempotency_key: IdempotencyKey,
) -> Response:
    """The verdict is durable when the response is sent."""
    # A client's clock may be ahead. The time of receipt then counts as the time of the answer.
    is_past = body.answered_at is not None and body.answered_at <= now()
    answer = NewAnswer(
        **body.model_dump(exclude={"answered_at"}),
        answered_at=body.answered_at if is_past else None,
        annotator_id=caller.id,
        idempotency_key=idempotency_key,
    )
    if body.lease is None:  # no question was leased, so the image may not be stored yet
        state.engine.keep_answered_image(body.prediction_id)
    record = await state.wait(state.store.add_answer(answer))
    if not record.repeated:
        state.metrics.answers.labels(record.verdict).inc()
    response_body = _FEEDBACK_RECORD.dump_python(record)  # without the fields of a receipt
    return JSONResponse(response_body, 200 if record.repeated else 201)


@router.post(
    "/feedback/{id}/undo",
    summary="Undo a verdict",
    operation_id="undo_feedback",
    response_model=UndoReceipt,
    responses=error_responses({404: "This annotator gave no such feedback.", **INVALID}),
)
async def undo_feedback(state: AppStateDependency, caller: AnyCaller, id: Id) -> UndoReceipt:  # noqa: A002
    """The verdict stays in the log. The response says whether the model had learned from it."""
    record = await run_in_threadpool(state.store.find_feedback, id)
    if record is None or (record.annotator_id != caller.id and caller.role != "operator"):
        raise ApiError(404, f"you gave no feedback {id!r}; GET /v1/feedback lists yours.")
    return await state.wait(state.store.undo_answer(id, caller.id))


@router.get(
    "/feedback",
    summary="List verdicts, newest first",
    operation_id="list_feedback",
    response_model=FeedbackPage,
    responses=error_responses(INVALID),
)
async def list_feedback(
    state: AppStateDependency,
    caller: AnyCaller,
    mine: Annotated[
        bool, Query(description="Only the caller's verdicts. False is for operators.")
    ] = True,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[
        int | None, Query(ge=1, le=2**53, description="List verdicts before this seq.")
    ] = None,
) -> Response:
    """Give `next` of the response as `before` for the next page."""
    if not mine and caller.role != "operator":
        raise ApiError(403, f"the role of this key is {caller.role}; mine=false is for operators.")
    records = await run_in_threadpool(
        state.store.list_feedback, caller.id if mine else None, before=before, limit=limit
    )
    next_before = records[-1].seq if len(records) == limit else None
    body = FeedbackPage(feedback=records, next=next_before)
    return JSONResponse(body.model_dump())


@router.get(
    "/feedback/export",
    summary="Export all verdicts as a file",
    operation_id="export_feedback",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "All verdicts, oldest first, as a stream.",
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
                "application/json": {"schema": {"type": "array", "items": {"type": "object"}}},
            },
        },
        **error_responses(INVALID),
    },
)
async def export_feedback(
    state: AppStateDependency,
    _: OperatorCaller,
    format: Annotated[Literal["jsonl", "csv", "labelstudio"], Query()] = "jsonl",  # noqa: A002
) -> Response:
    """`jsonl` and `csv` hold one record per line; `labelstudio` is a file for Label Studio."""
    suffix = "json" if format == "labelstudio" else format
    names = await run_in_threadpool(state.store.keys.names)
    return StreamingResponse(
        _in_chunks(export_records(format, state.store.all_feedback(), annotator_names=names)),
        media_type=MEDIA_TYPES[format],
        headers={"Content-Disposition": f'attachment; filename="feedback.{suffix}"'},
    )


@router.get(
    "/predictions/{id}/image",
    summary="Get the image of a prediction",
    operation_id="prediction_image",
    response_class=Response,
    responses={
        200: {
            "description": "The image as PNG.",
            "content": {"image/png": {"schema": {"type": "string"}}},
        },
        **error_responses(
            {404: "There is no such prediction, or its image is not kept.", **INVALID}
        ),
    },
)
async def prediction_image(state: AppStateDependency, caller: AnnotatorCaller, id: Id) -> Response:  # noqa: A002
    """Annotators get only images that a question is about; operators get all kept images."""
    png = await run_in_threadpool(_read_png, state, id, asked_only=caller.role != "operator")
    if png is None:
        raise ApiError(404, f"no image is kept for the prediction {id!r}.")
    return Response(png, media_type="image/png", headers={"Cache-Control": "private, no-store"})


def image_url(prediction_id: str) -> str:
    """Return the path of a prediction's image."""
    return f"/v1/predictions/{prediction_id}/image"


def _read_png(state: AppState, prediction_id: str, *, asked_only: bool) -> bytes | None:
    store = state.store
    found = (
        store.find_question(prediction_id) if asked_only else store.find_prediction(prediction_id)
    )
    record = found and store.find_image(found.input_sha256)
    if not record or record.deleted_at is not None:
        return None
    content = store.images.read(record.sha256)
    return None if content is None else _encode_png(content, record)


def _encode_png(content: bytes, record: ImageRecord) -> bytes:
    """Return an input of shape (1 or 3, height, width) as PNG."""
    values = np.frombuffer(content, dtype=record.dtype).reshape(record.shape)
    if values.ndim != 3 or values.shape[0] not in (1, 3):
        raise InputError(
            f"this input has shape {list(record.shape)}; only inputs with 1 or 3 channels, height "
            "and width can be shown."
        )
    pixels = values if values.dtype == np.uint8 else _to_uint8(values)
    picture = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _to_uint8(values: np.ndarray) -> np.ndarray:
    """Scale [0, 1] to [0, 255]. Inputs outside [0, 1] were normalised: scale their own range."""
    scaled = values.astype(np.float64)
    low, high = float(scaled.min()), float(scaled.max())
    if low < 0 or high > 1:
        scaled = (scaled - low) / (high - low) if high > low else np.zeros_like(scaled)
    return (scaled * 255).round().astype(np.uint8)


def _in_chunks(pieces: Iterable[str]) -> Iterator[str]:
    """Join small pieces, because each yielded item costs a switch between threads."""
    held: list[str] = []
    n_characters = 0
    for piece in pieces:
        held.append(piece)
        n_characters += len(piece)
        if n_characters >= _EXPORT_CHUNK_CHARACTERS:
            yield "".join(held)
            held, n_characters = [], 0
    yield "".join(held)
