"""Tests of the FIFO, balanced and feedback memories."""

import pytest
import torch

from bitta.memory import BalancedMemory, FeedbackMemory, FifoMemory
from bitta.types import Feedback, JudgedSamples


def column(*values):
    return torch.tensor([[float(value)] for value in values])


def test_oldest_samples_are_dropped():
    fifo = FifoMemory(3)
    fifo.add(JudgedSamples(column(1, 2), torch.tensor([10, 20])))
    fifo.add(JudgedSamples(column(3, 4), torch.tensor([30, 40])))
    assert fifo.inputs.flatten().tolist() == [2, 3, 4]
    assert fifo.labels.tolist() == [20, 30, 40]


def test_adding_more_than_the_capacity_keeps_the_newest():
    fifo = FifoMemory(2)
    fifo.add(JudgedSamples(column(1, 2, 3), torch.tensor([1, 2, 3])))
    assert fifo.labels.tolist() == [2, 3]


def test_ring_is_read_oldest_first_after_many_rounds():
    fifo, seen = FifoMemory(5), []
    for number in range(23):
        new = [10 * number + index for index in range(number % 4)]
        fifo.add(JudgedSamples(torch.tensor(new).float().unsqueeze(1), torch.tensor(new).long()))
        seen += new
        assert fifo.labels.tolist() == seen[-5:]
        assert fifo.inputs.flatten().tolist() == seen[-5:]


def test_adding_nothing_fixes_the_shape():
    fifo = FifoMemory(2)
    fifo.add(JudgedSamples(torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.long)))
    assert len(fifo) == 0
    assert fifo.inputs.shape == (0, 3, 8, 8)


@pytest.mark.parametrize("n_added", [3, 5])
def test_removed_ids_leave_the_fifo_memory_and_the_order_stays(n_added):
    fifo = FifoMemory(4)
    for value in range(n_added):
        fifo.add(JudgedSamples(column(value), torch.tensor([10 * value]), [value]))
    fifo.remove([n_added - 2, 99])
    kept = [value for value in range(max(0, n_added - 4), n_added) if value != n_added - 2]
    assert list(fifo.sample_ids) == kept
    assert fifo.labels.tolist() == [10 * value for value in kept]
    assert fifo.inputs.flatten().tolist() == kept
    fifo.add(JudgedSamples(column(7), torch.tensor([70]), [7]))
    assert fifo.labels.tolist() == [10 * value for value in [*kept, 7]]


def test_removed_ids_leave_both_memories_of_feedback():
    memory = FeedbackMemory(correct=2, incorrect=2)
    memory.add(
        Feedback(
            JudgedSamples(column(1, 2), torch.tensor([1, 2]), [1, 2]),
            JudgedSamples(column(3), torch.tensor([3]), [3]),
        )
    )
    memory.remove([1, 3])
    assert (list(memory.correct.sample_ids), len(memory.incorrect)) == ([2], 0)


def test_balanced_memory_limits_a_run_of_one_label_to_its_share():
    """Labels 1 and 2 start with three samples each and lose one each to label 3."""
    balanced = BalancedMemory(6)
    balanced.add(JudgedSamples(column(10, 20, 11, 21, 12, 22), torch.tensor([1, 2, 1, 2, 1, 2])))
    balanced.add(JudgedSamples(column(30, 31, 32, 33, 34), torch.tensor([3, 3, 3, 3, 3])))
    assert balanced.inputs.flatten().tolist() == [11, 21, 12, 22, 33, 34]
    assert balanced.labels.tolist() == [1, 2, 1, 2, 3, 3]


def test_balanced_memory_gives_the_same_result_in_pieces():
    labels = torch.tensor([4, 4, 1, 4, 2, 2, 2, 1, 4, 4, 0, 2, 1])
    whole, pieces = BalancedMemory(5), BalancedMemory(5)
    whole.add(JudgedSamples(torch.arange(13.0).unsqueeze(1), labels))
    for row in range(13):
        pieces.add(JudgedSamples(torch.tensor([[float(row)]]), labels[row : row + 1]))
        other = BalancedMemory(5)
        other.load_state_dict(pieces.state_dict(), device=torch.device("cpu"))
        pieces = other
    assert torch.equal(whole.inputs, pieces.inputs)
    assert torch.equal(whole.labels, pieces.labels)
    assert torch.equal(whole.labels, labels[whole.inputs.flatten().long()])


def test_cleared_balanced_memory_keeps_its_shape():
    balanced = BalancedMemory(2)
    balanced.add(JudgedSamples(torch.zeros(3, 3, 8, 8), torch.tensor([1, 1, 2])))
    balanced.clear()
    assert balanced.inputs.shape == (0, 3, 8, 8)
    balanced.add(JudgedSamples(torch.ones(1, 3, 8, 8), torch.tensor([1])))
    assert len(balanced) == 1


def test_correct_and_incorrect_samples_are_stored_separately():
    memory = FeedbackMemory(correct=4, incorrect=4)
    memory.add(
        Feedback(
            JudgedSamples(column(1, 3), torch.tensor([7, 9])),
            JudgedSamples(column(2), torch.tensor([8])),
        )
    )
    assert memory.correct.labels.tolist() == [7, 9]
    assert memory.incorrect.labels.tolist() == [8]


def test_saved_state_restores_both_memories():
    memory = FeedbackMemory(correct=2, incorrect=2)
    none = JudgedSamples(column(1)[:0], torch.tensor([], dtype=torch.long))
    memory.add(Feedback(none, JudgedSamples(column(1), torch.tensor([3]))))
    other = FeedbackMemory(correct=2, incorrect=2)
    other.load_state_dict(memory.state_dict(), device=torch.device("cpu"))
    assert other.incorrect.inputs.tolist() == [[1.0]]
    assert len(other.correct) == 0
