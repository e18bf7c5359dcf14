"""Data streams: data sets and their domains, the order of samples, batches."""

from bitta.streams.arrays import read_arrays, read_corrupted
from bitta.streams.cifar import CIFAR10_CLASSES, CIFAR100_CLASSES, read_cifar10, read_cifar100
from bitta.streams.digits import COLOUR_FLIPS, coloured_digits, read_mnist
from bitta.streams.download_catalogue import data_folder, data_set_folder
from bitta.streams.folders import read_folders
from bitta.streams.imagenet import (
    DOMAINNET126_DOMAINS,
    imagenet_wnids,
    read_domainnet126,
    read_imagenet_c,
    read_imagenet_r,
    read_tiny_imagenet,
    read_tiny_imagenet_c,
    read_visda2021,
)
from bitta.streams.images import (
    DecodedImages,
    Domain,
    Geometry,
    ImageFile,
    Images,
    MappedImages,
    SelectedImages,
    hash_parts,
)
from bitta.streams.pack import Pack, embedded_pack, write_pack
from bitta.streams.stream import ORDERS, Arrangement, Stream, as_floats, correlated_order

__all__ = [
    "CIFAR10_CLASSES",
    "CIFAR100_CLASSES",
    "COLOUR_FLIPS",
    "DOMAINNET126_DOMAINS",
    "ORDERS",
    "Arrangement",
    "DecodedImages",
    "Domain",
    "Geometry",
    "ImageFile",
    "Images",
    "MappedImages",
    "Pack",
    "SelectedImages",
    "Stream",
    "as_floats",
    "coloured_digits",
    "correlated_order",
    "data_folder",
    "data_set_folder",
    "embedded_pack",
    "hash_parts",
    "imagenet_wnids",
    "read_arrays",
    "read_cifar10",
    "read_cifar100",
    "read_corrupted",
    "read_domainnet126",
    "read_folders",
    "read_imagenet_c",
    "read_imagenet_r",
    "read_mnist",
    "read_tiny_imagenet",
    "read_tiny_imagenet_c",
    "read_visda2021",
    "write_pack",
]
