"""Images of one kind with their labels, in memory or on disk."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from torch import Tensor

from bitta.errors import InputError


class Images(Protocol):
    """Pictures that are read when they are needed, to derive from; a tensor will do as well."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, rows: Tensor) -> Tensor:
        """These rows, uint8 (0 to 255) or float, (rows, channels, height, width)."""

    @property
    def fingerprint(self) -> str:
        """Hash that tells these images from others, found without decoding all of them."""

    def prepare(self) -> None:
        """Make now what would be made for the first row; most have nothing to make."""
        return

    def release(self) -> None:
        """Let go of what was made; it is made anew if a row is asked for after all."""
        return


@dataclass(frozen=True, eq=False)
class Domain:
    """One condition under which a stream is taken."""

    name: str
    images: Tensor | Images
    labels: Tensor
    classes: tuple[str, ...] = ()
    """Their names, in the order of the labels, where they are known."""

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise InputError(
                f"domain {self.name!r} has {len(self.images)} images and {len(self.labels)} "
                "labels; one label per image is needed."
            )

    @property
    def fingerprint(self) -> str:
        """Hash of name, labels, classes and images."""
        images = self.images
        told = hashed(images) if isinstance(images, Tensor) else images.fingerprint
        return hashed(self.name, self.labels, *self.classes, told)

    def prepare(self) -> None:
        """Make the images, where they have to be made."""
        if not isinstance(self.images, Tensor):
            self.images.prepare()

    def release(self) -> None:
        """Let go of images that can be made anew."""
        if not isinstance(self.images, Tensor):
            self.images.release()


def hashed(*parts: str | bytes | Tensor) -> str:
    """One hash of several things."""
    digest = sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
            digest.update(part.contiguous().numpy().tobytes())
        else:
            digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()
