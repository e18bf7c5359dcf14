"""Who calls: API keys in a header, or a signed cookie for the pages."""

import base64
import binascii
import hmac
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import sha256
from math import ceil
from pathlib import Path
from time import monotonic, time

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from bitta.errors import InputError
from bitta.records import Role
from bitta.server.api.errors import Refused
from bitta.server.api.limits import RateLimit
from bitta.server.settings import ServeSettings
from bitta.server.store.keys import ApiKeys
from bitta.server.store.records import KeyRecord
from bitta.statefile import write_atomically

COOKIE = "bitta_session"
_SAFE = ("GET", "HEAD", "OPTIONS")
_REMEMBERED = 10_000
_FRESH = 1.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a key, for one request."""

    id: str
    role: Role
    name: str

    @classmethod
    def of(cls, key: KeyRecord) -> "Caller":
        """Without what the API does not need to know."""
        return cls(key.id, key.role, key.name)


class Auth:
    """Tells callers apart and holds them to their rate."""

    def __init__(self, keys: ApiKeys, settings: ServeSettings, secret: bytes) -> None:
        limits = settings.limits
        self._keys = keys
        self._rates = RateLimit(limits.requests_per_second, limits.burst)
        per_second = limits.failures_per_minute / 60
        self._failures = RateLimit(per_second, max(1.0, limits.failures_per_minute))
        self._by_token, self._by_id = _Seen(), _Seen()
        self.sessions = Sessions(secret, seconds=int(settings.session_hours * 3600))

    async def caller(self, request: Request, roles: Collection[Role]) -> Caller:
        """Who makes this request; refused unless their role is one of these."""
        caller = await self.known(request)
        request.scope["state"]["key_id"] = caller.id
        if wait := self._rates.take(caller.id):
            raise too_many("this key has made too many requests", wait)
        if caller.role not in roles:
            allowed = " or ".join(sorted(roles))
            raise Refused(403, f"the role of this key is {caller.role}; allowed here: {allowed}.")
        return caller

    async def known(self, request: Request) -> Caller:
        """Who makes this request, whatever their role."""
        token = _bearer(request.headers.get("authorization"))
        if token is not None:
            return await self._owner(request, token)
        cookie = request.cookies.get(COOKIE)
        if cookie is None:
            raise _unauthorized("no key was given; send the header Authorization: Bearer KEY.")
        key_id = self.sessions.key_id(cookie)
        caller = None if key_id is None else await self._named(key_id)
        if caller is None:
            raise _unauthorized("the session is over; sign in again.")
        _same_site(request)
        return caller

    async def still(self, request: Request, caller: Caller) -> bool:
        """Whether a request that lasts may go on: its key is valid, its session not over."""
        if _bearer(request.headers.get("authorization")) is None:
            cookie = request.cookies.get(COOKIE, "")
            if self.sessions.key_id(cookie) != caller.id:
                return False
        return await self._named(caller.id) is not None

    async def signed_in(self, request: Request, token: str) -> Caller:
        """The owner of a key that somebody has typed in."""
        _same_site(request)
        return await self._owner(request, token)

    async def _named(self, key_id: str) -> Caller | None:
        caller = self._by_id.get(key_id)
        if caller is None:
            for key in await run_in_threadpool(self._keys.list):
                if key.id == key_id and key.revoked_at is None:
                    caller = Caller.of(key)
                    self._by_id.put(key_id, caller)
        return caller

    async def _owner(self, request: Request, token: str) -> Caller:
        address = request.client.host if request.client else ""
        if wait := self._failures.empty(address):
            raise too_many("too many wrong keys came from this address", wait)
        # By its hash: how long a search takes then says nothing about the key.
        name = sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        caller = self._by_token.get(name)
        if caller is None:
            key = await run_in_threadpool(self._keys.verify, token)
            if key is None:
                self._failures.take(address)
                raise _unauthorized("the key is unknown or was revoked.")
            caller = Caller.of(key)
            self._by_token.put(name, caller)
        return caller


class _Seen:
    """Callers that were found a moment ago; a revoked key works no longer than that."""

    def __init__(self) -> None:
        self._callers: dict[str, tuple[Caller, float]] = {}

    def get(self, name: str) -> Caller | None:
        caller, until = self._callers.get(name, (None, 0.0))
        return caller if until > monotonic() else None

    def put(self, name: str, caller: Caller) -> None:
        if len(self._callers) >= _REMEMBERED:
            self._callers.clear()
        self._callers[name] = caller, monotonic() + _FRESH


class Sessions:
    """Cookies that name a key and an hour, signed; a restart does not end them."""

    def __init__(self, secret: bytes, *, seconds: int, clock: Callable[[], float] = time) -> None:
        self._secret = secret
        self.seconds = seconds
        self._clock = clock
        self._ended: dict[str, float] = {}

    def begin(self, key_id: str) -> str:
        """A cookie for the owner of a key."""
        until = int(self._clock()) + self.seconds
        said = f"{key_id}.{until}.{secrets.token_urlsafe(9)}"
        return f"{said}.{self._signature(said)}"

    def key_id(self, cookie: str) -> str | None:
        """Whose cookie it is; None unless it is ours and in time."""
        said, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._signature(said).encode(), signature.encode()):
            return None
        if said in self._ended:
            return None
        key_id, until, _ = said.rsplit(".", 2)
        return key_id if int(until) > self._clock() else None

    def end(self, cookie: str) -> None:
        """Refuse it from now on."""
        if self.key_id(cookie) is None:
            return
        now = self._clock()
        self._ended = {said: until for said, until in self._ended.items() if until > now}
        if len(self._ended) < _REMEMBERED:
            self._ended[cookie.rpartition(".")[0]] = now + self.seconds

    def _signature(self, said: str) -> str:
        return hmac.new(self._secret, said.encode(), sha256).hexdigest()


def session_secret(data_dir: Path) -> bytes:
    """What cookies are signed with; made on first use, readable by the owner alone."""
    path = data_dir / "session.secret"
    if not path.exists():
        try:
            write_atomically(path, secrets.token_bytes(32), mode=0o600)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be written ({error.strerror}).") from None
    secret = path.read_bytes()
    if len(secret) < 32:
        raise InputError(
            f"{str(path)!r} holds {len(secret)} bytes; 32 are needed. Remove it: everybody "
            "signs in again."
        )
    return secret


def too_many(sentence: str, wait: float) -> Refused:
    """Come back later."""
    seconds = max(1, ceil(wait))
    return Refused(
        429, f"{sentence}; try again in {seconds} s.", headers={"Retry-After": str(seconds)}
    )


def _unauthorized(sentence: str) -> Refused:
    return Refused(401, sentence, headers={"WWW-Authenticate": 'Bearer realm="bitta"'})


def _bearer(header: str | None) -> str | None:
    """The key in an Authorization header; as the password of Basic too, for tritonclient."""
    scheme, _, rest = (header or "").strip().partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer":
        return rest
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest, validate=True).decode("utf-8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return None


def _same_site(request: Request) -> None:
    """A page of somebody else must not change anything with a visitor's cookie."""
    if request.method in _SAFE or request.headers.get("x-bitta") == "1":
        return
    if request.headers.get("sec-fetch-site") == "same-origin":
        return
    raise Refused(
        403, "a request with a cookie that changes something needs the header X-Bitta: 1."
    )
