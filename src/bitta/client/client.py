"""Client of a bitta server, in a blocking form and for asyncio."""

from asyncio import sleep as async_sleep
from collections.abc import Mapping, Sequence
from time import sleep
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from bitta.client.images import Image
from bitta.client.request_plans import AnswerDetails, ApiRequest, Plan, RequestPlans
from bitta.client.retries import Outcome
from bitta.config_base import require
from bitta.errors import SettingError
from bitta.records import AskedQuestion, FeedbackReceipt, ServedPrediction, UndoReceipt, Verdict
from bitta.version import __version__

T = TypeVar("T")


class BaseClient:
    """Settings and HTTP options of a client. `repr` and error messages do not show the key."""

    def __init__(
        self, url: str, key: str, *, model: str | None, timeout: float, retries: int
    ) -> None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise SettingError(
                f"url is {url!r}; allowed: an address that begins with http:// or https://."
            )
        if not isinstance(key, str) or not key.isascii() or not key.isprintable() or not key:
            raise SettingError(
                'the key is not printable ASCII text; make one with "bitta keys create".'
            )
        require(timeout > 0, "timeout", timeout, "more than 0 seconds")
        self.url = url.rstrip("/")
        self.model = model
        """Name of the model. None selects the only model of the server."""
        self.timeout = timeout
        self._plans = RequestPlans(self.url, key, model=model, n_retries=retries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _client_options(self, key: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {key}", "User-Agent": f"bitta/{__version__}"}
        return {"base_url": f"{self.url}/", "headers": headers, "timeout": self.timeout}

    def _request_options(self, request: ApiRequest[Any]) -> dict[str, Any]:
        return {
            "method": request.method,
            "url": request.path,
            "headers": dict(request.headers),
            "json": request.json,
            "content": request.content,
            "timeout": httpx.Timeout(self.timeout, read=self.timeout + request.extra_seconds),
        }


class Client(BaseClient):
    """Connection to a server with one key. Threads may share it.

    If the server is busy or the network fails, a call is repeated up to `retries` times, with
    growing delays. An answer keeps its idempotency key, so it is stored once. A prediction is
    repeated only if the server certainly did not serve it. `timeout` is in seconds per attempt.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        model: str | None = None,
        timeout: float = 10.0,
        retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, key, model=model, timeout=timeout, retries=retries)
        self._http = httpx.Client(transport=transport, **self._client_options(key))

    def predict(self, images: Image | Sequence[Image]) -> list[ServedPrediction]:
        """Return a prediction per image: bytes, paths, Pillow images, arrays or torch tensors."""
        return self._run(self._plans.predict(images))

    def next_question(self, *, wait: float = 0) -> AskedQuestion | None:
        """Return the next question for the owner of this key.

        Wait up to `wait` seconds for one. Return None if there is none.
        """
        return self._run(self._plans.next_question(wait))

    def answer(
        self,
        prediction: str | AskedQuestion | ServedPrediction,
        *,
        correct: bool | None = None,
        verdict: Verdict | None = None,
        **details: Unpack[AnswerDetails],
    ) -> FeedbackReceipt:
        """Answer a question about a prediction, with `correct=` or with `verdict=`.

        Return when the server has stored the answer on disk. `AnswerDetails` describes `details`.
        """
        plan = self._plans.answer(prediction, correct=correct, verdict=verdict, **details)
        return self._run(plan)

    def thumbs(
        self, prediction_id: str, *, up: bool, metadata: Mapping[str, Any] | None = None
    ) -> FeedbackReceipt:
        """Send a click on thumbs up or down. A second click on the same button changes nothing."""
        return self._run(self._plans.thumbs(prediction_id, up=up, metadata=metadata))

    def undo(self, feedback_id: str) -> UndoReceipt:
        """Undo an answer. Its id is `FeedbackReceipt.id`."""
        return self._run(self._plans.undo(feedback_id))

    def image(self, prediction: str | AskedQuestion) -> bytes:
        """Return the image of a prediction as PNG. The key needs the role annotator or operator."""
        return self._run(self._plans.image(prediction))

    def status(self) -> dict[str, Any]:
        """Return the status of the server: the body of GET /v1/status."""
        return self._run(self._plans.status())

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, plan: Plan[T]) -> T:
        try:
            request = next(plan)
            while True:
                if request.delay_seconds > 0:
                    sleep(request.delay_seconds)
                request = plan.send(self._send(request))
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _send(self, request: ApiRequest[Any]) -> Outcome:
        try:
            return self._http.request(**self._request_options(request))
        except httpx.RequestError as error:
            return error


class AsyncClient(BaseClient):
    """Client for asyncio: the calls of `Client`, each with `await`."""

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
        self._http = httpx.AsyncClient(transport=transport, **self._client_options(key))

    async def predict(self, images: Image | Sequence[Image]) -> list[ServedPrediction]:
        """Return a prediction per image. See `Client.predict`."""
        return await self._run(self._plans.predict(images))

    async def next_question(self, *, wait: float = 0) -> AskedQuestion | None:
        """Return the next question, or None. See `Client.next_question`."""
        return await self._run(self._plans.next_question(wait))

    async def answer(
        self,
        prediction: str | AskedQuestion | ServedPrediction,
        *,
        correct: bool | None = None,
        verdict: Verdict | None = None,
        **details: Unpack[AnswerDetails],
    ) -> FeedbackReceipt:
        """Answer a question. See `Client.answer`."""
        plan = self._plans.answer(prediction, correct=correct, verdict=verdict, **details)
        return await self._run(plan)

    async def thumbs(
        self, prediction_id: str, *, up: bool, metadata: Mapping[str, Any] | None = None
    ) -> FeedbackReceipt:
        """Send a click on thumbs up or thumbs down. See `Client.thumbs`."""
        return await self._run(self._plans.thumbs(prediction_id, up=up, metadata=metadata))

    async def undo(self, feedback_id: str) -> UndoReceipt:
        """Undo an answer. Its id is `FeedbackReceipt.id`."""
        return await self._run(self._plans.undo(feedback_id))

    async def image(self, prediction: str | AskedQuestion) -> bytes:
        """Return the image of a prediction as PNG. See `Client.image`."""
        return await self._run(self._plans.image(prediction))

    async def status(self) -> dict[str, Any]:
        """Return the status of the server. See `Client.status`."""
        return await self._run(self._plans.status())

    async def close(self) -> None:
        """Close the connections."""
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

    async def _run(self, plan: Plan[T]) -> T:
        try:
            request = next(plan)
            while True:
                if request.delay_seconds > 0:
                    await async_sleep(request.delay_seconds)
                request = plan.send(await self._send(request))
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _send(self, request: ApiRequest[Any]) -> Outcome:
        try:
            return await self._http.request(**self._request_options(request))
        except httpx.RequestError as error:
            return error
