"""Authentication: API keys, session cookies for the pages, roles, and rate limits per key."""

import base64
import binascii
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic, time

from fastapi import Request
from itsdangerous import BadData, URLSafeTimedSerializer
from starlette.concurrency import run_in_threadpool

from bitta.errors import InputError
from bitta.records import Role
from bitta.server.api.errors import ApiError, too_many_requests
from bitta.server.settings import ServeSettings
from bitta.server.store.keys import ApiKeys
from bitta.server.store.records import KeyRecord
from bitta.statefile import write_atomically

COOKIE = "bitta_session"
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_MAX_ENTRIES = 10_000
"""Maximum size of each table that this module keeps in memory."""
_CACHE_SECONDS = 1.0
"""Time for which a key counts as valid after it was checked in the store."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Owner of the key of a request."""

    id: str
    role: Role
    name: str

    @classmethod
    def from_key(cls, key: KeyRecord) -> "Caller":
        """Return the owner of a key."""
        return cls(key.id, key.role, key.name)


class Authenticator:
    """Finds the caller of each request, and limits the rate of each key."""

    def __init__(self, keys: ApiKeys, settings: ServeSettings, secret: bytes) -> None:
        limits = settings.limits
        self._keys = keys
        self._requests = RateLimiter(limits.requests_per_second, limits.burst)
        failures_per_second = limits.invalid_keys_per_minute / 60
        self._failures = RateLimiter(failures_per_second, max(1.0, limits.invalid_keys_per_minute))
        self._by_token_hash, self._by_id = _CallerCache(), _CallerCache()
        self.sessions = SessionCookies(secret, seconds=int(settings.session_hours * 3600))

    async def authorize(self, request: Request, roles: Collection[Role]) -> Caller:
        """Return the caller. Refuse roles outside of `roles`, and keys above their rate limit."""
        caller = await self.authenticate(request)
        request.scope["state"]["key_id"] = caller.id
        if wait_seconds := self._requests.take(caller.id):
            raise too_many_requests("this key has made too many requests", wait_seconds)
        if caller.role not in roles:
            allowed = " or ".join(sorted(roles))
            raise ApiError(403, f"the role of this key is {caller.role}; allowed here: {allowed}.")
        return caller

    async def authenticate(self, request: Request) -> Caller:
        """Return the caller, by the key in the header or by the cookie."""
        token = _token_from_header(request.headers.get("authorization"))
        if token is not None:
            return await self._caller_by_token(request, token)
        cookie = request.cookies.get(COOKIE)
        if cookie is None:
            raise _unauthorized("no key was given; send the header Authorization: Bearer KEY.")
        key_id = self.sessions.key_id(cookie)
        caller = None if key_id is None else await self._caller_by_id(key_id)
        if caller is None:
            raise _unauthorized("the session is over; sign in again.")
        _require_same_site(request)
        return caller

    async def is_still_valid(self, request: Request, caller: Caller) -> bool:
        """Return True if the key and the session of an open stream are still valid."""
        if _token_from_header(request.headers.get("authorization")) is None:
            cookie = request.cookies.get(COOKIE, "")
            if self.sessions.key_id(cookie) != caller.id:
                return False
        return await self._caller_by_id(caller.id) is not None

    async def sign_in(self, request: Request, token: str) -> Caller:
        """Return the owner of a key that a person entered on a page."""
        _require_same_site(request)
        return await self._caller_by_token(request, token)

    async def _caller_by_id(self, key_id: str) -> Caller | None:
        caller = self._by_id.get(key_id)
        if caller is None:
            for key in await run_in_threadpool(self._keys.list):
                if key.id == key_id and key.revoked_at is None:
                    caller = Caller.from_key(key)
                    self._by_id.put(key_id, caller)
        return caller

    async def _caller_by_token(self, request: Request, token: str) -> Caller:
        address = request.client.host if request.client else ""
        if wait_seconds := self._failures.seconds_to_wait(address):
            raise too_many_requests("too many wrong keys came from this address", wait_seconds)
        # Look the token up by its hash, so that the time of the lookup reveals nothing about it.
        token_hash = sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        caller = self._by_token_hash.get(token_hash)
        if caller is None:
            key = await run_in_threadpool(self._keys.verify, token)
            if key is None:
                self._failures.take(address)
                raise _unauthorized("the key is unknown or was revoked.")
            caller = Caller.from_key(key)
            self._by_token_hash.put(token_hash, caller)
        return caller


class _CallerCache:
    """Cache of callers. Entries expire soon, so that a revoked key soon stops working."""

    def __init__(self) -> None:
        self._callers: dict[str, tuple[Caller, float]] = {}

    def get(self, name: str) -> Caller | None:
        caller, expires_at = self._callers.get(name, (None, 0.0))
        return caller if expires_at > monotonic() else None

    def put(self, name: str, caller: Caller) -> None:
        if len(self._callers) >= _MAX_ENTRIES:
            self._callers.clear()
        self._callers[name] = caller, monotonic() + _CACHE_SECONDS


class SessionCookies:
    """Signed cookies that name a key and expire. They stay valid when the server restarts."""

    def __init__(self, secret: bytes, *, seconds: int) -> None:
        self.seconds = seconds
        """Lifetime of a cookie."""
        self._serializer = URLSafeTimedSerializer(
            secret,
            salt="bitta.session",
            signer_kwargs={"key_derivation": "hmac", "digest_method": sha256},
        )
        self._revoked: dict[str, float] = {}
        """Revoked session ids, with the time after which the cookie has expired anyway."""

    def create(self, key_id: str) -> str:
        """Return a new cookie for the owner of a key."""
        return str(self._serializer.dumps([key_id, secrets.token_urlsafe(9)]))

    def key_id(self, cookie: str) -> str | None:
        """Return the key's id, or None if the cookie is forged, expired or revoked."""
        session = self._read(cookie)
        return None if session is None else session[0]

    def revoke(self, cookie: str) -> None:
        """Refuse this cookie from now on."""
        session = self._read(cookie)
        if session is None:
            return
        now = time()
        self._revoked = {name: until for name, until in self._revoked.items() if until > now}
        if len(self._revoked) < _MAX_ENTRIES:
            self._revoked[session[1]] = now + self.seconds + 1

    def _read(self, cookie: str) -> tuple[str, str] | None:
        """Return the ids of the key and of the session."""
        try:
            key_id, session_id = self._serializer.loads(cookie, max_age=self.seconds)
        except BadData:
            return None
        return None if session_id in self._revoked else (key_id, session_id)


def load_session_secret(data_dir: Path) -> bytes:
    """Return the secret that signs cookies. The first call creates its file (mode 0600)."""
    path = data_dir / "session.secret"
    if not path.exists():
        try:
            write_atomically(path, secrets.token_bytes(32), mode=0o600)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be written ({error.strerror}).") from None
    secret = path.read_bytes()
    if len(secret) < 32:
        raise InputError(
            f"{str(path)!r} holds {len(secret)} bytes; 32 or more are needed. Remove the file; "
            "everybody then has to sign in again."
        )
    return secret


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    updated_at: float


class RateLimiter:
    """Token bucket per name: `burst` requests at once, `rate` requests per second on average."""

    def __init__(
        self, rate: float, burst: float, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[str, _TokenBucket] = {}
        """Buckets in the order of their last use."""

    def take(self, name: str) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        bucket = self._refilled(name)
        if bucket.tokens < 1.0:
            return (1.0 - bucket.tokens) / self._rate
        bucket.tokens -= 1.0
        return 0.0

    def seconds_to_wait(self, name: str) -> float:
        """Return the seconds until there is a token, without taking it."""
        tokens = self._refilled(name).tokens
        return 0.0 if tokens >= 1.0 else (1.0 - tokens) / self._rate

    def _refilled(self, name: str) -> _TokenBucket:
        now = self._clock()
        bucket = self._buckets.pop(name, None)
        if bucket is None:
            bucket = _TokenBucket(self._burst, now)
            if len(self._buckets) >= _MAX_ENTRIES:  # drop the least recently used
                del self._buckets[next(iter(self._buckets))]
        self._buckets[name] = bucket
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.updated_at) * self._rate)
        bucket.updated_at = now
        return bucket


def _unauthorized(sentence: str) -> ApiError:
    return ApiError(401, sentence, headers={"WWW-Authenticate": 'Bearer realm="bitta"'})


def _token_from_header(header: str | None) -> str | None:
    """Return the key of an Authorization header. tritonclient sends it as a Basic password."""
    scheme, _, credentials = (header or "").strip().partition(" ")
    credentials = credentials.strip()
    if scheme.lower() == "bearer":
        return credentials
    if scheme.lower() == "basic":
        try:
            decoded = base64.b64decode(credentials, validate=True).decode("utf-8")
        except (binascii.Error, UnicodeDecodeError):
            return ""
        return decoded.partition(":")[2]
    return None


def _require_same_site(request: Request) -> None:
    """Refuse cross-site requests that change something (CSRF). Browsers add the cookie to them."""
    if request.method in _SAFE_METHODS or request.headers.get("x-bitta") == "1":
        return
    if request.headers.get("sec-fetch-site") == "same-origin":
        return
    raise ApiError(
        403, "a page must send the header X-Bitta: 1 with each request that changes something."
    )
