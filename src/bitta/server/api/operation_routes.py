"""Routes for status, events, snapshots, learning, images and sessions under /v1."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request
from sse_starlette import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from bitta.records import QuestionStatus
from bitta.server.api.authentication import COOKIE
from bitta.server.api.dependencies import (
    AnnotatorCaller,
    AnyCaller,
    AppStateDependency,
    AuthenticatedRoute,
    OperatorCaller,
)
from bitta.server.api.errors import ApiError
from bitta.server.api.events import event_stream
from bitta.server.api.feedback_routes import INVALID, image_url
from bitta.server.api.openapi import error_responses
from bitta.server.api.schemas import (
    CallerBody,
    DeletedImage,
    LearningState,
    PauseRequest,
    QuestionItem,
    QuestionList,
    RollbackRequest,
    SignInRequest,
    SnapshotItem,
    SnapshotList,
    StatusBody,
    VersionBody,
    shared_fields,
)
from bitta.server.api.status import status_body
from bitta.server.store import StoredSnapshot

router = APIRouter(prefix="/v1", tags=["operation"], route_class=AuthenticatedRoute)
session_router = APIRouter(prefix="/v1/session", tags=["session"])


@router.get("/status", operation_id="status", summary="Get the status of the server")
async def status(state: AppStateDependency, caller: AnyCaller) -> StatusBody:
    """The model, the questions, the annotators, and the caller."""
    return await status_body(state, caller)


@router.get(
    "/events",
    operation_id="events",
    summary="Stream events as they happen",
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
    state: AppStateDependency,
    caller: AnnotatorCaller,
    last_event_id: Annotated[
        str | None,
        Header(description="Continue after this seq. By default, start with new events."),
    ] = None,
) -> Response:
    """The stream ends when its key is revoked or its session ends."""
    return event_stream(state, request, caller, last_event_id)


@router.get(
    "/questions",
    operation_id="list_questions",
    summary="List questions and their reasons",
    responses=error_responses(INVALID),
)
async def list_questions(
    state: AppStateDependency,
    _: OperatorCaller,
    status: Annotated[QuestionStatus | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> QuestionList:
    """Questions of the newest window come first."""
    questions = await run_in_threadpool(state.store.questions, status, limit=limit)
    return QuestionList(
        questions=[
            QuestionItem(
                **shared_fields(each, QuestionItem.model_fields),
                image_url=image_url(each.prediction_id),
            )
            for each in questions
        ]
    )


@router.get("/snapshots", operation_id="list_snapshots", summary="List snapshots")
async def list_snapshots(state: AppStateDependency, _: OperatorCaller) -> SnapshotList:
    """The newest snapshot comes first."""
    snapshots = await run_in_threadpool(state.store.snapshots)
    return SnapshotList(snapshots=[_snapshot_item(each) for each in reversed(snapshots)])


@router.post(
    "/snapshots",
    operation_id="take_snapshot",
    summary="Take a snapshot of the current version",
    status_code=201,
)
async def take_snapshot(state: AppStateDependency, _: OperatorCaller) -> SnapshotItem:
    """The file of the snapshot is complete when the response is sent."""
    return _snapshot_item(await state.wait(state.engine.snapshot("asked")))


@router.post(
    "/rollback",
    operation_id="rollback",
    summary="Roll back to a snapshot",
    responses=error_responses({404: "There is no such snapshot.", **INVALID}),
)
async def rollback(
    state: AppStateDependency, caller: OperatorCaller, body: RollbackRequest
) -> VersionBody:
    """A new lineage of versions begins. Nothing is deleted."""
    snapshot = await run_in_threadpool(state.store.find_snapshot, body.snapshot_id)
    if snapshot is None or snapshot.dropped_at is not None:
        raise ApiError(
            404, f"there is no snapshot {body.snapshot_id!r}; GET /v1/snapshots lists them."
        )
    version = await state.wait(state.engine.rollback(snapshot.id, by=caller.id, reason=body.reason))
    return VersionBody(model_version=version)


@router.post(
    "/adaptation/pause",
    operation_id="pause",
    summary="Pause learning",
    responses=error_responses(INVALID),
)
async def pause(
    state: AppStateDependency, caller: OperatorCaller, body: PauseRequest
) -> LearningState:
    """The model continues to serve. Answers are stored for later."""
    await state.wait(state.engine.pause(caller.id, body.reason))
    return LearningState(state="paused")


@router.post("/adaptation/resume", operation_id="resume", summary="Resume learning")
async def resume(state: AppStateDependency, caller: OperatorCaller) -> LearningState:
    """The model also learns from the answers that were given during the pause."""
    await state.wait(state.engine.resume(caller.id))
    return LearningState(state="on")


@router.delete(
    "/images/{sha256}",
    operation_id="delete_image",
    summary="Delete an image permanently",
    responses=error_responses({404: "No such image is kept.", **INVALID}),
)
async def delete_image(
    state: AppStateDependency,
    caller: OperatorCaller,
    sha256: Annotated[str, Path(pattern="^[0-9a-f]{64}$")],
) -> DeletedImage:
    """The file is removed, and the copy in memory that waits for an answer.

    Copies from which the model learns stay until newer images replace them. Snapshots keep their
    copies. The log keeps the hash.
    """
    state.engine.forget_image(sha256)
    if not await state.wait(state.store.delete_image(sha256, caller.id)):
        raise ApiError(404, f"no image is kept under {sha256}.")
    return DeletedImage(deleted=sha256)


@session_router.post(
    "", operation_id="sign_in", summary="Sign in", responses=error_responses(INVALID)
)
async def sign_in(request: Request, state: AppStateDependency, body: SignInRequest) -> CallerBody:
    """The response sets a cookie. The request needs the header X-Bitta: 1."""
    caller = await state.authenticator.sign_in(request, body.key)
    me = CallerBody(id=caller.id, role=caller.role, name=caller.name)
    response = JSONResponse(me.model_dump())
    response.set_cookie(
        COOKIE,
        state.authenticator.sessions.create(caller.id),
        max_age=state.authenticator.sessions.seconds,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )
    return response  # type: ignore[return-value]


@session_router.get("", operation_id="who_am_i", summary="Get the owner of the key")
async def who_am_i(caller: AnyCaller) -> CallerBody:
    """The owner of the key in the header or in the cookie."""
    return CallerBody(id=caller.id, role=caller.role, name=caller.name)


@session_router.delete("", operation_id="sign_out", summary="Sign out", status_code=204)
async def sign_out(request: Request, state: AppStateDependency, _: AnyCaller) -> Response:
    """The cookie is revoked."""
    state.authenticator.sessions.revoke(request.cookies.get(COOKIE, ""))
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return response


def _snapshot_item(snapshot: StoredSnapshot) -> SnapshotItem:
    return SnapshotItem(**shared_fields(snapshot, SnapshotItem.model_fields))
