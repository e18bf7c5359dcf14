"""Which way up a camera held a picture.

Read by hand: a full reader of EXIF, as Pillow's, warns about much in it that does not matter here.
"""

import struct

from PIL import Image

_PREFIX = b"Exif\0\0"
_TAG, _SHORT, _ENTRY = 0x0112, 3, 12
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def upright(picture: Image.Image, exif: object) -> Image.Image:
    """The picture turned as its EXIF says; as it is where that says nothing or is broken."""
    turn = _TURNS.get(_orientation(exif)) if isinstance(exif, bytes) else None
    return picture if turn is None else picture.transpose(turn)


def _orientation(exif: bytes) -> int:
    """1 to 8 by the first directory of a TIFF, 0 if it has none."""
    tiff = exif.removeprefix(_PREFIX)
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4], "")
    try:
        if not order:
            return 0
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (n_entries,) = struct.unpack_from(f"{order}H", tiff, start)
        for place in range(start + 2, start + 2 + n_entries * _ENTRY, _ENTRY):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, place)
            if (tag, kind) == (_TAG, _SHORT):
                return int(value)
    except struct.error:
        return 0
    return 0
