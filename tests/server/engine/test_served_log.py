"""The newest samples, in one block of memory."""

import torch

from bitta.server.engine.served_log import RecentSample, RecentSamples


def sample(number):
    """Two numbers: 8 bytes."""
    return RecentSample(f"p{number}", number, torch.full((2,), float(number)), f"{number % 3:064x}")


def test_the_oldest_make_room_for_the_newest():
    recent = RecentSamples(24)
    for number in range(5):
        recent.add(sample(number))
    assert len(recent) == 3
    assert recent.find("p1") is None
    assert recent.find_at(1) is None
    assert [recent.find_at(place).input.tolist() for place in (2, 3, 4)] == [[2, 2], [3, 3], [4, 4]]


def test_what_is_kept_is_a_copy():
    recent, given = RecentSamples(24), sample(7)
    recent.add(given)
    given.input.zero_()
    assert recent.find("p7").input.tolist() == [7, 7]


def test_the_newest_is_kept_however_little_room_there_is():
    recent = RecentSamples(0)
    recent.add(sample(1))
    recent.add(sample(2))
    assert recent.find("p1") is None
    assert recent.find("p2").input.tolist() == [2, 2]


def test_every_copy_of_an_image_is_forgotten_and_wiped():
    recent = RecentSamples(80)
    for number in range(6):  # 1 and 4 are of the same image
        recent.add(sample(number))
    inputs = [recent.find_at(number).input for number in (1, 4)]
    recent.forget_image(f"{1:064x}")
    assert len(recent) == 4
    assert recent.find("p1") is recent.find("p4") is None
    assert [each.tolist() for each in inputs] == [[0, 0], [0, 0]]
