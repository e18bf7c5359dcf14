"""Data as it arrives: sets, their domains, the order, batches."""

from bitta.streams.arrays import read_arrays, read_corrupted
from bitta.streams.catalogue import data_folder, set_folder
from bitta.streams.cifar import CIFAR10_CLASSES, CIFAR100_CLASSES, read_cifar10, read_cifar100
from bitta.streams.digits import CHANCES, coloured_digits, read_mnist
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
from bitta.streams.images import Chosen, Domain, Entry, Files, Geometry, Images, Mapped, hashed
from bitta.streams.pack import Pack, embedded_pack, write_pack
from bitta.streams.stream import ORDERS, Arrangement, Stream, as_floats, correlated

__all__ = [
    "CHANCES",
    "CIFAR10_CLASSES",
    "CIFAR100_CLASSES",
    "DOMAINNET126_DOMAINS",
    "ORDERS",
    "Arrangement",
    "Chosen",
    "Domain",
    "Entry",
    "Files",
    "Geometry",
    "Images",
    "Mapped",
    "Pack",
    "Stream",
    "as_floats",
    "coloured_digits",
    "correlated",
    "data_folder",
    "embedded_pack",
    "hashed",
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
    "set_folder",
    "write_pack",
]
