"""The client for asyncio."""

from asyncio import sleep
from collections.abc import Mapping, Sequence
from math import ceil
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

from bitta.client import calls
from bitta.client.calls import LONGEST_WAIT, Call
from bitta.client.images import Image
from bitta.client.library import httpx
from bitta.client.records import Answered, Kind, ModelInput, Question, Served, Undone, Verdict
from bitta.client.shared import Shared

T = TypeVar("T")
_SOON = 0.5


class AsyncClient(Shared):
    """As `Client`, with `await` before every call."""

    def __init__(
        self,
        url: str,
        key: str,
        *,
        model: str | None = None,
        timeout: float = 10.0,
        retries: int = 5,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, key, model=model, timeout=timeout, retries=retries)
        self._http = httpx.AsyncClient(transport=transport, **self._options(key))
        self._input: ModelInput | None = None

    async def predict(self, images: Image | Sequence[Image]) -> list[Served]:
        """Serve one image or several: bytes, paths, Pillow images, arrays or torch tensors."""
        served: list[Served] = []
        for call in calls.predictions(images, await self._model_input()):
            served += await self._do(call)
        return served

    async def next_question(self, *, wait: float = 0) -> Question | None:
        """The next question for the owner of this key; waits up to `wait` seconds for one."""
        until = monotonic() + wait
        while True:
            began = monotonic()
            held = min(LONGEST_WAIT, max(0, ceil(until - began)))
            question = await self._do(calls.next_question(held))
            left = until - monotonic()
            if question is not None or left <= 0:
                return question
            if monotonic() - began < _SOON:  # a server that does not hold calls
                await sleep(min(1.0, left))

    async def answer(
        self,
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
    ) -> Answered:
        """Say whether a prediction was right, or `verdict="skip"`; returns once it is on disk.

        Times are microseconds since 1970; `answered_at` is for what is sent later than it was said.
        """
        return await self._do(
            calls.answer(
                of,
                correct=correct,
                verdict=verdict,
                comment=comment,
                metadata=metadata,
                shown_at=shown_at,
                answered_at=answered_at,
                lead_time_ms=lead_time_ms,
                kind=kind,
                idempotency_key=idempotency_key,
            )
        )

    async def thumbs(
        self, prediction_id: str, *, up: bool, metadata: Mapping[str, Any] | None = None
    ) -> Answered:
        """What a thumbs-up/down button sends: a second click on it changes nothing."""
        call = calls.thumbs(prediction_id, up=up, metadata=metadata, by=self._owner)
        given = await self._do(call)
        if given.repeated and not given.record.get("standing", True):
            # Up, down, and up again: the first is no longer what counts.
            return await self.answer(prediction_id, correct=up, metadata=metadata)
        return given

    async def undo(self, feedback_id: str) -> Undone:
        """Take an answer back, by `Answered.id`."""
        return await self._do(calls.undo(feedback_id))

    async def image(self, of: str | Question) -> bytes:
        """The picture of a prediction, as PNG; for annotators and operators."""
        return await self._do(calls.image(of if isinstance(of, str) else of.prediction_id))

    async def status(self) -> dict[str, Any]:
        """How the server fares, as GET /v1/status tells it."""
        return await self._do(calls.status())

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _model_input(self) -> ModelInput:
        if self._input is None:
            model = self.model
            if model is None:
                model = await self._do(calls.models())
            self._input = await self._do(calls.model_input(model))
        return self._input

    async def _do(self, call: Call[T]) -> T:
        attempt = 0
        while True:
            failure: httpx.Response | httpx.RequestError
            try:
                response = await self._http.request(**self._arguments(call))
            except httpx.RequestError as error:
                failure = error
            else:
                if response.is_success:
                    return call.read(response)
                failure = response
            await sleep(self._pause(call, attempt, failure))
            attempt += 1
