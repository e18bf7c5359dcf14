"""Decoding of images, and refusal of expensive ones before memory is allocated."""

import struct
import time
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

from bitta.server.protocol import (
    ProtocolError,
    RequestInput,
    decode_image,
    fit_image,
    images,
    read_images,
)
from bitta.server.protocol.images import count_jpeg_scans
from bitta.server.settings import RequestLimits
from bitta.streams import DecodedImages, Geometry, ImageFile, as_floats
from made_pictures import KINDS, encoded, gradient, originals, png_header

SHAPE = (3, 24, 32)


def given(array, datatype):
    return RequestInput("image", datatype, array)


def encoded_input(*contents):
    array = np.empty(len(contents), dtype=object)
    array[:] = contents
    return given(array, "BYTES")


@pytest.mark.parametrize("options", [{"kind": "PNG"}, {"kind": "WEBP", "lossless": True}])
def test_lossless_image_keeps_every_pixel(options):
    assert np.array_equal(decode_image(encoded(gradient(), **options)), gradient())


@pytest.mark.parametrize("kind", KINDS)
def test_image_is_decoded_as_in_streams(kind, tmp_path):
    content = encoded(gradient(), kind)
    (tmp_path / "a").write_bytes(content)
    (streamed,) = DecodedImages([ImageFile(str(tmp_path / "a"))])[torch.tensor([0])]
    assert np.array_equal(decode_image(content).transpose(2, 0, 1), streamed.numpy())


def test_grey_palette_16_bit_and_transparent_images_become_rgb():
    picture = Image.fromarray(gradient())
    grey = np.asarray(picture.convert("L"))
    assert np.array_equal(decode_image(encoded(grey)), np.repeat(grey[..., None], 3, axis=2))
    palette = picture.quantize(16)
    expected = np.asarray(palette.convert("RGB"))
    assert np.array_equal(decode_image(encoded(palette, transparency=3)), expected)
    deep = np.array([[0, 255, 256, 65535]], np.uint16)
    assert decode_image(encoded(deep))[0, :, 0].tolist() == [0, 0, 1, 255]
    clear = picture.copy()
    clear.putalpha(7)
    assert np.array_equal(decode_image(encoded(clear)), gradient())


def test_animation_gives_first_frame():
    first, second = Image.fromarray(gradient()), Image.new("RGB", (32, 24))
    for kind in ("PNG", "WEBP"):
        content = encoded(first, kind, save_all=True, append_images=[second], lossless=True)
        assert np.array_equal(decode_image(content), gradient())


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_image_is_rotated_by_exif_orientation(orientation, kind):
    """The expected arrays follow from the meaning of the values in the EXIF standard."""
    pixels = gradient()
    upright = {
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.swapaxes(0, 1),
        6: pixels[::-1].swapaxes(0, 1),
        7: pixels[::-1, ::-1].swapaxes(0, 1),
        8: pixels[:, ::-1].swapaxes(0, 1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(pixels, kind, exif=exif, lossless=True)
    assert np.array_equal(decode_image(content), upright.get(orientation, pixels))


def test_jpeg_is_rotated_by_exif_orientation():
    exif = Image.Exif()
    exif[0x0112] = 8
    assert decode_image(encoded(gradient(), "JPEG", exif=exif)).shape == (32, 24, 3)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize(
    "tiff", [b"MM\0*\0\0\0\x08", b"II*\0\xff\xff\xff\xff", b"nothing", b"", b"II*\0" + b"\xff" * 99]
)
def test_malformed_exif_is_ignored(tiff):
    content = encoded(gradient(), exif=b"Exif\0\0" + tiff)
    assert np.array_equal(decode_image(content), gradient())


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_orientation_is_read_beside_broken_exif_tags():
    entries = [(0x010F, 2, 1000, 10_000), (0x0112, 3, 1, 3), (0x011A, 5, 1, 1)]
    directory = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    tiff = b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory
    content = encoded(gradient(), exif=b"Exif\0\0" + tiff)
    assert np.array_equal(decode_image(content), gradient()[::-1, ::-1])


def test_large_exif_is_ignored_within_memory_bound():
    """Every tag refers to the same long value. Older Pillow versions copy it for each tag."""
    n_tags, length = 40_000, 4_000_000
    tiff = b"II*\0" + struct.pack("<IH", 8, n_tags)
    tiff += b"".join(struct.pack("<HHII", tag, 7, length, 500_000) for tag in range(n_tags))
    content = encoded(gradient(), exif=b"Exif\0\0" + tiff.ljust(500_000 + length, b"\0"))
    tracemalloc.start()
    assert np.array_equal(decode_image(content), gradient())
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("content", originals(), ids=range(len(originals())))
def test_truncated_image_is_refused_or_decoded_whole(content):
    whole = decode_image(content)
    for length in range(0, len(content), max(1, len(content) // 40)):
        try:
            pixels = decode_image(content[:length])
        except ProtocolError:
            continue
        assert np.array_equal(pixels, whole)


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"<svg>", b"BM", encoded(gradient(), "TIFF")])
def test_other_image_formats_are_refused(content):
    with pytest.raises(ProtocolError, match="JPEG, PNG and WebP are allowed") as caught:
        decode_image(content)
    assert caught.value.status == 400


def webp_canvas(width, height):
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    chunk = b"VP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + sides
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def lossless_webp(width, height):
    head = b"\x2f" + (width - 1 | (height - 1) << 14).to_bytes(4, "little") + b"\0" * 8
    chunk = b"VP8L" + struct.pack("<I", len(head)) + head
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def jpeg_with_size(width, height):
    content = encoded(gradient(), "JPEG")
    start = content.index(b"\xff\xc0") + 5
    return content[:start] + struct.pack(">HH", height, width) + content[start + 4 :]


def webp_with_size(width, height):
    content = encoded(gradient(), "WEBP")
    return content[:26] + struct.pack("<HH", width, height) + content[30:]


@pytest.mark.parametrize(
    ("content", "sides"),
    [
        (png_header(100_000, 100_000), "100000 x 100000"),
        (png_header(10_000, 10_000), "10000 x 10000"),
        (png_header(2**31 - 1, 2**31 - 1), "2147483647 x 2147483647"),
        (webp_canvas(2**24, 255), "16777216 x 255"),
        (lossless_webp(16384, 16384), "16384 x 16384"),
        (webp_with_size(16383, 16383), "16383 x 16383"),
        (jpeg_with_size(65500, 65500), "65500 x 65500"),
    ],
)
def test_image_with_too_many_pixels_is_refused_by_its_header(content, sides):
    tracemalloc.start()
    with pytest.raises(ProtocolError, match=f"is {sides}; up to 25000000 pixels") as caught:
        decode_image(content)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert caught.value.status == 413


def test_oversized_webp_is_refused_before_pillow_opens_it(monkeypatch):
    monkeypatch.setattr(
        "bitta.server.protocol.images.WebPImageFile", lambda file: pytest.fail("open")
    )
    with pytest.raises(ProtocolError, match="an image is 16384 x 16384"):
        decode_image(lossless_webp(16384, 16384))


def test_image_above_byte_or_scan_limit_is_refused(monkeypatch):
    content = encoded(gradient(), "JPEG", progressive=True)
    with pytest.raises(ProtocolError, match=f"an image has {len(content)} bytes; up to 100 are"):
        decode_image(content, RequestLimits(image_bytes=100))
    monkeypatch.setattr(images, "MAX_JPEG_SCANS", 9)
    with pytest.raises(ProtocolError, match="a JPEG has more than the allowed 9 scans"):
        decode_image(content)
    monkeypatch.setattr(images, "MAX_JPEG_SCANS", 10)
    assert decode_image(content).shape == (24, 32, 3)


def test_scans_are_counted_outside_thumbnails_and_trailing_data():
    scan, thumbnail = b"\xff\xda\0\x03\0", b"\xff\xe1\0\x07" + b"\xff\xda\xff\xd9" + b"\xff"
    coded = b"\x12\xff\0\xda\xff\xd3\x34"
    content = b"\xff\xd8" + thumbnail + (scan + coded) * 3 + b"\xff\xd9" + scan * 9
    assert count_jpeg_scans(content, stop_after=50) == 3
    assert count_jpeg_scans(content, stop_after=1) == 2
    assert count_jpeg_scans(encoded(gradient(), "JPEG"), stop_after=50) == 1
    assert count_jpeg_scans(b"\xff\xd8\xff\xda", stop_after=50) == 1


def test_jpeg_with_repeated_scans_is_refused_quickly():
    content = encoded(gradient(), "JPEG", progressive=True)
    last, end = content.rindex(b"\xff\xda"), content.rindex(b"\xff\xd9")
    bomb = content[:end] + content[last:end] * 50_000 + content[end:]
    began = time.thread_time()
    with pytest.raises(ProtocolError, match="more than the allowed 50 scans"):
        decode_image(bomb)
    assert time.thread_time() - began < 1


def test_image_is_resized_as_in_streams():
    photo = gradient(75, 101)
    expected = np.asarray(Geometry(resize=32, crop=32)(Image.fromarray(photo)))
    assert np.array_equal(fit_image(photo, (32, 32)), expected)
    geometry = Geometry(resize=40, crop=32)
    expected = np.asarray(geometry(Image.fromarray(photo)))
    assert np.array_equal(fit_image(photo, (32, 32), geometry=geometry), expected)


def test_image_of_right_size_is_unchanged():
    assert np.array_equal(fit_image(gradient(), (24, 32)), gradient())


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (3, 7), (64, 64), (5, 90)])
@pytest.mark.parametrize("sides", [(24, 32), (31, 17), (1, 1), (1, 9)])
def test_any_image_covers_any_size(size, sides):
    white = np.full((*sides, 3), 255, np.uint8)
    fitted = fit_image(white, size)
    assert fitted.shape == (*size, 3)
    assert (fitted == 255).all()


def test_narrow_image_is_refused_before_it_is_resized():
    with pytest.raises(ProtocolError, match="an image of 100000 x 1 is too narrow") as caught:
        fit_image(np.zeros((1, 100_000, 3), np.uint8), (224, 224))
    assert caught.value.status == 413


def test_image_smaller_than_crop_is_refused():
    with pytest.raises(ProtocolError, match="its shorter side must be at least 28"):
        fit_image(gradient(), (28, 28), geometry=Geometry(crop=28))
    with pytest.raises(ProtocolError, match="an image is 32 x 24; the model needs 28 x 28"):
        fit_image(gradient(), (28, 28), geometry=Geometry())


def test_uint8_is_scaled_as_in_streams():
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    floats = read_images(given(every, "UINT8"), (1, 16, 16))
    assert floats.dtype == np.float32
    assert np.array_equal(floats, as_floats(torch.from_numpy(every)).numpy())


def test_floats_are_unchanged():
    array = np.array([[-3.0, 700.0]], np.float64)
    floats = read_images(given(array, "FP64"), (2,))
    assert floats.dtype == np.float32
    assert floats.tolist() == [[-3, 700]]
    assert floats.flags.writeable


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_floats_that_are_not_finite_are_refused(value):
    with pytest.raises(ProtocolError, match="not finite, or too large for FP32"):
        read_images(given(np.array([[value]]), "FP64"), (1,))


def test_encoded_images_are_decoded_resized_and_scaled():
    floats = read_images(encoded_input(encoded(gradient()), encoded(gradient(48, 64))), SHAPE)
    assert floats.shape == (2, *SHAPE)
    assert np.array_equal(floats[0], gradient().transpose(2, 0, 1).astype(np.float32) / 255)
    column = RequestInput("image", "BYTES", encoded_input(encoded(gradient())).array.reshape(1, 1))
    assert np.array_equal(read_images(column, SHAPE)[0], floats[0])


def test_model_with_one_channel_gets_grey_image():
    (image,) = read_images(encoded_input(encoded(gradient())), (1, 24, 32))
    grey = np.asarray(Image.fromarray(gradient()).convert("L"))
    assert np.array_equal(image[0], grey.astype(np.float32) / 255)


def test_error_names_row_of_broken_image():
    with pytest.raises(ProtocolError, match="image 1 of input 'image': an image of 4 bytes starts"):
        read_images(encoded_input(encoded(gradient()), b"nope"), SHAPE)


def test_request_above_image_or_pixel_limit_is_refused():
    two = encoded_input(encoded(gradient()), encoded(gradient()))
    with pytest.raises(ProtocolError, match="has 2 images; up to 1 are allowed") as caught:
        read_images(two, SHAPE, limits=RequestLimits(images=1))
    assert caught.value.status == 413
    with pytest.raises(ProtocolError, match=r"image 1 .* allowed 1000 pixels") as caught:
        read_images(two, SHAPE, limits=RequestLimits(request_pixels=1000))
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("array", "datatype", "expected"),
    [
        (np.zeros((1, 24, 32, 3), np.uint8), "UINT8", SHAPE),
        (np.zeros(SHAPE, np.float32), "FP32", SHAPE),
        (np.zeros((), np.float32), "FP32", SHAPE),
        (np.zeros((1, *SHAPE), np.int64), "INT64", SHAPE),
        (np.full((1, 2), b"", object), "BYTES", SHAPE),
        (np.full((1,), b"", object), "BYTES", (7,)),
        (np.zeros((1, 7), np.uint8), "UINT8", (7,)),
    ],
)
def test_other_shapes_and_datatypes_are_refused_with_allowed_ones(array, datatype, expected):
    with pytest.raises(ProtocolError, match=rf"is {datatype} of .* shape \[n, .* is needed"):
        read_images(given(array, datatype), expected)
