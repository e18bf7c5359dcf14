"""Pictures that are made for tests, whole and broken."""

import io
import os
import struct
import zlib

import numpy as np
from PIL import Image

KINDS = ("JPEG", "PNG", "WEBP")
N_BROKEN = int(os.environ.get("BITTA_SOAK_IMAGES", "300"))


def gradient(height=24, width=32):
    """uint8 (height, width, 3), smooth, no two rows or columns alike."""
    down, right = np.mgrid[:height, :width]
    return np.stack([down * 8, right * 7, 255 - down * 4 - right * 3], axis=-1).astype(np.uint8)


def encoded(pixels, kind="PNG", **options):
    """The bytes of a picture file."""
    buffer = io.BytesIO()
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def originals():
    """One of each way a picture can be written that decoders treat differently."""
    rgb = Image.fromarray(gradient())
    exif = Image.Exif()
    exif[0x0112] = 6
    two = rgb.transpose(Image.Transpose.ROTATE_180)
    return [
        encoded(rgb, "JPEG"),
        encoded(rgb, "JPEG", progressive=True, exif=exif),
        encoded(rgb.convert("CMYK"), "JPEG"),
        encoded(rgb.convert("L"), "JPEG"),
        encoded(rgb, "PNG", exif=exif),
        encoded(rgb.convert("P"), "PNG", transparency=3),
        encoded(rgb.convert("RGBA"), "PNG", save_all=True, append_images=[two.convert("RGBA")]),
        encoded(Image.fromarray(np.arange(768, dtype=np.uint16).reshape(24, 32) * 80), "PNG"),
        encoded(rgb, "WEBP", exif=exif),
        encoded(rgb.convert("RGBA"), "WEBP", lossless=True),
        encoded(rgb, "WEBP", save_all=True, append_images=[two]),
    ]


def broken(content, chance):
    """A few bytes changed, taken out, put in or repeated; sometimes with sums made good again."""
    content = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 8])):
        place = chance.randrange(len(content)) if content else 0
        length = chance.choice([1, 1, 2, 4, 16, 200])
        match chance.randrange(5):
            case 0:
                content[place : place + 1] = chance.randbytes(1)
            case 1:
                content[place : place + length] = chance.choice([b"\0", b"\xff"]) * length
            case 2:
                del content[place : place + length]
            case 3:
                content[place:place] = content[place : place + length]
            case 4:
                del content[place:]
    if content.startswith(b"\x89PNG") and chance.random() < 0.7:
        return with_right_sums(bytes(content))
    return bytes(content)


def with_right_sums(content):
    """A PNG whose chunks carry the checksums of what they hold, so that it is read on."""
    out, place = content[:8], 8
    while place + 12 <= len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        body = content[place + 4 : place + 8 + length]
        out += content[place : place + 4] + body + struct.pack(">I", zlib.crc32(body))
        place += 12 + length
    return out


def png_header(width, height):
    """A PNG that announces a size and holds next to nothing."""
    ihdr = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    idat = b"IDAT" + zlib.compress(b"\0" * 64)
    chunks = (
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in (ihdr, idat, b"IEND")
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
