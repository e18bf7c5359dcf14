"""The annotator's and the operator's page, as files of the package: no build, no other host."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from types import MappingProxyType

CONTENT_TYPES = MappingProxyType(
    {
        "html": "text/html; charset=utf-8",
        "css": "text/css; charset=utf-8",
        "js": "text/javascript; charset=utf-8",
        "svg": "image/svg+xml",
    }
)
HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
)
"""What every page and file is sent with; images and calls stay on the same host."""


@dataclass(frozen=True, slots=True)
class Page:
    """One file as it is sent."""

    body: bytes
    content_type: str
    etag: str


class Pages(Mapping[str, Page]):
    """Addresses and what lies there; only these, whatever path is asked for.

    >>> PAGES["/annotate"].content_type
    'text/html; charset=utf-8'
    >>> "/static/../__init__.py" in PAGES
    False
    """

    def __getitem__(self, address: str) -> Page:
        return _read(_names()[address])

    def __iter__(self) -> Iterator[str]:
        return iter(_names())

    def __len__(self) -> int:
        return len(_names())


PAGES: Mapping[str, Page] = Pages()


@cache
def _names() -> Mapping[str, str]:
    """Address to file name: pages stand at the root, what they load under /static."""
    names = sorted(entry.name for entry in (files(__name__) / "static").iterdir())
    return {
        f"/{name.removesuffix('.html')}" if name.endswith(".html") else f"/static/{name}": name
        for name in names
        if name.rpartition(".")[2] in CONTENT_TYPES
    }


@cache
def _read(name: str) -> Page:
    body = (files(__name__) / "static" / name).read_bytes()
    etag = f'"{sha256(body).hexdigest()[:32]}"'
    return Page(body, CONTENT_TYPES[name.rpartition(".")[2]], etag)
