"""Valid and broken picture files for tests."""

import io
import os
import struct
import zlib

import numpy as np
from PIL import Image

KINDS = ("JPEG", "PNG", "WEBP")
N_BROKEN = int(os.environ.get("BITTA_SOAK_IMAGES", "300"))


def gradient(height=24, width=32):
    """Return a smooth uint8 picture (height, width, 3) whose rows and columns all differ."""
    down, right = np.mgrid[:height, :width]
    return np.stack([down * 8, right * 7, 255 - down * 4 - right * 3], axis=-1).astype(np.uint8)


def encoded(pixels, kind="PNG", **options):
    """Return the bytes of a picture file."""
    buffer = io.BytesIO()
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def originals():
    """Return a picture in each format and mode that decoders treat differently."""
    rgb = Image.fromarray(gradient())
    exif = Image.Exif()
    exif[0x0112] = 6
    rotated = rgb.transpose(Image.Transpose.ROTATE_180)
    return [
        encoded(rgb, "JPEG"),
        encoded(rgb, "JPEG", progressive=True, exif=exif),
        encoded(rgb.convert("CMYK"), "JPEG"),
        encoded(rgb.convert("L"), "JPEG"),
        encoded(rgb, "PNG", exif=exif),
        encoded(rgb.convert("P"), "PNG", transparency=3),
        encoded(rgb.convert("RGBA"), "PNG", save_all=True, append_images=[rotated.convert("RGBA")]),
        encoded(Image.fromarray(np.arange(768, dtype=np.uint16).reshape(24, 32) * 80), "PNG"),
        encoded(rgb, "WEBP", exif=exif),
        encoded(rgb.convert("RGBA"), "WEBP", lossless=True),
        encoded(rgb, "WEBP", save_all=True, append_images=[rotated]),
    ]


def broken(content, random_source):
    """Change, remove, insert or repeat a few bytes. Some PNG files get correct checksums again."""
    content = bytearray(content)
    for _ in range(random_source.choice([1, 1, 2, 8])):
        start = random_source.randrange(len(content)) if content else 0
        length = random_source.choice([1, 1, 2, 4, 16, 200])
        match random_source.randrange(5):
            case 0:
                content[start : start + 1] = random_source.randbytes(1)
            case 1:
                content[start : start + length] = random_source.choice([b"\0", b"\xff"]) * length
            case 2:
                del content[start : start + length]
            case 3:
                content[start:start] = content[start : start + length]
            case 4:
                del content[start:]
    if content.startswith(b"\x89PNG") and random_source.random() < 0.7:
        return with_correct_checksums(bytes(content))
    return bytes(content)


def with_correct_checksums(content):
    """Return a PNG whose chunks have correct checksums, so that decoders read all of it."""
    out, start = content[:8], 8
    while start + 12 <= len(content):
        (length,) = struct.unpack(">I", content[start : start + 4])
        body = content[start + 4 : start + 8 + length]
        out += content[start : start + 4] + body + struct.pack(">I", zlib.crc32(body))
        start += 12 + length
    return out


def png_header(width, height):
    """Return a PNG that declares a size but has almost no data."""
    ihdr = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    idat = b"IDAT" + zlib.compress(b"\0" * 64)
    chunks = (
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in (ihdr, idat, b"IEND")
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
