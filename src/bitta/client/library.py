"""httpx, which the extra `client` brings."""

try:
    import httpx
except ImportError as error:
    raise ImportError(
        'bitta.client needs httpx, which is not installed; run: pip install "bitta[client]"'
    ) from error

__all__ = ["httpx"]
