"""A kept input as a picture that a browser can show."""

import io

import numpy as np
from PIL import Image

from bitta.errors import InputError
from bitta.server.store import ImageRecord


def as_png(content: bytes, record: ImageRecord) -> bytes:
    """PNG of (channels, height, width) with 1 or 3 channels, in [0, 1] or bytes."""
    values = np.frombuffer(content, dtype=record.dtype).reshape(record.shape)
    if values.ndim != 3 or values.shape[0] not in (1, 3):
        raise InputError(
            f"this input has shape {list(record.shape)}; 1 or 3 channels, height and width can be "
            "shown."
        )
    pixels = values if values.dtype == np.uint8 else _bytes(values)
    picture = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    written = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(written, "PNG", compress_level=1)
    return written.getvalue()


def _bytes(values: np.ndarray) -> np.ndarray:
    """Values outside of [0, 1] were normalised by the caller: their range is shown instead."""
    scaled = values.astype(np.float64)
    low, high = float(scaled.min()), float(scaled.max())
    if low < 0 or high > 1:
        scaled = (scaled - low) / (high - low) if high > low else np.zeros_like(scaled)
    return (scaled * 255).round().astype(np.uint8)
