"""How large a request may be."""

from dataclasses import dataclass, fields

from bitta.config import require

_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Caps that hold before memory or time is spent on what a request announces."""

    body_bytes: int = 64 * _MIB
    """Of a whole request, counted after decompression."""
    json_bytes: int = 8 * _MIB
    """Of its JSON, which takes about 25 times as much once it is read; binary data does not."""
    rows: int = 128
    """Images in a request."""
    picture_bytes: int = 16 * _MIB
    """Of one encoded picture."""
    picture_pixels: int = 25_000_000
    """Of one picture, as its header tells them, and again while it is brought to size."""
    request_pixels: int = 100_000_000
    """Of all encoded pictures of a request."""
    picture_scans: int = 50
    """Of a JPEG. A progressive one has about ten; each costs a pass over all its pixels."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            require(value >= 1, field.name, value, "1 or more")


DEFAULT_LIMITS = Limits()
