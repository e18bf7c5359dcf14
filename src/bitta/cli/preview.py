"""A picture as coloured half blocks, two pixels to a character."""

import io

from PIL import Image

_RESET = "\x1b[0m"


def half_blocks(png: bytes, *, columns: int = 40) -> str:
    """Lines of text; small pictures are enlarged so that their pixels stay square and sharp."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    height = max(2, round(columns * picture.height / picture.width / 2) * 2)
    larger = columns > picture.width
    picture = picture.resize(
        (columns, height), Image.Resampling.NEAREST if larger else Image.Resampling.BOX
    )
    lines = []
    for y in range(0, height, 2):
        blocks = []
        for x in range(columns):
            upper, lower = picture.getpixel((x, y)), picture.getpixel((x, y + 1))
            blocks.append(f"\x1b[38;2;{_code(upper)};48;2;{_code(lower)}m▀")
        lines.append("".join(blocks) + _RESET)
    return "\n".join(lines)


def _code(colour: object) -> str:
    assert isinstance(colour, tuple)
    return ";".join(map(str, colour))
