"""Tests of folders and tars of pictures."""

import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from bitta.errors import InputError
from bitta.streams.folders import read_folders
from bitta.streams.images import Geometry


def picture(path, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 6, 3), shade, np.uint8)).save(path)


def tree(root, *paths):
    for shade, path in enumerate(paths):
        picture(root / path, shade)
    return root


def pack(root, domain, *, prefix=""):
    """Turn a domain's folder into a tar."""
    with tarfile.open(root / f"{domain}.tar", "w") as archive:
        for path in sorted((root / domain).rglob("*"), reverse=True):
            if path.is_file():
                archive.add(path, prefix + path.relative_to(root / domain).as_posix())
                path.unlink()
    for path in sorted((root / domain).rglob("*"), reverse=True):
        path.rmdir()
    (root / domain).rmdir()


TWO = (
    "photo/dog/a.png",
    "photo/cat/b.png",
    "photo/cat/a.png",
    "sketch/cat/x.jpg",
    "sketch/elk/y.bmp",
)


def shades(domain):
    return domain.images[torch.arange(len(domain.labels))][:, 0, 0, 0].tolist()


def test_labels_follow_the_sorted_classes_of_all_domains(tmp_path):
    photo, sketch = read_folders(tree(tmp_path, *TWO))
    assert (photo.name, sketch.name) == ("photo", "sketch")
    assert photo.classes == sketch.classes == ("cat", "dog", "elk")
    assert photo.labels.tolist() == [0, 0, 1]
    assert sketch.labels.tolist() == [0, 2]
    assert shades(photo) == [2, 1, 0]


def test_labels_do_not_depend_on_the_chosen_domains(tmp_path):
    sketch, photo = read_folders(tree(tmp_path, *TWO), domains=["sketch", "photo"])
    assert (sketch.name, photo.name) == ("sketch", "photo")
    (alone,) = read_folders(tmp_path, domains=["sketch"])
    assert alone.classes == ("cat", "dog", "elk")
    assert alone.labels.tolist() == [0, 2]


@pytest.mark.parametrize("prefix", ["", "./", "photo/"])
def test_tar_gives_the_same_domain_as_its_folder(tmp_path, prefix):
    (before, _) = read_folders(tree(tmp_path, *TWO))
    shown = shades(before)
    pack(tmp_path, "photo", prefix=prefix)
    after, sketch = read_folders(tmp_path, geometry=Geometry(crop=4))
    assert (after.name, after.classes) == (before.name, before.classes)
    assert after.labels.tolist() == before.labels.tolist()
    assert shades(after) == shown
    assert sketch.images[torch.tensor([0])].shape == (1, 3, 4, 4)


def test_hidden_files_and_other_files_are_skipped(tmp_path):
    tree(tmp_path, *TWO, "photo/dog/deep/er/c.PNG", "photo/cat/.thumb.png", "photo/.git/x.png")
    (tmp_path / "photo" / "cat" / "notes.txt").write_text("hello")
    (tmp_path / "photo" / "cat" / "Thumbs.db").write_text("hello")
    (tmp_path / "readme.md").write_text("hello")
    photo, _ = read_folders(tmp_path)
    assert photo.labels.tolist() == [0, 0, 1, 1]


def test_given_classes_determine_the_labels(tmp_path):
    tree(tmp_path, *TWO)
    (photo,) = read_folders(tmp_path, domains=["photo"], classes=["dog", "elk", "cat"])
    assert photo.labels.tolist() == [2, 2, 0]
    with pytest.raises(
        InputError, match="class 'elk' of 'sketch' is not one of the 2 known classes"
    ):
        read_folders(tmp_path, classes=["dog", "cat"])


def test_folder_of_classes_is_one_domain(tmp_path):
    (domain,) = read_folders(tree(tmp_path / "mine", "dog/a.png", "cat/a.png", "cat/b.png"))
    assert domain.name == "mine"
    assert domain.classes == ("cat", "dog")
    assert domain.labels.tolist() == [0, 0, 1]
    with pytest.raises(InputError, match="holds pictures, so it is a class"):
        read_folders(tmp_path / "mine", domains=["dog"])


def test_wrapper_folder_of_an_archive_is_skipped(tmp_path):
    below = [f"PACS/kfold/{domain}/{kind}/1.png" for domain in "ab" for kind in ("cat", "dog")]
    tree(tmp_path, *below)
    first, second = read_folders(tmp_path)
    assert (first.name, second.name, first.classes) == ("a", "b", ("cat", "dog"))
    (only,) = read_folders(tmp_path, domains=["b"])
    assert only.name == "b"


def test_pictures_at_two_levels_are_refused(tmp_path):
    tree(tmp_path, *TWO, "photo/stray.png")
    with pytest.raises(InputError, match=r"photo' holds pictures, so it is a class"):
        read_folders(tmp_path)


def test_empty_or_missing_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        read_folders(tmp_path / "none")
    with pytest.raises(InputError, match=r"holds no folder and no \.tar of a domain"):
        read_folders(tmp_path)
    tree(tmp_path, *TWO)
    with pytest.raises(InputError, match=r"no domain 'art' in .*; allowed: photo, sketch"):
        read_folders(tmp_path, domains=["art"])
    (tmp_path / "photo" / "fox").mkdir()
    with pytest.raises(InputError, match="class 'fox' of 'photo' holds no picture"):
        read_folders(tmp_path)
    assert read_folders(tmp_path, domains=["sketch"])[0].classes == ("cat", "dog", "elk")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="domain 'empty' holds no class folder"):
        read_folders(tmp_path, domains=["empty"])


def test_invalid_tar_is_refused(tmp_path):
    tree(tmp_path, *TWO)
    (tmp_path / "art.tar").write_text("hello" * 200)
    with pytest.raises(InputError, match=r"art\.tar' cannot be read as an uncompressed tar"):
        read_folders(tmp_path)
    with tarfile.open(tmp_path / "art.tar", "w:gz") as archive:
        archive.add(tmp_path / "photo" / "dog", "dog")
    with pytest.raises(InputError, match="uncompressed tar"):
        read_folders(tmp_path)


def test_pacs_has_all_domains(shared_data):
    domains = read_folders(shared_data / "pacs")
    assert {domain.name: len(domain.labels) for domain in domains} == {
        "art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929,
    }  # fmt: skip
    kinds = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    for domain in domains:
        assert domain.classes == kinds
        assert domain.labels.bincount().min() > 0
        images = domain.images[torch.tensor([0, len(domain.labels) - 1])]
        assert images.shape == (2, 3, 160, 160)
