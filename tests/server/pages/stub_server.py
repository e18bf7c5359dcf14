"""Stub of the API in memory, on a port of its own, for tests of the pages without a model."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from sse_starlette.sse import EventSourceResponse

from bitta.server.pages import HEADERS, PAGES
from server.pages import stub_state as data
from server.pages.stub_state import CLASSES, KEYS, State, now_microseconds, prediction_id_of


class StubSite:
    """Running stub with its address, and the state that tests read and change."""

    def __init__(self) -> None:
        self.state = State()
        config = uvicorn.Config(
            create_stub(self.state), port=0, log_level="error", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self.url = ""

    def __enter__(self) -> "StubSite":
        self._thread.start()
        until(lambda: self._server.started)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    @contextmanager
    def without_streams(self) -> Iterator[None]:
        """End open event streams and refuse new ones, as during a restart of the server."""
        self.state.accepts_streams = False
        yield
        self.state.accepts_streams = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.state.is_stopping = True
        self._server.should_exit = True
        self._thread.join(30)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until the condition is true, or fail."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.02)


def create_stub(state: State) -> FastAPI:
    """Return the app of the stub."""
    app = FastAPI(openapi_url=None)
    _pages(app)
    _sessions(app)
    _queue(app, state)
    _feedback(app, state)
    _operation(app, state)
    return app


def _pages(app: FastAPI) -> None:
    def handler(address: str) -> Callable[[], Response]:
        page = PAGES[address]
        headers = {**HEADERS, "Content-Type": page.content_type}
        return lambda: Response(page.body, headers=headers)

    for address in PAGES:
        app.get(address)(handler(address))


def _sessions(app: FastAPI) -> None:
    @app.post("/v1/session")
    async def sign_in(request: Request) -> Response:
        me = KEYS.get((await request.json())["key"])
        if me is None:
            return problem(401, "unauthorized", "this key is not known")
        response = JSONResponse(me)
        response.set_cookie("bitta_session", me["id"], httponly=True, samesite="strict")
        return response

    @app.get("/v1/session")
    def who(request: Request) -> Response:
        me = caller(request)
        return JSONResponse(me) if me else problem(401, "unauthorized", "sign in first")

    @app.delete("/v1/session")
    def sign_out() -> Response:
        response = Response(status_code=204)
        response.delete_cookie("bitta_session")
        return response


def caller(request: Request) -> dict[str, str] | None:
    """Return the caller of a request."""
    name = request.cookies.get("bitta_session")
    return next((me for me in KEYS.values() if me["id"] == name), None)


def problem(status: int, code: str, sentence: str) -> JSONResponse:
    """Return an error response."""
    return JSONResponse({"error": sentence, "code": code}, status)


def _queue(app: FastAPI, state: State) -> None:
    @app.get("/v1/queue/next")
    async def following(request: Request, wait: float = 0) -> Response:
        me = caller(request)
        if me is None:
            return problem(401, "unauthorized", "sign in first")
        exclude = set(request.query_params.getlist("exclude"))
        end = time.monotonic() + min(wait, 25)
        while True:
            with state.lock:
                question = _lease(state, me["id"], exclude)
            if question is not None:
                return JSONResponse({"question": question, "left": len(state.open_questions())})
            if time.monotonic() > end or state.is_stopping or await request.is_disconnected():
                return Response(status_code=204)
            await asyncio.sleep(0.05)

    @app.get("/v1/predictions/{name}/image")
    def picture(name: str) -> Response:
        body = data.picture(int(name.removeprefix("PREDICTION")))
        return Response(body, media_type="image/png", headers={"Cache-Control": "private"})


def _lease(state: State, annotator: str, exclude: set[str]) -> dict[str, Any] | None:
    """Lease the question that the annotator holds, or the first one that nobody holds."""
    now = now_microseconds()
    answered = {one["prediction_id"] for one in state.current_answers(annotator)}

    def held_by(name: str) -> str | None:
        lease = state.leases.get(name)
        return lease["by"] if lease and lease["until"] > now else None

    indices = [
        index
        for index in state.open_questions()
        if prediction_id_of(index) not in exclude | answered
        and held_by(prediction_id_of(index)) in (None, annotator)
    ]
    if not indices:
        return None
    index = min(indices, key=lambda one: (held_by(prediction_id_of(one)) is None, one))
    name = prediction_id_of(index)
    until = now + round(state.lease_seconds * 1e6)
    state.leases[name] = {"by": annotator, "token": f"lease-{name}-{annotator}", "until": until}
    state.leased.append((annotator, name))
    return {
        "prediction_id": name,
        "label": state.label(index),
        "class_index": index % len(CLASSES),
        "confidence": 0.55,
        "uncertainty": 0.9,
        "reason_shown": None,
        "image_url": f"/v1/predictions/{name}/image",
        "asked_at": now,
        "expires_at": now + 600_000_000,
        "lease": {"token": state.leases[name]["token"], "until": until},
        "model_version": state.version,
    }


def _feedback(app: FastAPI, state: State) -> None:
    @app.post("/v1/feedback")
    async def answer(request: Request) -> Response:
        me = caller(request)
        if me is None:
            return problem(401, "unauthorized", "sign in first")
        if request.headers.get("X-Bitta") != "1":
            return problem(403, "forbidden", "X-Bitta is missing")
        if state.is_unavailable:
            return problem(503, "unavailable", "the disk is full")
        body = await request.json()
        with state.lock:
            response = _answer(state, me["id"], request.headers["Idempotency-Key"], body)
        if state.lost_responses:
            return problem(
                state.lost_responses.pop(0), "unavailable", "the answer to this was lost"
            )
        return response

    @app.post("/v1/feedback/{name}/undo")
    def undo(name: str, request: Request) -> Response:
        found = next((one for one in state.feedback if one["id"] == name), None)
        me = caller(request)
        if found is None or me is None:
            return problem(404, "not_found", "no such answer")
        applied = name in state.applied_ids
        if not found["undone"]:
            found.update(undone=True, standing=False)
            state.record(
                "undone", {"feedback_id": name, "undoes": found["seq"], "applied": applied}
            )
        note = "The model had already learned from it." if applied else "It was not learned from."
        return JSONResponse({"undone": name, "applied": applied, "note": note})

    @app.get("/v1/feedback")
    def own(request: Request, limit: int = 50, before: int | None = None) -> Response:
        me = caller(request)
        if me is None:
            return problem(401, "unauthorized", "sign in first")
        mine = [one for one in reversed(state.feedback) if one["annotator_id"] == me["id"]]
        rest = [one for one in mine if before is None or one["seq"] < before]
        following = rest[limit - 1]["seq"] if len(rest) > limit else None
        return JSONResponse({"feedback": rest[:limit], "next": following})


def _answer(state: State, annotator: str, key: str, body: dict[str, Any]) -> Response:
    state.posts.append((key, body["prediction_id"]))
    stored = next((one for one in state.feedback if one["idempotency_key"] == key), None)
    if stored is not None:
        same = stored["body"] == body
        return JSONResponse(stored) if same else problem(422, "conflict", "another answer")
    if state.refusal:
        return problem(422, "invalid", state.refusal)
    name = body["prediction_id"]
    before = next(
        (one for one in state.current_answers(annotator) if one["prediction_id"] == name), None
    )
    if name in state.expired_ids and before is None:
        return problem(410, "expired", "this question expired before the answer came")
    if before:
        before["standing"] = False
    found = _stored(state, annotator, key, body)
    found["supersedes_id"] = before["id"] if before else None
    state.feedback.append(found)
    state.leases.pop(name, None)
    return JSONResponse(found, 201)


def _stored(state: State, annotator: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    index = int(body["prediction_id"].removeprefix("PREDICTION"))
    feedback_id = f"F{len(state.feedback)}"
    return {
        "id": feedback_id,
        "idempotency_key": key,
        "seq": state.record("answered", {"feedback_id": feedback_id}),
        "prediction_id": body["prediction_id"],
        "model_version": state.version,
        "predicted_label": state.label(index),
        "verdict": body["verdict"],
        "annotator_id": annotator,
        "comment": body.get("comment"),
        "answered_at": body["answered_at"],
        "received_at": now_microseconds(),
        "status": "pending",
        "standing": True,
        "undone": False,
        "body": body,
    }


def _operation(app: FastAPI, state: State) -> None:
    @app.get("/v1/status")
    def status(request: Request) -> Response:
        me = caller(request)
        return (
            JSONResponse(data.status(state, me)) if me else problem(401, "unauthorized", "sign in")
        )

    @app.get("/v1/events")
    def events(request: Request) -> Response:
        me = caller(request)
        if me is None:
            return problem(401, "unauthorized", "sign in first")
        if not state.accepts_streams:
            return problem(503, "unavailable", "the server restarts")
        return EventSourceResponse(_stream(state, me))

    @app.get("/v1/questions")
    def questions(status: str | None = None) -> Response:
        return JSONResponse({"questions": data.questions(state) if status == "open" else []})

    @app.get("/v1/snapshots")
    def snapshots() -> Response:
        return JSONResponse({"snapshots": state.snapshots})

    @app.post("/v1/snapshots")
    def snapshot() -> Response:
        kept = {**state.snapshots[-1], "id": f"snap{len(state.snapshots)}", "reason": "asked"}
        state.snapshots.append(
            {**kept, "model_version": state.version, "created_at": now_microseconds()}
        )
        state.record("snapshot", {"snapshot_id": kept["id"], "version": state.version})
        return JSONResponse(state.snapshots[-1], 201)

    @app.post("/v1/rollback")
    async def rollback(request: Request) -> Response:
        body = await request.json()
        chosen = next(one for one in state.snapshots if one["id"] == body["snapshot_id"])
        was, state.version = state.version, f"2.{chosen['model_version'].partition('.')[2]}"
        said = {"from_version": was, "by": "op", "reason": body.get("reason")}
        state.record("rollback", {"snapshot_id": chosen["id"], **said})
        return JSONResponse({"model_version": state.version})

    @app.post("/v1/adaptation/{change}")
    async def adaptation(change: str, request: Request) -> Response:
        reason = (await request.json()).get("reason", "")
        state.pause_reason = reason if change == "pause" else None
        state.record("paused" if change == "pause" else "resumed", {"by": "op", "reason": reason})
        return JSONResponse({"state": "on" if state.pause_reason is None else "paused"})


async def _stream(state: State, me: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
    sent = len(state.events)
    status_sent_at = 0.0
    while not state.is_stopping and state.accepts_streams:
        if time.monotonic() - status_sent_at > 1:
            status_sent_at = time.monotonic()
            yield {"event": "status", "data": json.dumps(data.status(state, me))}
        for seq, kind, body in state.events[sent:]:
            sent = seq
            yield {"event": kind, "id": str(seq), "data": json.dumps(body)}
        await asyncio.sleep(0.05)
