"""Versions, status, events and sessions, under /v1."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request
from sse_starlette import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from bitta.records import QuestionStatus
from bitta.server.api.auth import COOKIE
from bitta.server.api.documents import refusals
from bitta.server.api.errors import Refused
from bitta.server.api.models import (
    AdaptationBody,
    DeletedBody,
    KeyBody,
    Me,
    QuestionBody,
    Questions,
    ReasonBody,
    RollbackBody,
    SnapshotBody,
    Snapshots,
    VersionBody,
)
from bitta.server.api.parts import Annotators, Everybody, KeyedRoute, Operators, Own
from bitta.server.api.sse import event_stream
from bitta.server.api.status import status_body
from bitta.server.api.status_models import StatusBody
from bitta.server.api.v1_feedback import image_url
from bitta.server.store import StoredSnapshot

router = APIRouter(prefix="/v1", tags=["operation"], route_class=KeyedRoute)
sessions = APIRouter(prefix="/v1/session", tags=["session"])

_INVALID = {422: "A field is missing, unknown or not of its exact form."}


@router.get("/status", operation_id="status", summary="How everything fares")
async def status(parts: Own, caller: Everybody) -> StatusBody:
    """The model, its questions, its annotators, and the caller."""
    return await status_body(parts, caller)


@router.get(
    "/events",
    operation_id="events",
    summary="What happens, as it happens",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": "Server-sent events: a `status` every few seconds, and each event of "
            "the log with its seq as id.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
    },
)
async def events(
    request: Request,
    parts: Own,
    caller: Annotators,
    last_event_id: Annotated[str | None, Header(description="Go on after this seq.")] = None,
) -> Response:
    """Without Last-Event-ID it begins with what happens next; it ends with its key or session."""
    return event_stream(parts, request, caller, last_event_id)


@router.get(
    "/questions",
    operation_id="list_questions",
    summary="What is asked, and why",
    responses=refusals(_INVALID),
)
async def list_questions(
    parts: Own,
    _: Operators,
    status: Annotated[QuestionStatus | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Questions:
    """Newest window first."""
    found = await run_in_threadpool(parts.store.questions, status, limit=limit)
    return Questions(
        questions=[
            QuestionBody(
                prediction_id=each.prediction_id,
                label=each.label,
                class_index=each.class_index,
                confidence=each.confidence,
                uncertainty=each.uncertainty,
                reason=each.reason,
                status=each.status,
                asked_at=each.asked_at,
                expires_at=each.expires_at,
                model_version=each.model_version,
                image_url=image_url(each.prediction_id),
            )
            for each in found
        ]
    )


@router.get("/snapshots", operation_id="list_snapshots", summary="Versions to go back to")
async def list_snapshots(parts: Own, _: Operators) -> Snapshots:
    """Newest first."""
    found = await run_in_threadpool(parts.store.snapshots)
    return Snapshots(snapshots=[_snapshot(each) for each in reversed(found)])


@router.post(
    "/snapshots",
    operation_id="take_snapshot",
    summary="Keep the version of now",
    status_code=201,
)
async def take_snapshot(parts: Own, _: Operators) -> SnapshotBody:
    """Its file is complete once this is answered."""
    return _snapshot(await parts.wait(parts.engine.snapshot("asked")))


@router.post(
    "/rollback",
    operation_id="rollback",
    summary="Go back to a version",
    responses=refusals({404: "There is no such snapshot.", **_INVALID}),
)
async def rollback(parts: Own, caller: Operators, body: RollbackBody) -> VersionBody:
    """A new lineage begins; nothing is deleted."""
    kept = await run_in_threadpool(parts.store.find_snapshot, body.snapshot_id)
    if kept is None or kept.dropped_at is not None:
        raise Refused(404, f"there is no snapshot {body.snapshot_id!r}; take one that is listed.")
    version = await parts.wait(parts.engine.rollback(kept.id, by=caller.id, reason=body.reason))
    return VersionBody(model_version=version)


@router.post(
    "/adaptation/pause",
    operation_id="pause",
    summary="Serve on, learn no more",
    responses=refusals(_INVALID),
)
async def pause(parts: Own, caller: Operators, body: ReasonBody) -> AdaptationBody:
    """Answers are kept until it learns again."""
    await parts.wait(parts.engine.pause(caller.id, body.reason))
    return AdaptationBody(state="paused")


@router.post("/adaptation/resume", operation_id="resume", summary="Learn again")
async def resume(parts: Own, caller: Operators) -> AdaptationBody:
    """From the answers that have come meanwhile, too."""
    await parts.wait(parts.engine.resume(caller.id))
    return AdaptationBody(state="on")


@router.delete(
    "/images/{sha256}",
    operation_id="delete_image",
    summary="Delete one image for good",
    responses=refusals({404: "No such image is kept.", **_INVALID}),
)
async def delete_image(
    parts: Own, caller: Operators, sha256: Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
) -> DeletedBody:
    """From the disk and from memory; that it was there stays in the log."""
    parts.engine.forget(sha256)
    if not await parts.wait(parts.store.delete_image(sha256, caller.id)):
        raise Refused(404, f"no image is kept under {sha256}.")
    return DeletedBody(deleted=sha256)


@sessions.post("", operation_id="sign_in", summary="Sign in", responses=refusals(_INVALID))
async def sign_in(request: Request, parts: Own, body: KeyBody) -> Me:
    """Sets a cookie; needs the header X-Bitta: 1."""
    caller = await parts.auth.signed_in(request, body.key)
    me = Me(id=caller.id, role=caller.role, name=caller.name)
    response = JSONResponse(me.model_dump())
    response.set_cookie(
        COOKIE,
        parts.auth.sessions.begin(caller.id),
        max_age=parts.auth.sessions.seconds,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )
    return response  # type: ignore[return-value]


@sessions.get("", operation_id="who_am_i", summary="Who am I")
async def who_am_i(caller: Everybody) -> Me:
    """The owner of the key or the cookie."""
    return Me(id=caller.id, role=caller.role, name=caller.name)


@sessions.delete("", operation_id="sign_out", summary="Sign out", status_code=204)
async def sign_out(request: Request, parts: Own, _: Everybody) -> Response:
    """The cookie is worth nothing any more."""
    parts.auth.sessions.end(request.cookies.get(COOKIE, ""))
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


def _snapshot(snapshot: StoredSnapshot) -> SnapshotBody:
    return SnapshotBody.model_validate(
        {name: getattr(snapshot, name) for name in SnapshotBody.model_fields}
    )
