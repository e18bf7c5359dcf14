"""Changes to the rows of kept images."""

import json
from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select, update

from bitta.server.store.log import append
from bitta.server.store.records import ImageRecord, NewImage
from bitta.server.store.tables import images as rows


def kept(
    connection: Connection, *, images: Sequence[NewImage], names: Sequence[str], at: int
) -> list[ImageRecord]:
    """Record images whose files are durable; one that is kept already stays as it is."""
    return [_kept(connection, image, name, at) for image, name in zip(images, names, strict=True)]


def deleted(connection: Connection, *, sha256: str, by: str, at: int) -> bool:
    """Mark an image as deleted; its file goes once this is durable."""
    there = (rows.c.sha256 == sha256) & rows.c.deleted_at.is_(None)
    if connection.execute(update(rows).where(there).values(deleted_at=at)).rowcount == 0:
        return False
    append(connection, kind="image_deleted", body={"sha256": sha256, "by": by}, at=at)
    return True


def find_image(connection: Connection, sha256: str) -> ImageRecord | None:
    """Read one image's row."""
    found = connection.execute(select(rows).where(rows.c.sha256 == sha256)).mappings()
    row = found.one_or_none()
    if row is None:
        return None
    return ImageRecord(**dict(row) | {"shape": tuple(json.loads(row["shape"]))})


def _kept(connection: Connection, image: NewImage, name: str, at: int) -> ImageRecord:
    there = find_image(connection, name)
    if there is not None and there.deleted_at is None:
        return there
    connection.execute(delete(rows).where(rows.c.sha256 == name))
    new = ImageRecord(name, len(image.content), image.shape, image.dtype, at, None)
    connection.execute(
        insert(rows).values(
            sha256=name,
            n_bytes=new.n_bytes,
            shape=json.dumps(list(image.shape)),
            dtype=image.dtype,
            kept_at=at,
        )
    )
    return new
