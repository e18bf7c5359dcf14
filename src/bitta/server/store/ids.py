"""Names that nobody else makes."""

import secrets
import time

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's: no I, L, O or U."""
_LENGTH = 26


def now() -> int:
    """Microseconds since 1970, UTC."""
    return time.time_ns() // 1000


def new_id(at: int) -> str:
    """Name something at a moment (microseconds): 26 characters that sort by time, as a ULID's."""
    number = (at // 1000 % 2**48) << 80 | secrets.randbits(80)
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in reversed(range(_LENGTH)))


def new_token() -> str:
    """Make a short secret."""
    return secrets.token_urlsafe(16)
