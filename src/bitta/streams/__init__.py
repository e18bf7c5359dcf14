"""Data as it arrives: sets, their domains, the order, batches."""

from bitta.streams.arrays import read_arrays
from bitta.streams.catalogue import data_folder, set_folder
from bitta.streams.cifar import CIFAR10_CLASSES, CIFAR100_CLASSES, read_cifar10, read_cifar100
from bitta.streams.coloured_digits import CHANCES, coloured_digits
from bitta.streams.corrupted_arrays import read_corrupted
from bitta.streams.domain import Domain, Images, hashed
from bitta.streams.folders import read_folders
from bitta.streams.imagenet import (
    imagenet_wnids,
    read_imagenet_c,
    read_imagenet_r,
    read_tiny_imagenet,
    read_tiny_imagenet_c,
)
from bitta.streams.images import Chosen, Entry, Files, Geometry, Mapped
from bitta.streams.listed import DOMAINNET126_DOMAINS, read_domainnet126, read_visda2021
from bitta.streams.mnist import read_mnist
from bitta.streams.order import ORDERS, Arrangement, correlated
from bitta.streams.pack import Pack, embedded_pack, write_pack
from bitta.streams.stream import Stream, as_floats

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
