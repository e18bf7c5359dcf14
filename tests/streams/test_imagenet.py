"""Tests of data sets derived from ImageNet."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from bitta.errors import InputError, SettingError
from bitta.streams.imagenet import (
    imagenet_wnids,
    read_imagenet_c,
    read_imagenet_r,
    read_tiny_imagenet,
    read_tiny_imagenet_c,
)

GOLDFISH, SHARK, TABBY = "n01443537", "n01484850", "n02123045"


def picture(path, shade=0, side=64):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), shade, np.uint8)).save(path, quality=100)


def first_shades(domain):
    return domain.images[torch.arange(len(domain.labels))][:, 0, 0, 0].tolist()


def test_imagenet_classes_are_sorted():
    wnids = imagenet_wnids()
    assert len(set(wnids)) == 1000
    assert list(wnids) == sorted(wnids)
    assert all(re.fullmatch(r"n\d{8}", wnid) for wnid in wnids)
    # the usual numbers of tench, goldfish, tabby and toilet tissue
    assert [wnids[n] for n in (0, 1, 281, 999)] == ["n01440764", GOLDFISH, TABBY, "n15075141"]


def tiny(root):
    folder = root / "tiny-imagenet-200"
    for shade, wnid in enumerate([TABBY, GOLDFISH]):  # wnids.txt is not sorted upstream
        for n in range(2):
            picture(folder / "train" / wnid / "images" / f"{wnid}_{n}.JPEG", 10 * shade + n)
    (folder / "wnids.txt").write_text(f"{TABBY}\n{GOLDFISH}\n")
    lines = []
    for n, wnid in enumerate([TABBY, GOLDFISH, TABBY]):
        picture(folder / "val" / "images" / f"val_{n}.JPEG", n)
        lines.append(f"val_{n}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("above", [True, False])
def test_tiny_imagenet_numbers_its_sorted_classes(tmp_path, above):
    folder = tiny(tmp_path)
    train = read_tiny_imagenet(tmp_path if above else folder, train=True)
    assert train.classes == (GOLDFISH, TABBY)
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert first_shades(train) == [10, 11, 0, 1]
    val = read_tiny_imagenet(tmp_path if above else folder, train=False)
    assert (val.name, val.classes) == ("tiny-imagenet", (GOLDFISH, TABBY))
    assert val.labels.tolist() == [0, 1, 1]
    assert first_shades(val) == [1, 0, 2]


def test_invalid_tiny_imagenet_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no wnids\.txt in .*'tiny-imagenet-200'"):
        read_tiny_imagenet(tmp_path, train=True)
    folder = tiny(tmp_path)
    (folder / "val" / "images" / "val_1.JPEG").unlink()
    with pytest.raises(InputError, match=r"1 pictures named in .* missing, .*val_1\.JPEG"):
        read_tiny_imagenet(tmp_path, train=False)
    (folder / "val" / "val_annotations.txt").write_text("hello\n")
    with pytest.raises(InputError, match="has the line 'hello'"):
        read_tiny_imagenet(tmp_path, train=False)
    (folder / "wnids.txt").write_text(TABBY)
    with pytest.raises(
        InputError, match=f"class '{GOLDFISH}' .* is not one of the 1 known classes"
    ):
        read_tiny_imagenet(tmp_path, train=True)


def corrupted(root, *names, severities=(1, 5)):
    for name in names:
        for severity in severities:
            for shade, wnid in enumerate((GOLDFISH, TABBY)):
                path = root / name / str(severity) / wnid / "ILSVRC2012_val_00000293.JPEG"
                picture(path, 10 * severity + shade)
    return root


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("above", ["", "ImageNet-C"])
def test_imagenet_c_has_a_domain_per_corruption(tmp_path, flat, above):
    root = tmp_path / above
    corrupted(root, *(["fog", "glass_blur"] if flat else ["weather/fog", "blur/glass_blur"]))
    glass, fog = read_imagenet_c(tmp_path, ["glass_blur", "fog"], severity=5)
    assert (glass.name, fog.name) == ("glass_blur", "fog")
    assert fog.labels.tolist() == [1, 281]
    assert fog.classes == imagenet_wnids()
    assert first_shades(fog) == [50, 51]


def test_tiny_imagenet_c_numbers_the_classes_it_has(tmp_path):
    corrupted(tmp_path / "Tiny-ImageNet-C", "fog", "snow")
    picture(tmp_path / "Tiny-ImageNet-C" / "snow" / "5" / SHARK / "test_1.JPEG", 7)
    fog, snow = read_tiny_imagenet_c(tmp_path, ["fog", "snow"], severity=5)
    assert fog.classes == snow.classes == (GOLDFISH, SHARK, TABBY)
    assert fog.labels.tolist() == [0, 2]
    assert snow.labels.tolist() == [0, 1, 2]


def test_missing_corruption_or_severity_is_refused(tmp_path):
    corrupted(tmp_path, "weather/fog", "weather/snow")
    with pytest.raises(InputError, match=r"no 'frost' in .*; allowed: fog, snow"):
        read_imagenet_c(tmp_path, ["frost"], severity=5)
    with pytest.raises(InputError, match="no folder for severity 3; allowed: 1, 5"):
        read_imagenet_c(tmp_path, ["fog"], severity=3)
    with pytest.raises(SettingError, match="severity is 6"):
        read_imagenet_c(tmp_path, ["fog"], severity=6)
    picture(tmp_path / "weather" / "fog" / "5" / "goldfish" / "1.JPEG")
    with pytest.raises(InputError, match="class 'goldfish' of 'fog' is not one of the 1000"):
        read_imagenet_c(tmp_path, ["fog"], severity=5)


@pytest.mark.parametrize("above", ["", "imagenet-r"])
def test_imagenet_r_numbers_its_existing_classes(tmp_path, above):
    picture(tmp_path / above / TABBY / "art_0.jpg", side=300)
    picture(tmp_path / above / GOLDFISH / "cartoon_3.jpg", side=150)
    picture(tmp_path / above / GOLDFISH / "art_1.jpg", side=500)
    (tmp_path / above / "README.txt").write_text("hello")
    domain = read_imagenet_r(tmp_path)
    assert (domain.name, domain.classes) == ("imagenet-r", (GOLDFISH, TABBY))
    assert domain.labels.tolist() == [0, 0, 1]
    assert domain.images[torch.arange(3)].shape == (3, 3, 224, 224)
    picture(tmp_path / above / "n00000001" / "1.jpg")
    with pytest.raises(InputError, match=r"'n00000001' in .* not one of ImageNet's 1,000"):
        read_imagenet_r(tmp_path)
