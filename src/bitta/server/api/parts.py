"""What every route works with, in one place per app."""

from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from structlog.typing import FilteringBoundLogger

from bitta.records import Role
from bitta.server.api.auth import Auth, Caller
from bitta.server.api.errors import Refused
from bitta.server.api.feed import Feed
from bitta.server.api.health import Health
from bitta.server.api.metrics import Metrics
from bitta.server.api.ports import Engine
from bitta.server.api.status import Reader
from bitta.server.api.tally import Tally
from bitta.server.api.waiting import outcome
from bitta.server.settings import ServeSettings
from bitta.server.store import Store
from bitta.streams import Geometry

T = TypeVar("T")
_EVERYBODY: tuple[Role, ...] = ("client", "annotator", "operator")


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """An app's own; nothing here is shared between apps."""

    engine: Engine
    store: Store
    settings: ServeSettings
    geometry: Geometry | None
    """How encoded pictures get to the model's shape; None: just covered, cut from the middle."""
    auth: Auth
    feed: Feed
    health: Health
    metrics: Metrics
    reader: Reader
    tally: Tally
    log: FilteringBoundLogger

    async def wait(self, future: "Future[T]") -> T:
        """The result of work of another thread, within bounds; the work itself goes on."""
        try:
            return await outcome(future, self.settings.limits.answer_seconds)
        except TimeoutError:
            if future.done():
                raise
            raise Refused(
                503,
                "the server is too busy to answer in time; what was asked may still be done.",
                headers={"Retry-After": "5"},
            ) from None


def parts_of(request: Request) -> Parts:
    """Of the app that got this request."""
    parts: Parts = request.app.state.parts
    return parts


class KeyedRoute(APIRoute):
    """Knows who calls before it reads the body, which FastAPI reads before it asks anything."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As FastAPI makes it, behind the key."""
        handle = super().get_route_handler()

        async def keyed(request: Request) -> Response:
            await parts_of(request).auth.known(request)
            return await handle(request)

        return keyed


async def _own(request: Request) -> Parts:
    # Not parts_of itself: FastAPI would call a plain function in a thread, for every request.
    return parts_of(request)


def _callers(roles: Collection[Role]) -> Callable[[Request], Awaitable[Caller]]:
    async def check(request: Request) -> Caller:
        return await parts_of(request).auth.caller(request, roles)

    return check


Everybody = Annotated[Caller, Depends(_callers(_EVERYBODY))]
Clients = Annotated[Caller, Depends(_callers(("client", "operator")))]
Annotators = Annotated[Caller, Depends(_callers(("annotator", "operator")))]
Operators = Annotated[Caller, Depends(_callers(("operator",)))]
Own = Annotated[Parts, Depends(_own)]
