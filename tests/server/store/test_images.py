"""Tests of stored images. The name of a file is the hash of its content."""

import threading
from hashlib import sha256

import pytest

from bitta.errors import InputError
from bitta.server.store import NewImage, StoreFull
from bitta.server.store.images import KeptImages

CAT = NewImage(b"cat" * 100, (10, 10, 3), "uint8")
NAME = sha256(CAT.content).hexdigest()


def test_kept_image_is_read_back(store, reopen, tmp_path):
    (record,) = store.keep_images([CAT]).result()
    assert (record.sha256, record.n_bytes, record.shape, record.dtype) == (
        NAME,
        300,
        (10, 10, 3),
        "uint8",
    )
    assert (tmp_path / "images" / NAME[:2] / NAME[2:4] / NAME).read_bytes() == CAT.content
    store = reopen()
    assert store.images.read(NAME) == CAT.content
    assert store.find_image(NAME) == record


def test_same_image_is_kept_once(store, clock):
    (first,) = store.keep_images([CAT]).result()
    clock.move(9)
    assert store.keep_images([CAT, CAT]).result() == [first, first]


def test_deleted_image_has_no_file_and_an_event(store, tmp_path):
    store.keep_images([CAT]).result()
    assert store.delete_image(NAME, by="olga").result() is True
    assert store.images.read(NAME) is None
    assert store.find_image(NAME).deleted_at is not None
    assert store.events()[-1].body == {"sha256": NAME, "by": "olga"}
    assert store.delete_image(NAME, by="olga").result() is False
    assert [path for path in (tmp_path / "images").rglob("*") if path.is_file()] == []


def test_deleted_image_can_be_kept_again(store):
    store.keep_images([CAT]).result()
    store.delete_image(NAME, by="olga").result()
    store.keep_images([CAT]).result()
    assert store.images.read(NAME) == CAT.content
    assert store.find_image(NAME).deleted_at is None


def test_deletion_between_file_and_row_keeps_the_file(store):
    store.keep_images([CAT]).result()
    removed, kept = store.delete_image(NAME, by="olga"), store.keep_images([CAT])
    assert removed.result()
    kept.result()
    assert store.find_image(NAME).deleted_at is None
    assert store.images.read(NAME) == CAT.content


def test_restart_removes_deleted_and_half_written_files(store, reopen, tmp_path):
    store.keep_images([CAT]).result()
    store.delete_image(NAME, by="olga").result()
    path = store.images.path(NAME)
    path.write_bytes(CAT.content)
    (tmp_path / "images" / "unfinished" / "half").write_bytes(b"ca")
    reopen()
    assert not path.exists()
    assert list((tmp_path / "images" / "unfinished").iterdir()) == []


@pytest.mark.parametrize("wrong", ["../../etc/passwd", "", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_name_that_is_not_a_hash_raises(tmp_path, wrong):
    with pytest.raises(InputError, match="give the 64 hex digits"):
        KeptImages(tmp_path).read(wrong)


def test_files_are_written_before_later_changes(store, monkeypatch):
    order, keep = [], store.images.write

    def watched(contents):
        order.append(threading.current_thread().name)
        keep(contents)

    monkeypatch.setattr(store.images, "write", watched)
    store.keep_images([CAT])
    store.submit(lambda _: order.append(store.images.read(NAME)), must=True).result()
    assert order[:2] == ["bitta-store", CAT.content]


def test_full_disk_loses_the_image_only(store, monkeypatch):
    def full(_):
        raise StoreFull("no room")

    monkeypatch.setattr(store.images, "write", full)
    kept, event = store.keep_images([CAT]), store.log_event("x", {})
    assert isinstance(kept.exception(), StoreFull)
    assert event.result()
    assert store.find_image(NAME) is None


def test_lost_images_are_logged_once_and_counted(store, monkeypatch, caplog):
    def full(_):
        raise StoreFull("no room")

    with monkeypatch.context() as disk:
        disk.setattr(store.images, "write", full)
        for images in ([CAT], [CAT, CAT]):
            assert isinstance(store.keep_images(images).exception(), StoreFull)
    store.keep_images([CAT]).result()
    store.keep_images([CAT]).result()
    store.log_event("x", {}).result()  # is done after all of them
    assert [record.message for record in caplog.records] == [
        "images are not kept: no room",
        "images are kept again; 3 were not kept",
    ]
    assert store.images.n_failed == 3
