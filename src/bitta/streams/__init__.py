"""Data as it arrives: domains, their order, batches."""

from bitta.streams.arrays import read_arrays
from bitta.streams.coloured_digits import CHANCES, coloured_digits
from bitta.streams.domain import Domain, Images
from bitta.streams.order import ORDERS, Arrangement, correlated
from bitta.streams.pack import Pack, embedded_pack, write_pack
from bitta.streams.raw import CIFAR10_CLASSES, read_cifar, read_mnist
from bitta.streams.stream import Stream

__all__ = [
    "CHANCES",
    "CIFAR10_CLASSES",
    "ORDERS",
    "Arrangement",
    "Domain",
    "Images",
    "Pack",
    "Stream",
    "coloured_digits",
    "correlated",
    "embedded_pack",
    "read_arrays",
    "read_cifar",
    "read_mnist",
    "write_pack",
]
