"""Batches that are ready before they are asked for."""

import threading

import pytest
import torch

from bitta.bench.prefetch import Prefetch
from bitta.bench.streams import StreamConfig, build_stream
from bitta.errors import InputError
from bitta.streams import Arrangement, Domain, Images, Stream, as_floats

CPU = torch.device("cpu")
ARRANGEMENTS = [
    Arrangement(),
    Arrangement(order="mixed"),
    Arrangement(order="single"),
    Arrangement(order="gradual"),
    Arrangement(order="recurring", rounds=2),
    Arrangement(labels="dirichlet"),
    Arrangement(sequence=("fog 2", "fog 1", "fog 2")),
]


def pictures(first, n=11):
    values = torch.arange(first, first + n, dtype=torch.uint8)
    return values.view(-1, 1, 1, 1).expand(n, 3, 2, 2).contiguous()


class Made(Images):
    """Pictures that keep a record of when they are made and let go."""

    def __init__(self, log, name, first=0, broken=()):
        self.log, self.name, self.pixels, self.broken = log, name, pictures(first), broken
        self.made = threading.Event()

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, rows):
        if set(rows.tolist()) & set(self.broken):
            raise InputError("'x.png' is truncated or not a picture")
        assert self.made.is_set()
        return self.pixels[rows]

    @property
    def fingerprint(self):
        return self.name

    def prepare(self):
        if not self.made.is_set():
            self.log.append(f"made {self.name}")
        self.made.set()

    def release(self):
        if self.made.is_set():
            self.log.append(f"let go {self.name}")
        self.made.clear()


def made_domains(log, names="abc", **given):
    return [
        Domain(name, Made(log, name, 20 * place, **given), torch.arange(11))
        for place, name in enumerate(names)
    ]


def threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("bitta-")}


def assert_same(some, others):
    for one, other in zip(some, others, strict=True):
        assert one.inputs.equal(other.inputs)
        assert one.inputs.dtype == other.inputs.dtype
        assert one.truth.equal(other.truth)
        assert (one.domain, one.reset) == (other.domain, other.reset)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("how", ARRANGEMENTS, ids=lambda how: f"{how.order}-{how.labels}")
def test_batches_are_those_of_the_stream(how, ahead):
    domains = [
        Domain(f"fog {place + 1}", pictures(50 * place), torch.arange(11) % 3) for place in range(3)
    ]
    stream = Stream(domains, batch_size=4, arrangement=how)
    whole = list(stream.batches())
    assert_same(Prefetch(stream, CPU, ahead=ahead).batches(), whole)
    for start in (1, 4, len(stream)):
        assert_same(Prefetch(stream, CPU, start=start, ahead=ahead).batches(), whole[start:])
    assert not threads()


def test_what_is_corrupted_in_the_background_has_the_same_bytes():
    config = StreamConfig(
        kind="corruptions", n_samples=20, batch_size=8, corruptions="fog,glass_blur,contrast"
    )
    whole = list(build_stream(config, seed=0).batches())
    assert_same(Prefetch(build_stream(config, seed=0), CPU, ahead=True).batches(), whole)


def test_floats_stay_as_they_are_and_pixels_are_divided_exactly():
    floats = torch.rand(3, 2)
    assert as_floats(floats) is floats
    pixels = torch.arange(256, dtype=torch.uint8)
    assert as_floats(pixels).equal(torch.arange(256) / 255)


def test_the_next_visit_is_made_while_this_one_is_taken():
    log = []
    domains = made_domains(log)
    batches = Prefetch(Stream(domains, batch_size=1), CPU, ahead=True).batches()
    next(batches)
    assert domains[1].images.made.wait(timeout=60)
    assert log == ["made a", "made b"]  # more batches of the first than are kept ready are left
    for _ in range(11):
        batch = next(batches)
    assert batch.domain == "b"
    assert domains[2].images.made.wait(timeout=60)
    batches.close()
    assert log == ["made a", "made b", "let go a", "made c"]


@pytest.mark.parametrize("ahead", [False, True])
def test_what_a_later_visit_needs_is_kept(ahead):
    log = []
    how = Arrangement(sequence=("a", "b", "a", "c"))
    stream = Stream(made_domains(log), batch_size=4, arrangement=how)
    list(Prefetch(stream, CPU, ahead=ahead).batches())
    assert log.count("made a") == log.count("made b") == log.count("made c") == 1
    assert sorted(entry for entry in log if "let go" in entry) == ["let go a", "let go b"]


def test_a_resumed_stream_makes_only_what_is_left_and_lets_the_rest_go():
    log = []
    stream = Stream(made_domains(log), batch_size=4)
    stream.prepare(0)
    list(Prefetch(stream, CPU, start=3, ahead=True).batches())
    assert log[:3] == ["made a", "let go a", "made b"]
    assert "made c" in log


def test_an_empty_domain_between_two_is_passed_over():
    log = []
    first, _, last = made_domains(log)
    empty = Domain("none", pictures(0, n=0), torch.arange(0))
    stream = Stream([first, empty, last], batch_size=4)
    assert [batch.domain for batch in Prefetch(stream, CPU, ahead=True).batches()] == (
        ["a"] * 3 + ["c"] * 3
    )


@pytest.mark.parametrize("ahead", [False, True])
def test_a_broken_picture_is_told_after_the_good_batches(ahead):
    good, bad = made_domains([], "ab")
    bad.images.broken = range(11)
    batches = Prefetch(Stream([good, bad], batch_size=4), CPU, ahead=ahead).batches()
    for _ in range(3):
        assert next(batches).domain == "a"
    with pytest.raises(InputError, match=r"'x.png' is truncated or not a picture"):
        next(batches)
    assert not threads()


def test_what_cannot_be_made_is_told_when_its_visit_comes(monkeypatch):
    good, bad = made_domains([], "ab")

    def fail():
        raise InputError("there is no frost")

    monkeypatch.setattr(bad.images, "prepare", fail)
    batches = Prefetch(Stream([good, bad], batch_size=4), CPU, ahead=True).batches()
    assert [next(batches).domain for _ in range(3)] == ["a"] * 3
    with pytest.raises(InputError, match="there is no frost"):
        next(batches)
    assert not threads()


def test_closing_early_leaves_no_thread():
    batches = Prefetch(Stream(made_domains([]), batch_size=1), CPU, ahead=True).batches()
    next(batches)
    assert threads()
    batches.close()
    assert not threads()


@pytest.mark.parametrize("ahead", [False, True])
def test_making_and_waiting_are_counted(ahead):
    prefetch = Prefetch(Stream(made_domains([]), batch_size=4), CPU, ahead=ahead)
    list(prefetch.batches())
    assert prefetch.making_seconds > 0
    assert prefetch.waiting_seconds > 0
