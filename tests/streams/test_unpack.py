"""Tests of unpacking archives."""

import io
import stat
import tarfile
import zipfile
from random import Random

import pytest

from bitta.errors import InputError
from bitta.streams.unpack import unpack

CONTENTS = {
    "set/a.bin": b"a" * 5000,
    "set/deep/b.bin": bytes(range(256)) * 40,
    "other/c.bin": Random(0).randbytes(1_200_000),  # 1 % of it is more than a tar's padding
}


def write_tar(path, contents, mode="w", links=()):
    with tarfile.open(path, mode) as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, kind, link in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            tar.addfile(info)
    return path


def write_zip(path, contents):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in contents.items():
            packed.writestr(name, content)
    return path


WRITERS = {
    "x.tar": write_tar,
    "x.tar.gz": lambda path, contents: write_tar(path, contents, "w:gz"),
    "x.tgz": lambda path, contents: write_tar(path, contents, "w:gz"),
    "x.zip": write_zip,
    "no-suffix": lambda path, contents: write_tar(path, contents, "w:gz"),
}


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=WRITERS)
def archive(request, tmp_path):
    return WRITERS[request.param](tmp_path / request.param, CONTENTS)


def test_every_archive_format_is_unpacked(archive, tmp_path):
    seen = []
    folder = unpack(archive, tmp_path / "out", on_progress=lambda *step: seen.append(step))
    assert folder == tmp_path / "out"
    assert files(folder) == CONTENTS
    size = archive.stat().st_size
    assert seen[-1] == (size, size)
    assert all(0 <= done <= total == size for done, total in seen)
    assert names(tmp_path) == sorted([archive.name, "out"])


def test_only_the_given_member_is_kept(archive, tmp_path):
    folder = unpack(archive, tmp_path / "out", member="set")
    assert files(folder) == {"a.bin": b"a" * 5000, "deep/b.bin": CONTENTS["set/deep/b.bin"]}
    with pytest.raises(InputError, match="holds nothing in 'se'"):
        unpack(archive, tmp_path / "more", member="se")
    assert names(tmp_path) == sorted([archive.name, "out"])


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 0.99])
def test_truncated_archive_leaves_nothing(archive, tmp_path, share):
    content = archive.read_bytes()
    archive.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError, match="is truncated, damaged, or not a tar or zip"):
        unpack(archive, tmp_path / "out")
    assert names(tmp_path) == [archive.name]


def test_tar_cut_between_two_members_is_refused(tmp_path):
    archive = write_tar(tmp_path / "x.tar", CONTENTS)
    with tarfile.open(archive) as tar:
        offset = tar.getmembers()[2].offset
    archive.write_bytes(archive.read_bytes()[:offset])
    with pytest.raises(InputError, match="its end is missing"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("name", ["x.tgz", "x.zip"])
def test_damage_in_the_middle_is_refused(tmp_path, name):
    archive = WRITERS[name](tmp_path / name, {"a": bytes(range(256)) * 400})
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 255
    archive.write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        unpack(archive, tmp_path / "out")
    assert names(tmp_path) == [name]


@pytest.mark.parametrize("name", ["../evil", "a/../../evil"])
@pytest.mark.parametrize("kind", ["x.tar", "x.tgz", "x.zip"])
def test_parent_paths_are_refused(tmp_path, kind, name):
    archive = WRITERS[kind](tmp_path / kind, {"good": b"good", name: b"evil"})
    with pytest.raises(InputError, match="is not safe to unpack"):
        unpack(archive, tmp_path / "out")
    assert names(tmp_path) == [kind]


def test_absolute_paths_stay_inside_or_are_refused(tmp_path):
    evil = tmp_path / "evil"
    tar = write_tar(tmp_path / "x.tar", {str(evil): b"evil"})
    unpack(tar, tmp_path / "out")
    assert files(tmp_path / "out") == {str(evil).lstrip("/"): b"evil"}
    packed = write_zip(tmp_path / "x.zip", {str(evil): b"evil"})
    with pytest.raises(InputError, match="outside the folder"):
        unpack(packed, tmp_path / "more")
    assert not evil.exists()


@pytest.mark.parametrize("name", ["..\\evil", "C:\\evil", "C:/evil"])
def test_paths_of_other_systems_are_refused_in_a_zip(tmp_path, name):
    archive = write_zip(tmp_path / "x.zip", {name: b"evil"})
    with pytest.raises(InputError, match="outside the folder"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "../../etc"),
        (tarfile.LNKTYPE, "../x"),
        (tarfile.CHRTYPE, ""),
    ],
)
def test_links_out_of_the_folder_and_devices_are_refused_in_a_tar(tmp_path, kind, link):
    archive = write_tar(tmp_path / "x.tar", {"a": b"a"}, links=[("set/link", kind, link)])
    with pytest.raises(InputError, match="is not safe to unpack"):
        unpack(archive, tmp_path / "out")
    assert names(tmp_path) == ["x.tar"]


def test_links_within_a_tar_work(tmp_path):
    links = [("set/hard", tarfile.LNKTYPE, "set/a"), ("set/soft", tarfile.SYMTYPE, "a")]
    archive = write_tar(tmp_path / "x.tar", {"set/a": b"a"}, links=links)
    assert files(unpack(archive, tmp_path / "out")) == dict.fromkeys(
        ["set/a", "set/hard", "set/soft"], b"a"
    )


def test_links_and_passwords_are_refused_in_a_zip(tmp_path):
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr(link, "/etc/passwd")
    with pytest.raises(InputError, match="'link' is a link"):
        unpack(tmp_path / "x.zip", tmp_path / "out")
    archive = write_zip(tmp_path / "y.zip", {"a": b"a"})
    content = bytearray(archive.read_bytes())
    content[content.index(b"PK\1\2") + 8] |= 1
    archive.write_bytes(content)
    with pytest.raises(InputError, match="password"):
        unpack(archive, tmp_path / "out")


def test_folder_with_files_is_not_changed(archive, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(InputError, match="cannot be written"):
        unpack(archive, tmp_path / "out")
    assert files(tmp_path / "out") == {"mine": b"mine"}


def test_draft_of_a_killed_process_is_deleted(archive, tmp_path):
    (tmp_path / ".out.draft").mkdir()
    (tmp_path / ".out.draft" / "half").write_text("half")
    assert files(unpack(archive, tmp_path / "out")) == CONTENTS


def test_ctrl_c_leaves_nothing(archive, tmp_path):
    def stop(_done, _total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack(archive, tmp_path / "out", on_progress=stop)
    assert names(tmp_path) == [archive.name]


def test_invalid_or_empty_archive_is_refused(tmp_path):
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(InputError, match="not a tar or zip"):
        unpack(tmp_path / "x.txt", tmp_path / "out")
    with pytest.raises(InputError, match="there is no file"):
        unpack(tmp_path / "none.tar", tmp_path / "out")
    for name in ("x.tar", "x.zip"):
        with pytest.raises(InputError, match="holds no files"):
            unpack(WRITERS[name](tmp_path / name, {}), tmp_path / "out")
