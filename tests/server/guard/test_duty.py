"""Time for learning."""

import pytest

from bitta.errors import SettingError
from bitta.server.guard import DutyCycle


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_half_of_the_time_waits_as_long_as_learning_took(clock):
    duty = DutyCycle(0.5, clock=clock)
    assert duty.wait() == 0
    duty.spent(3.0)
    assert duty.wait() == 3.0
    clock.now += 1
    assert duty.wait() == 2.0
    clock.now += 5
    assert duty.wait() == 0


def test_a_fifth_of_the_time_waits_four_times_as_long(clock):
    duty = DutyCycle(0.2, clock=clock)
    duty.spent(2.0)
    assert duty.wait() == pytest.approx(8.0)


def test_the_whole_time_never_waits(clock):
    duty = DutyCycle(1, clock=clock)
    duty.spent(9.0)
    assert duty.wait() == 0


def test_what_is_owed_stays_owed_but_idle_time_is_not_saved_up(clock):
    duty = DutyCycle(0.5, clock=clock)
    duty.spent(3.0)
    duty.spent(2.0)
    assert duty.wait() == 5.0
    clock.now += 1000
    duty.spent(4.0)
    assert duty.wait() == 4.0


def test_learning_that_fails_has_taken_time_too(clock):
    duty = DutyCycle(0.5, clock=clock)

    def fail():
        with duty.learning():
            clock.now += 2
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert duty.wait() == 2.0


def test_the_share_used_counts_the_part_of_a_spell_that_lies_in_the_stretch(clock):
    """Spells 90-100 and 110-120, now 140: of the last 60 s 20, of the last 25 s 5."""
    duty = DutyCycle(0.5, clock=clock)
    assert duty.used() == 0
    duty.spent(10.0)
    clock.now = 120.0
    duty.spent(10.0)
    clock.now = 140.0
    assert duty.used() == pytest.approx(20 / 60)
    assert duty.used(25) == pytest.approx(5 / 25)
    assert duty.used(20) == 0


def test_memory_of_spells_is_bounded(clock):
    duty = DutyCycle(0.5, clock=clock)
    for _ in range(2000):
        clock.now += 1
        duty.spent(0.5)
    assert len(duty._spells) <= 601


@pytest.mark.parametrize("share", [0, -0.1, 1.1])
def test_shares_out_of_range_are_refused(share):
    with pytest.raises(SettingError, match="pause to stop learning"):
        DutyCycle(share)
