"""Compressed bodies: never more than a cap comes out of one, and only what is accepted goes out."""

import re
import zlib
from typing import Literal

from bitta.server.v2.errors import TOO_LARGE, V2Error, shown

Encoding = Literal["gzip", "deflate"]

_WINDOW_BITS: dict[str, int] = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_QUALITY = re.compile(r"\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*")
_LEVEL = 1  # Floats hardly shrink further at higher ones, which cost several times as much.


def decompressed(body: bytes, content_encoding: str | None, *, cap: int) -> bytes:
    """The body as it was before Content-Encoding, which is refused above `cap` bytes."""
    name = (content_encoding or "identity").strip().lower()
    if name in ("", "identity"):
        if len(body) > cap:
            raise _too_large(cap)
        return body
    if name not in _WINDOW_BITS:
        raise V2Error(
            f"Content-Encoding is {shown(content_encoding)}; gzip, deflate or none is allowed."
        )
    stream = zlib.decompressobj(wbits=_WINDOW_BITS[name])
    try:
        content = stream.decompress(body, cap + 1)
    except zlib.error as error:
        raise V2Error(f"the body cannot be read as {name} ({error}).") from None
    if len(content) > cap:
        raise _too_large(cap)
    if not stream.eof or stream.unused_data:
        what = "goes on after its end" if stream.eof else "is cut"
        raise V2Error(f"the body {what}; one whole {name} stream is needed.")
    return content


def compressed(body: bytes, encoding: Encoding) -> bytes:
    """The body in an encoding that the caller accepts."""
    return zlib.compress(body, _LEVEL, wbits=_WINDOW_BITS[encoding])


def accepted(accept_encoding: str | None) -> Encoding | None:
    """What Accept-Encoding likes best of what we have; None sends the body as it is."""
    qualities = dict(map(_quality, (accept_encoding or "").lower().split(",")))
    rest = qualities.get("*", 0.0)
    gzip, deflate = qualities.get("gzip", rest), qualities.get("deflate", rest)
    if max(gzip, deflate) <= 0:
        return None
    return "gzip" if gzip >= deflate else "deflate"


def _quality(item: str) -> tuple[str, float]:
    """A name and how much it is liked; what cannot be read is not."""
    name, _, weight = item.partition(";")
    quality = _QUALITY.fullmatch(weight or "q=1")
    return name.strip(), float(quality[1]) if quality else 0.0


def _too_large(cap: int) -> V2Error:
    return V2Error(
        f"the body is larger than the {cap} bytes that are allowed; send fewer images at a time.",
        status=TOO_LARGE,
    )
