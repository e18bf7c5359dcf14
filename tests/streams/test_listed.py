"""Tests of lists of pictures: DomainNet-126 and VisDA-2021."""

import numpy as np
import pytest
import torch
from PIL import Image

from bitta.errors import InputError
from bitta.streams.imagenet import imagenet_wnids, read_domainnet126, read_visda2021


def picture(path, side=300):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((side, side + 20, 3), np.uint8)).save(path)


def domainnet(root, *domains):
    for domain in domains:
        lines = []
        for label, kind in enumerate(["aircraft_carrier", "alarm clock", "ant"]):
            name = f"{domain}/{kind}/{domain}_{label + 1:03}_000001.jpg"
            picture(root / name)
            lines.append(f"{name} {label}\n")
        (root / f"{domain}_list.txt").write_text("".join(reversed(lines)))
    return root


def test_domainnet126_follows_its_lists(tmp_path):
    domainnet(tmp_path, "clipart", "real")
    picture(tmp_path / "clipart" / "zebra" / "unlisted.jpg")
    real, clipart = read_domainnet126(tmp_path, domains=["real", "clipart"])
    assert (real.name, clipart.name) == ("real", "clipart")
    assert clipart.labels.tolist() == [2, 1, 0]
    assert clipart.classes == real.classes == ("aircraft_carrier", "alarm clock", "ant")
    assert clipart.images[torch.arange(3)].shape == (3, 3, 224, 224)


def test_invalid_lists_are_refused(tmp_path):
    domainnet(tmp_path, "clipart", "real")
    with pytest.raises(InputError, match=r"no painting_list\.txt in .* exist for clipart, real\."):
        read_domainnet126(tmp_path)
    (tmp_path / "clipart" / "ant" / "clipart_003_000001.jpg").unlink()
    (tmp_path / "clipart" / "alarm clock" / "clipart_002_000001.jpg").unlink()
    with pytest.raises(InputError, match=r"2 of 3 pictures .* missing, the first is .*clipart_003"):
        read_domainnet126(tmp_path, domains=["clipart"])
    real = tmp_path / "real_list.txt"
    lines = real.read_text()
    real.write_text(lines.replace(" 2\n", " 1\n"))
    with pytest.raises(InputError, match=r"label 1 is 'ant', but 'alarm clock' for"):
        read_domainnet126(tmp_path, domains=["real"])
    for bad in ("real/ant/x.jpg", "real/ant/x.jpg -1", "real/ant/x.jpg cat"):
        real.write_text(f"{lines}{bad}\n")
        with pytest.raises(InputError, match=r"line 4 of .*real_list\.txt' is 'real/ant/x\.jpg"):
            read_domainnet126(tmp_path, domains=["real"])


LINES = {
    "val_data/imagenet_c_and_r/n01443537/videogame_12.jpg": 1,
    "val_data/objectnet/ziploc_bag/4506f19bdb2044e.png": 1000,
    "val_data/objectnet/alarm_clock/00ab.png": 409,
    "val_data/imagenet_o/n02123045/1.jpg": 1000,
}


@pytest.mark.parametrize("start", ["./", "<root>/", ""])
@pytest.mark.parametrize("below", ["val_filelists", ""])
def test_visda_warns_about_pictures_outside_imagenet_classes(tmp_path, start, below):
    for name in LINES:
        picture(tmp_path / name)
    path = tmp_path / below / "objectnet_imagenet_c_r_o_filelist.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{start}{name} {label}\n" for name, label in LINES.items()))
    with pytest.warns(UserWarning, match="2 of 4 pictures of VisDA-2021 do not show"):
        domain = read_visda2021(tmp_path)
    assert domain.labels.tolist() == [1, 409]
    assert domain.classes == imagenet_wnids()
    assert domain.images[torch.arange(2)].shape == (2, 3, 224, 224)


def test_visda_without_a_list_reads_the_class_folders(tmp_path):
    for name in LINES:
        picture(tmp_path / name)
    assert read_visda2021(tmp_path).labels.tolist() == [1]


def test_visda_takes_another_list(tmp_path):
    picture(tmp_path / "test_data" / "1.jpg")
    (tmp_path / "mine.txt").write_text("test_data/1.jpg 7\n\n")
    assert read_visda2021(tmp_path, list_file=tmp_path / "mine.txt").labels.tolist() == [7]
    with pytest.raises(InputError, match=r"list '.*none\.txt' cannot be read"):
        read_visda2021(tmp_path, list_file=tmp_path / "none.txt")
    with pytest.raises(InputError, match=r"no folder .*imagenet_c_and_r"):
        read_visda2021(tmp_path)
