"""First in, first out, verdict by verdict."""

import torch

from bitta.memory import FeedbackMemory, Fifo
from bitta.types import Feedback, Judged


def column(*values):
    return torch.tensor([[float(value)] for value in values])


def test_the_oldest_are_forgotten():
    fifo = Fifo(3)
    fifo.add(Judged(column(1, 2), torch.tensor([10, 20])))
    fifo.add(Judged(column(3, 4), torch.tensor([30, 40])))
    assert fifo.inputs.flatten().tolist() == [2, 3, 4]
    assert fifo.labels.tolist() == [20, 30, 40]


def test_more_than_fits_at_once_keeps_the_newest():
    fifo = Fifo(2)
    fifo.add(Judged(column(1, 2, 3), torch.tensor([1, 2, 3])))
    assert fifo.labels.tolist() == [2, 3]


def test_a_ring_that_has_gone_round_many_times_is_read_oldest_first():
    fifo, seen = Fifo(5), []
    for number in range(23):
        new = [10 * number + place for place in range(number % 4)]
        fifo.add(Judged(torch.tensor(new).float().unsqueeze(1), torch.tensor(new).long()))
        seen += new
        assert fifo.labels.tolist() == seen[-5:]
        assert fifo.inputs.flatten().tolist() == seen[-5:]


def test_adding_nothing_fixes_the_shape():
    fifo = Fifo(2)
    fifo.add(Judged(torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.long)))
    assert len(fifo) == 0
    assert fifo.inputs.shape == (0, 3, 8, 8)


def test_verdicts_are_kept_apart():
    memory = FeedbackMemory(correct=4, incorrect=4)
    memory.add(
        Feedback(Judged(column(1, 3), torch.tensor([7, 9])), Judged(column(2), torch.tensor([8])))
    )
    assert memory.correct.labels.tolist() == [7, 9]
    assert memory.incorrect.labels.tolist() == [8]


def test_state_round_trip():
    memory = FeedbackMemory(correct=2, incorrect=2)
    none = Judged(column(1)[:0], torch.tensor([], dtype=torch.long))
    memory.add(Feedback(none, Judged(column(1), torch.tensor([3]))))
    other = FeedbackMemory(correct=2, incorrect=2)
    other.load_state_dict(memory.state_dict(), device=torch.device("cpu"))
    assert other.incorrect.inputs.tolist() == [[1.0]]
    assert len(other.correct) == 0
