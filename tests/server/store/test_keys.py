"""Tests of keys: verification, revocation, and tokens that are never stored."""

import pytest

from bitta.errors import InputError


def test_token_is_verified_and_never_stored(store, tmp_path):
    made = store.keys.create("annotator", "Anna")
    assert made.token.startswith("bitta_")
    assert len(made.token) == len("bitta_") + 43  # 256 bits, 6 per character
    assert store.keys.verify(made.token) == made.record
    assert store.keys.list() == [made.record]
    store.close()
    secret = made.token.encode()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and secret in _read(path)]


def _read(path):
    return path.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda token: token[:-1],
        lambda token: token + "x",
        lambda token: token.upper(),
        lambda _: "",
        lambda _: "bitta_",
        lambda _: "é\ud800\0",
    ],
)
def test_changed_token_is_refused(store, change):
    made = store.keys.create("annotator", "Anna")
    assert store.keys.verify(change(made.token)) is None


def test_revoked_key_is_refused_at_once_and_still_listed(store, clock):
    kept, ended = store.keys.create("client", "a"), store.keys.create("client", "b")
    assert store.keys.verify(ended.token)
    assert store.keys.revoke(ended.record.id) is True
    assert store.keys.verify(ended.token) is None
    assert store.keys.verify(kept.token)
    assert store.keys.revoke(ended.record.id) is False
    assert store.keys.revoke("unknown") is False
    assert {key.name: key.revoked_at for key in store.keys.list()} == {"a": None, "b": clock.at}


def test_key_revoked_by_another_process_is_refused_within_a_second(store, clock):
    made = store.keys.create("client", "a")
    assert store.keys.verify(made.token)
    store.submit(
        lambda connection: connection.exec_driver_sql("UPDATE keys SET revoked_at = 1")
    ).result()
    clock.move(1)
    assert store.keys.verify(made.token) is None


@pytest.mark.parametrize("wrong", ["admin", "Client", "", None])
def test_unknown_role_raises(store, wrong):
    with pytest.raises(InputError, match="allowed: 'client', 'annotator', 'operator'"):
        store.keys.create(wrong, "x")


@pytest.mark.parametrize("name", ["two\nlines", "a\ttab", "bell\a", ""])
def test_name_with_unprintable_characters_raises(store, name):
    with pytest.raises(InputError, match="name "):
        store.keys.create("client", name)
