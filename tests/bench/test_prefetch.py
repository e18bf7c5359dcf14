"""Tests of reading batches ahead in background threads."""

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


class LoggedImages(Images):
    """Images that log their preparation and release."""

    def __init__(self, log, name, first=0, broken=()):
        self.log, self.name, self.pixels, self.broken = log, name, pictures(first), broken
        self.is_prepared = threading.Event()

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, rows):
        if set(rows.tolist()) & set(self.broken):
            raise InputError("'x.png' is truncated or not a picture")
        assert self.is_prepared.is_set()
        return self.pixels[rows]

    @property
    def fingerprint(self):
        return self.name

    def prepare(self):
        if not self.is_prepared.is_set():
            self.log.append(f"prepared {self.name}")
        self.is_prepared.set()

    def release(self):
        if self.is_prepared.is_set():
            self.log.append(f"released {self.name}")
        self.is_prepared.clear()


def logged_domains(log, names="abc", **given):
    return [
        Domain(name, LoggedImages(log, name, 20 * index, **given), torch.arange(11))
        for index, name in enumerate(names)
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
@pytest.mark.parametrize(
    "arrangement", ARRANGEMENTS, ids=lambda arrangement: f"{arrangement.order}-{arrangement.labels}"
)
def test_batches_equal_those_of_the_stream(arrangement, ahead):
    domains = [
        Domain(f"fog {index + 1}", pictures(50 * index), torch.arange(11) % 3) for index in range(3)
    ]
    stream = Stream(domains, batch_size=4, arrangement=arrangement)
    whole = list(stream.batches())
    assert_same(Prefetch(stream, CPU, ahead=ahead).batches(), whole)
    for start in (1, 4, len(stream)):
        assert_same(Prefetch(stream, CPU, start=start, ahead=ahead).batches(), whole[start:])
    assert not threads()


def test_background_corruption_gives_the_same_bytes():
    config = StreamConfig(
        kind="corruptions", n_samples=20, batch_size=8, corruptions="fog,glass_blur,contrast"
    )
    whole = list(build_stream(config, seed=0).batches())
    assert_same(Prefetch(build_stream(config, seed=0), CPU, ahead=True).batches(), whole)


def test_floats_are_unchanged_and_pixels_are_divided_by_255():
    floats = torch.rand(3, 2)
    assert as_floats(floats) is floats
    pixels = torch.arange(256, dtype=torch.uint8)
    assert as_floats(pixels).equal(torch.arange(256) / 255)


def test_next_visit_is_prepared_while_the_current_one_is_read():
    log = []
    domains = logged_domains(log)
    batches = Prefetch(Stream(domains, batch_size=1), CPU, ahead=True).batches()
    next(batches)
    assert domains[1].images.is_prepared.wait(timeout=60)
    assert log == ["prepared a", "prepared b"]  # domain a has more batches than are kept ready
    for _ in range(11):
        batch = next(batches)
    assert batch.domain == "b"
    assert domains[2].images.is_prepared.wait(timeout=60)
    batches.close()
    assert log == ["prepared a", "prepared b", "released a", "prepared c"]


@pytest.mark.parametrize("ahead", [False, True])
def test_images_of_a_later_visit_are_kept(ahead):
    log = []
    arrangement = Arrangement(sequence=("a", "b", "a", "c"))
    stream = Stream(logged_domains(log), batch_size=4, arrangement=arrangement)
    list(Prefetch(stream, CPU, ahead=ahead).batches())
    assert log.count("prepared a") == log.count("prepared b") == log.count("prepared c") == 1
    assert sorted(entry for entry in log if "released" in entry) == ["released a", "released b"]


def test_resumed_stream_prepares_only_remaining_visits():
    log = []
    stream = Stream(logged_domains(log), batch_size=4)
    stream.prepare(0)
    list(Prefetch(stream, CPU, start=3, ahead=True).batches())
    assert log[:3] == ["prepared a", "released a", "prepared b"]
    assert "prepared c" in log


def test_empty_domain_is_skipped():
    log = []
    first, _, last = logged_domains(log)
    empty = Domain("none", pictures(0, n=0), torch.arange(0))
    stream = Stream([first, empty, last], batch_size=4)
    assert [batch.domain for batch in Prefetch(stream, CPU, ahead=True).batches()] == (
        ["a"] * 3 + ["c"] * 3
    )


@pytest.mark.parametrize("ahead", [False, True])
def test_broken_picture_is_reported_after_the_valid_batches(ahead):
    good, bad = logged_domains([], "ab")
    bad.images.broken = range(11)
    batches = Prefetch(Stream([good, bad], batch_size=4), CPU, ahead=ahead).batches()
    for _ in range(3):
        assert next(batches).domain == "a"
    with pytest.raises(InputError, match=r"x\.png"):
        next(batches)
    assert not threads()


def test_failed_preparation_is_reported_at_its_visit(monkeypatch):
    good, bad = logged_domains([], "ab")

    def fail():
        raise InputError("there is no frost")

    monkeypatch.setattr(bad.images, "prepare", fail)
    batches = Prefetch(Stream([good, bad], batch_size=4), CPU, ahead=True).batches()
    assert [next(batches).domain for _ in range(3)] == ["a"] * 3
    with pytest.raises(InputError, match="there is no frost"):
        next(batches)
    assert not threads()


def test_closing_early_leaves_no_thread():
    batches = Prefetch(Stream(logged_domains([]), batch_size=1), CPU, ahead=True).batches()
    next(batches)
    assert threads()
    batches.close()
    assert not threads()


@pytest.mark.parametrize("ahead", [False, True])
def test_making_and_waiting_times_are_measured(ahead):
    prefetch = Prefetch(Stream(logged_domains([]), batch_size=4), CPU, ahead=ahead)
    list(prefetch.batches())
    assert prefetch.making_seconds > 0
    assert prefetch.waiting_seconds > 0
