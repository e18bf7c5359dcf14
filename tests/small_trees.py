"""Small folders in the official layout of every data set."""

import numpy as np
import torch
from PIL import Image

from bitta.corruptions import CORRUPTIONS
from bitta.streams import embedded_pack, imagenet_wnids


def picture(path, side=64, shade=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), shade, np.uint8)).save(path)


def cifar10(root, n=40):
    root.mkdir(parents=True, exist_ok=True)
    pack = embedded_pack("cifar10")
    table = torch.cat([pack.labels[:n, None].to(torch.uint8), pack.images[:n].flatten(1)], 1)
    (root / "test_batch.bin").write_bytes(table.numpy().tobytes())


def cifar100(root, n=40):
    root.mkdir(parents=True)
    pack = embedded_pack("cifar10")
    labels = torch.stack([torch.zeros(n), torch.arange(n) % 100], 1).to(torch.uint8)
    table = torch.cat([labels, pack.images[:n].flatten(1)], 1)
    (root / "test.bin").write_bytes(table.numpy().tobytes())


def tree_c(root, wnids, side):
    for corruption in CORRUPTIONS:
        for severity in range(1, 6):
            for index, wnid in enumerate(wnids):
                picture(root / corruption / str(severity) / wnid / "a.JPEG", side, 40 * index)


def imagenet_r(root):
    for index, wnid in enumerate(imagenet_wnids()[5:8]):
        picture(root / wnid / "art_0.jpg", 300, 60 * index)


def pacs(root):
    for index, domain in enumerate(("art_painting", "cartoon", "photo", "sketch")):
        for kind in ("dog", "house"):
            picture(root / domain / kind / "1.png", 64, 50 * index)


def domainnet(root):
    for domain in ("real", "clipart", "painting", "sketch"):
        name = f"{domain}/axe/{domain}_1.jpg"
        picture(root / name, 300)
        (root / f"{domain}_list.txt").write_text(f"{name} 0\n")


def visda(root):
    picture(root / "val_data" / "imagenet_c_and_r" / imagenet_wnids()[3] / "x.jpg", 300)


def mnist(root):
    root.mkdir(parents=True)

    def write(name, magic, shape, values):
        content = bytes([0, 0, 8, magic]) + np.array(shape, ">i4").tobytes() + bytes(values)
        (root / name).write_bytes(content)

    write("train-images-idx3-ubyte", 3, (40_050, 2, 2), np.full(40_050 * 4, 9, np.uint8))
    write("train-labels-idx1-ubyte", 1, (40_050,), np.arange(40_050, dtype=np.uint8) % 10)


MAKERS = {
    "cifar10-c": ("cifar10", cifar10),
    "cifar100-c": ("cifar100", cifar100),
    "tiny-imagenet-c": (
        "tiny-imagenet-c", lambda root: tree_c(root, ["n01443537", "n01629819"], 64)
    ),
    "imagenet-c": ("imagenet-c", lambda root: tree_c(root, imagenet_wnids()[:2], 224)),
    "imagenet-r": ("imagenet-r", imagenet_r),
    "pacs": ("pacs", pacs),
    "domainnet126": ("domainnet126", domainnet),
    "visda2021": ("visda2021", visda),
    "coloured-mnist": ("mnist", mnist),
}  # fmt: skip
