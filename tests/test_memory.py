"""First in, first out, verdict by verdict."""

import torch

from bitta.memory import FeedbackMemory, Fifo
from bitta.types import Feedback


def column(*values):
    return torch.tensor([[float(value)] for value in values])


def test_the_oldest_are_forgotten():
    fifo = Fifo(3)
    fifo.add(column(1, 2), torch.tensor([10, 20]))
    fifo.add(column(3, 4), torch.tensor([30, 40]))
    assert fifo.inputs.flatten().tolist() == [2, 3, 4]
    assert fifo.labels.tolist() == [20, 30, 40]


def test_more_than_fits_at_once_keeps_the_newest():
    fifo = Fifo(2)
    fifo.add(column(1, 2, 3), torch.tensor([1, 2, 3]))
    assert fifo.labels.tolist() == [2, 3]


def test_adding_nothing_fixes_the_shape():
    fifo = Fifo(2)
    fifo.add(torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.long))
    assert len(fifo) == 0
    assert fifo.inputs.shape == (0, 3, 8, 8)


def test_verdicts_are_kept_apart():
    memory = FeedbackMemory(correct=4, incorrect=4)
    memory.add(
        Feedback(column(1, 2, 3), torch.tensor([7, 8, 9]), torch.tensor([True, False, True]))
    )
    assert memory.correct.labels.tolist() == [7, 9]
    assert memory.incorrect.labels.tolist() == [8]


def test_state_round_trip():
    memory = FeedbackMemory(correct=2, incorrect=2)
    memory.add(Feedback(column(1), torch.tensor([3]), torch.tensor([False])))
    other = FeedbackMemory(correct=2, incorrect=2)
    other.load_state_dict(memory.state_dict(), device=torch.device("cpu"))
    assert other.incorrect.inputs.tolist() == [[1.0]]
    assert len(other.correct) == 0
