"""Tests of the newest samples, which are kept in one block of memory."""

import torch

from bitta.server.engine.served_log import RecentSample, RecentSamples


def sample(number):
    """Two numbers: 8 bytes."""
    return RecentSample(f"p{number}", number, torch.full((2,), float(number)), f"{number % 3:064x}")


def test_newest_sample_replaces_oldest():
    recent = RecentSamples(24)
    for number in range(5):
        recent.add(sample(number))
    assert len(recent) == 3
    assert recent.copy_input("p1") is None
    assert recent.find_at(1) is None
    assert [recent.find_at(position).input.tolist() for position in (2, 3, 4)] == [
        [2, 2],
        [3, 3],
        [4, 4],
    ]


def test_samples_are_copied():
    recent, original = RecentSamples(24), sample(7)
    recent.add(original)
    original.input.zero_()
    assert recent.copy_input("p7").tolist() == [7, 7]


def test_newest_sample_is_kept_without_capacity():
    recent = RecentSamples(0)
    recent.add(sample(1))
    recent.add(sample(2))
    assert recent.copy_input("p1") is None
    assert recent.copy_input("p2").tolist() == [2, 2]


def test_every_copy_of_an_image_is_erased():
    recent = RecentSamples(80)
    for number in range(6):  # 1 and 4 have the same image
        recent.add(sample(number))
    inputs = [recent.find_at(number).input for number in (1, 4)]
    recent.forget_image(f"{1:064x}")
    assert len(recent) == 4
    assert recent.copy_input("p1") is recent.copy_input("p4") is None
    assert [image.tolist() for image in inputs] == [[0, 0], [0, 0]]
