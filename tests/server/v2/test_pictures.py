"""Pictures: what becomes of their pixels, and what is refused before it costs anything."""

import struct
import time
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

from bitta.server.v2 import Limits, RequestInput, V2Error, as_images, decode, fit
from bitta.server.v2.scans import count_scans
from bitta.streams import Entry, Files, Geometry, as_floats
from made_pictures import KINDS, encoded, gradient, originals, png_header

SHAPE = (3, 24, 32)


def given(array, datatype):
    return RequestInput("image", datatype, array)


def pictures(*contents):
    array = np.empty(len(contents), dtype=object)
    array[:] = contents
    return given(array, "BYTES")


@pytest.mark.parametrize("options", [{"kind": "PNG"}, {"kind": "WEBP", "lossless": True}])
def test_lossless_pictures_come_out_as_they_went_in(options):
    assert np.array_equal(decode(encoded(gradient(), **options)), gradient())


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_are_read_as_those_in_folders_are(kind, tmp_path):
    content = encoded(gradient(), kind)
    (tmp_path / "a").write_bytes(content)
    (streamed,) = Files([Entry(str(tmp_path / "a"))])[torch.tensor([0])]
    assert np.array_equal(decode(content).transpose(2, 0, 1), streamed.numpy())


def test_grey_palette_16_bits_and_transparency_become_rgb():
    picture = Image.fromarray(gradient())
    grey = np.asarray(picture.convert("L"))
    assert np.array_equal(decode(encoded(grey)), np.repeat(grey[..., None], 3, axis=2))
    palette = picture.quantize(16)
    expected = np.asarray(palette.convert("RGB"))
    assert np.array_equal(decode(encoded(palette, transparency=3)), expected)
    deep = np.array([[0, 255, 256, 65535]], np.uint16)
    assert decode(encoded(deep))[0, :, 0].tolist() == [0, 0, 1, 255]
    clear = picture.copy()
    clear.putalpha(7)
    assert np.array_equal(decode(encoded(clear)), gradient())


def test_an_animation_is_its_first_frame():
    first, second = Image.fromarray(gradient()), Image.new("RGB", (32, 24))
    for kind in ("PNG", "WEBP"):
        content = encoded(first, kind, save_all=True, append_images=[second], lossless=True)
        assert np.array_equal(decode(content), gradient())


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(10))
def test_pictures_are_turned_as_their_exif_says(orientation, kind):
    """By the meaning of the values: where the first row and column of the file are to be shown."""
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
    assert np.array_equal(decode(content), upright.get(orientation, pixels))


def test_a_jpeg_is_turned_too_and_exif_that_is_broken_is_passed_over():
    exif = Image.Exif()
    exif[0x0112] = 8
    assert decode(encoded(gradient(), "JPEG", exif=exif)).shape == (32, 24, 3)
    for tiff in (b"MM\0*\0\0\0\x08", b"II*\0\xff\xff\xff\xff", b"nothing", b""):
        content = encoded(gradient(), exif=b"Exif\0\0" + tiff)
        assert np.array_equal(decode(content), gradient())


@pytest.mark.parametrize("content", originals(), ids=range(len(originals())))
def test_a_picture_cut_anywhere_gives_a_sentence_or_the_whole_picture(content):
    whole = decode(content)
    for length in range(0, len(content), max(1, len(content) // 40)):
        try:
            pixels = decode(content[:length])
        except V2Error:
            continue
        assert np.array_equal(pixels, whole)


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"<svg>", b"BM", encoded(gradient(), "TIFF")])
def test_other_formats_are_refused(content):
    with pytest.raises(V2Error, match="JPEG, PNG and WebP are allowed") as caught:
        decode(content)
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
def test_a_picture_that_announces_too_many_pixels_is_refused_by_its_header(content, sides):
    tracemalloc.start()
    with pytest.raises(V2Error, match=f"a picture is {sides}; up to 25000000 pixels") as caught:
        decode(content)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()
    assert caught.value.status == 413


def test_a_webp_whose_size_is_too_large_is_not_given_to_its_reader(monkeypatch):
    monkeypatch.setattr("bitta.server.v2.pictures.WebPImageFile", lambda file: pytest.fail("open"))
    with pytest.raises(V2Error, match="a picture is 16384 x 16384"):
        decode(lossless_webp(16384, 16384))


def test_bytes_and_scans_of_a_picture_are_capped():
    content = encoded(gradient(), "JPEG", progressive=True)
    with pytest.raises(V2Error, match=f"a picture has {len(content)} bytes; up to 100 are"):
        decode(content, Limits(picture_bytes=100))
    with pytest.raises(V2Error, match="a JPEG has more than 9 scans, which are allowed"):
        decode(content, Limits(picture_scans=9))
    assert decode(content, Limits(picture_scans=10)).shape == (24, 32, 3)


def test_scans_are_counted_in_the_picture_alone():
    scan, thumbnail = b"\xff\xda\0\x03\0", b"\xff\xe1\0\x07" + b"\xff\xda\xff\xd9" + b"\xff"
    coded = b"\x12\xff\0\xda\xff\xd3\x34"
    content = b"\xff\xd8" + thumbnail + (scan + coded) * 3 + b"\xff\xd9" + scan * 9
    assert count_scans(content, enough=50) == 3
    assert count_scans(content, enough=1) == 2
    assert count_scans(encoded(gradient(), "JPEG"), enough=50) == 1
    assert count_scans(b"\xff\xd8\xff\xda", enough=50) == 1


def test_a_jpeg_that_repeats_a_scan_without_end_is_refused_at_once():
    content = encoded(gradient(), "JPEG", progressive=True)
    last, end = content.rindex(b"\xff\xda"), content.rindex(b"\xff\xd9")
    bomb = content[:end] + content[last:end] * 50_000 + content[end:]
    began = time.thread_time()
    with pytest.raises(V2Error, match="more than 50 scans"):
        decode(bomb)
    assert time.thread_time() - began < 1


def test_pictures_are_brought_to_size_as_streams_do():
    photo = gradient(75, 101)
    expected = np.asarray(Geometry(resize=32, crop=32)(Image.fromarray(photo)))
    assert np.array_equal(fit(photo, (32, 32)), expected)
    geometry = Geometry(resize=40, crop=32)
    expected = np.asarray(geometry(Image.fromarray(photo)))
    assert np.array_equal(fit(photo, (32, 32), geometry=geometry), expected)


def test_a_picture_of_the_right_size_stays_as_it_is():
    assert np.array_equal(fit(gradient(), (24, 32)), gradient())


@pytest.mark.parametrize("size", [(1, 1), (7, 3), (3, 7), (64, 64), (5, 90)])
@pytest.mark.parametrize("sides", [(24, 32), (31, 17), (1, 1), (1, 9)])
def test_any_picture_covers_any_size(size, sides):
    white = np.full((*sides, 3), 255, np.uint8)
    fitted = fit(white, size)
    assert fitted.shape == (*size, 3)
    assert (fitted == 255).all()


def test_a_narrow_picture_is_refused_before_it_is_scaled():
    with pytest.raises(V2Error, match="a picture of 100000 x 1 is too narrow") as caught:
        fit(np.zeros((1, 100_000, 3), np.uint8), (224, 224))
    assert caught.value.status == 413


def test_a_picture_too_small_for_what_is_cut_from_it_is_refused():
    with pytest.raises(V2Error, match="a picture is 32 x 24; 28 x 28 is cut"):
        fit(gradient(), (28, 28), geometry=Geometry(crop=28))
    with pytest.raises(V2Error, match="a picture is 32 x 24; the model reads 28 x 28"):
        fit(gradient(), (28, 28), geometry=Geometry())


def test_bytes_become_the_same_floats_as_in_streams():
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    images = as_images(given(every, "UINT8"), (1, 16, 16))
    assert images.dtype == np.float32
    assert np.array_equal(images, as_floats(torch.from_numpy(every)).numpy())


def test_floats_are_taken_as_they_are():
    array = np.array([[-3.0, 700.0]], np.float64)
    images = as_images(given(array, "FP64"), (2,))
    assert images.dtype == np.float32
    assert images.tolist() == [[-3, 700]]
    assert images.flags.writeable


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_floats_that_are_not_finite_are_refused(value):
    with pytest.raises(V2Error, match="not finite, or too large for FP32"):
        as_images(given(np.array([[value]]), "FP64"), (1,))


def test_encoded_pictures_are_decoded_fitted_and_scaled():
    images = as_images(pictures(encoded(gradient()), encoded(gradient(48, 64))), SHAPE)
    assert images.shape == (2, *SHAPE)
    assert np.array_equal(images[0], gradient().transpose(2, 0, 1).astype(np.float32) / 255)
    column = RequestInput("image", "BYTES", pictures(encoded(gradient())).array.reshape(1, 1))
    assert np.array_equal(as_images(column, SHAPE)[0], images[0])


def test_a_model_of_one_channel_gets_grey():
    (image,) = as_images(pictures(encoded(gradient())), (1, 24, 32))
    grey = np.asarray(Image.fromarray(gradient()).convert("L"))
    assert np.array_equal(image[0], grey.astype(np.float32) / 255)


def test_the_row_of_a_broken_picture_is_named():
    with pytest.raises(V2Error, match="image 1 of input 'image': a picture of 4 bytes begins"):
        as_images(pictures(encoded(gradient()), b"nope"), SHAPE)


def test_images_and_pixels_of_a_request_are_capped():
    two = pictures(encoded(gradient()), encoded(gradient()))
    with pytest.raises(V2Error, match="has 2 images; up to 1 are allowed") as caught:
        as_images(two, SHAPE, limits=Limits(rows=1))
    assert caught.value.status == 413
    with pytest.raises(V2Error, match=r"image 1 .* more than 1000 pixels") as caught:
        as_images(two, SHAPE, limits=Limits(request_pixels=1000))
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
def test_other_shapes_and_datatypes_are_refused_with_those_that_are_not(array, datatype, expected):
    with pytest.raises(V2Error, match=rf"is {datatype} of shape .* of shape \[n, .* is needed"):
        as_images(given(array, datatype), expected)
