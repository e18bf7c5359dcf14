"""Files of the annotator's and the operator's page. They need no build step and no other server."""

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
"""Headers of every page and file. The policy allows resources and calls of the same host only."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """Content of one file, with its type and its ETag."""

    body: bytes
    content_type: str
    etag: str


class PageFiles(Mapping[str, PageFile]):
    """Mapping from each URL path to its file. No other file can be requested.

    >>> PAGES["/annotate"].content_type
    'text/html; charset=utf-8'
    >>> "/static/../__init__.py" in PAGES
    False
    """

    def __getitem__(self, address: str) -> PageFile:
        return _read(_file_names()[address])

    def __iter__(self) -> Iterator[str]:
        return iter(_file_names())

    def __len__(self) -> int:
        return len(_file_names())


PAGES: Mapping[str, PageFile] = PageFiles()


@cache
def _file_names() -> Mapping[str, str]:
    """Return the file name of each address: pages at the root, other files under /static."""
    names = sorted(entry.name for entry in (files(__name__) / "static").iterdir())
    return {
        f"/{name.removesuffix('.html')}" if name.endswith(".html") else f"/static/{name}": name
        for name in names
        if name.rpartition(".")[2] in CONTENT_TYPES
    }


@cache
def _read(name: str) -> PageFile:
    body = (files(__name__) / "static" / name).read_bytes()
    etag = f'"{sha256(body).hexdigest()[:32]}"'
    return PageFile(body, CONTENT_TYPES[name.rpartition(".")[2]], etag)
