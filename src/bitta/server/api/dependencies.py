"""Dependencies of the routes: the state of the app, and the caller with an allowed role."""

from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from structlog.typing import FilteringBoundLogger

from bitta.records import Role
from bitta.server.api.authentication import Authenticator, Caller
from bitta.server.api.engine_interface import EngineInterface, wait_for_future
from bitta.server.api.errors import ApiError
from bitta.server.api.events import LogWatcher
from bitta.server.api.metrics import InferenceCounter, ServerMetrics
from bitta.server.api.status import HealthChecks, StoreSummaryReader
from bitta.server.settings import ServeSettings
from bitta.server.store import Store
from bitta.streams import Geometry

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class AppState:
    """State of one app, stored as `app.state.bitta`."""

    engine: EngineInterface
    store: Store
    settings: ServeSettings
    geometry: Geometry | None
    """Resizing and cropping of encoded images. None: resize to cover the input shape, then crop."""
    authenticator: Authenticator
    log_watcher: LogWatcher
    health: HealthChecks
    metrics: ServerMetrics
    summary_reader: StoreSummaryReader
    inference_counter: InferenceCounter
    log: FilteringBoundLogger

    async def wait(self, future: "Future[T]") -> T:
        """Return the result of another thread's work, or refuse the request after a timeout.

        The work continues after the timeout. Status 504 tells this apart from 503, which says that
        the request had no effect.
        """
        try:
            return await wait_for_future(future, self.settings.limits.response_seconds)
        except TimeoutError:
            if future.done():
                raise
            raise ApiError(
                504,
                "the server is too busy to answer in time; it may still do what was requested.",
                headers={"Retry-After": "5"},
            ) from None


def app_state(request: Request) -> AppState:
    """Return the state of the app that received this request."""
    state: AppState = request.app.state.bitta
    return state


class AuthenticatedRoute(APIRoute):
    """Route that checks the key before FastAPI reads the body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that checks the key and then calls FastAPI's handler."""
        handle = super().get_route_handler()

        async def authenticate_and_handle(request: Request) -> Response:
            await app_state(request).authenticator.authenticate(request)
            return await handle(request)

        return authenticate_and_handle


async def _app_state_dependency(request: Request) -> AppState:
    # FastAPI would run a plain function in a thread for every request.
    return app_state(request)


def _caller_with_role(roles: Collection[Role]) -> Callable[[Request], Awaitable[Caller]]:
    async def authorize(request: Request) -> Caller:
        return await app_state(request).authenticator.authorize(request, roles)

    return authorize


AppStateDependency = Annotated[AppState, Depends(_app_state_dependency)]
AnyCaller = Annotated[Caller, Depends(_caller_with_role(("client", "annotator", "operator")))]
ClientCaller = Annotated[Caller, Depends(_caller_with_role(("client", "operator")))]
AnnotatorCaller = Annotated[Caller, Depends(_caller_with_role(("annotator", "operator")))]
OperatorCaller = Annotated[Caller, Depends(_caller_with_role(("operator",)))]
