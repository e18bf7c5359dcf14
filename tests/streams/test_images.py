"""Tests of images on disk."""

import pickle
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from bitta.errors import InputError, SettingError
from bitta.streams.images import DecodedImages, Geometry, ImageFile, MappedImages, SelectedImages


def noise(height, width, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def write(path, pixels):
    Image.fromarray(pixels).save(path)
    return ImageFile(str(path))


def all_of(images):
    return images[torch.arange(len(images))]


def test_rows_are_returned_in_the_given_order(tmp_path):
    pixels = [noise(4, 6, seed=n) for n in range(40)]
    files = DecodedImages([write(tmp_path / f"{n}.png", p) for n, p in enumerate(pixels)])
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    images = files[order]
    assert images.dtype == torch.uint8
    assert images.shape == (40, 3, 4, 6)
    expected = np.stack([pixels[n] for n in order.tolist()]).transpose(0, 3, 1, 2)
    assert np.array_equal(images.numpy(), expected)
    assert files[order[:0]].shape[:2] == (0, 3)


def test_shorter_side_is_resized_and_centre_is_cropped(tmp_path):
    entry = write(tmp_path / "wide.png", noise(100, 300))
    assert all_of(DecodedImages([entry], Geometry(resize=50))).shape == (1, 3, 50, 150)
    assert all_of(DecodedImages([entry], Geometry(resize=50, crop=40))).shape == (1, 3, 40, 40)
    cut = all_of(DecodedImages([entry], Geometry(crop=80)))[0].permute(1, 2, 0).numpy()
    assert np.array_equal(cut, noise(100, 300)[10:90, 110:190])


def test_resizing_is_bilinear_with_antialiasing(tmp_path):
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    entry = write(tmp_path / "stripes.png", stripes)
    small = all_of(DecodedImages([entry], Geometry(resize=8)))[0, :, 1:-1, 1:-1].float()
    assert small.mean().item() == pytest.approx(127.5, abs=1)
    assert small.std().item() < 2


@pytest.mark.parametrize("mode", ["L", "P", "LA", "RGBA", "CMYK", "I;16"])
def test_every_picture_mode_becomes_rgb(tmp_path, mode):
    grey = np.full((5, 5), 200, np.uint8)
    if mode == "I;16":
        picture = Image.fromarray(grey.astype(np.uint16) * 256)
    else:
        picture = Image.fromarray(np.stack([grey] * 3, -1)).convert(mode)
    path = tmp_path / f"picture.{'jpg' if mode == 'CMYK' else 'png'}"
    picture.save(path, **({"transparency": b"\x80"} if mode == "P" else {}))
    image = all_of(DecodedImages([ImageFile(str(path))]))
    assert image.shape == (1, 3, 5, 5)
    assert (image.float() - 200).abs().max() <= 4


def test_members_of_a_tar_are_read_in_place(tmp_path):
    for n in range(3):
        write(tmp_path / f"{n}.png", noise(4, 4, seed=n))
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        for n in range(3):
            archive.add(tmp_path / f"{n}.png", f"{n}.png")
    with tarfile.open(tmp_path / "all.tar") as archive:
        entries = [
            ImageFile(str(tmp_path / "all.tar"), m.name, m.offset_data, m.size) for m in archive
        ]
    images = DecodedImages(entries)[torch.tensor([2, 0])]
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), noise(4, 4, seed=2))
    assert np.array_equal(images[1].permute(1, 2, 0).numpy(), noise(4, 4, seed=0))


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "ppm", "gif", "tiff"])
def test_truncated_picture_is_refused_by_name(tmp_path, suffix):
    path = tmp_path / f"cut.{suffix}"
    write(path, noise(64, 64))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=rf"cut\.{suffix}' is truncated or not a picture"):
        all_of(DecodedImages([ImageFile(str(path))]))


def test_invalid_or_missing_picture_is_refused_by_name(tmp_path):
    (tmp_path / "text.jpg").write_text("hello")
    with pytest.raises(InputError, match=r"text\.jpg' is truncated or not a picture"):
        all_of(DecodedImages([ImageFile(str(tmp_path / "text.jpg"))]))
    (tmp_path / "empty.png").touch()
    with pytest.raises(InputError, match=r"empty\.png' is truncated or not a picture"):
        all_of(DecodedImages([ImageFile(str(tmp_path / "empty.png"))]))
    with pytest.raises(InputError, match=r"no picture '.*none\.jpg'"):
        all_of(DecodedImages([ImageFile(str(tmp_path / "none.jpg"))]))
    cut = ImageFile(str(tmp_path / "text.jpg"), "dog/1.png", 2, 3)
    with pytest.raises(InputError, match=r"'dog/1\.png' in '.*text\.jpg'"):
        all_of(DecodedImages([cut]))


def test_pictures_of_different_or_too_small_size_are_refused(tmp_path):
    entries = [write(tmp_path / "a.png", noise(8, 8)), write(tmp_path / "b.png", noise(8, 9))]
    with pytest.raises(InputError, match=r"b\.png' is 9 x 8 and .*a\.png' is 8 x 8"):
        all_of(DecodedImages(entries))
    with pytest.raises(InputError, match=r"a\.png' is 8 x 8 and crop is 9; set resize to 9"):
        all_of(DecodedImages(entries, Geometry(crop=9)))
    with pytest.raises(InputError, match="crop is 9"):
        all_of(DecodedImages(entries, Geometry(resize=8, crop=9)))
    with pytest.raises(SettingError, match="resize is -1"):
        Geometry(resize=-1)


def test_mapped_rows_can_start_later(tmp_path):
    pixels = np.stack([noise(6, 5, seed=n) for n in range(10)])
    np.save(tmp_path / "x.npy", pixels)
    part = MappedImages(tmp_path / "x.npy", start=4, stop=8)
    assert len(part) == 4
    images = part[torch.tensor([3, 0])]
    assert np.array_equal(images.numpy(), pixels[[7, 4]].transpose(0, 3, 1, 2))
    with pytest.raises(IndexError):
        part[torch.tensor([4])]
    assert len(pickle.dumps(part)) < 1000


def test_truncated_or_invalid_array_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 8, 8, 3), np.uint8))
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:300])
    with pytest.raises(InputError, match=r"x\.npy' is truncated or not an .npy file"):
        MappedImages(tmp_path / "x.npy")
    np.save(tmp_path / "one.npy", np.array(3))
    with pytest.raises(InputError, match="does not hold one array"):
        MappedImages(tmp_path / "one.npy")
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match="file of numbers"):
        MappedImages(tmp_path / "objects.npy")


def test_selected_images_stay_on_disk(tmp_path):
    pixels = [noise(4, 4, seed=n) for n in range(5)]
    files = DecodedImages([write(tmp_path / f"{n}.png", p) for n, p in enumerate(pixels)])
    chosen = SelectedImages(files, torch.tensor([4, 1, 3]))
    assert len(chosen) == 3
    assert np.array_equal(chosen[torch.tensor([1])][0].permute(1, 2, 0).numpy(), pixels[1])
