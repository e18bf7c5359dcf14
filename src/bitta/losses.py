"""Objectives as pure functions of logits or probabilities."""

import torch
import torch.nn.functional as F
from torch import Tensor


def entropy(logits: Tensor, *, eps: float = 0.0) -> Tensor:
    """Entropy of each row's softmax; `eps` inside the logarithm where a published code has it."""
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    return -(probs * (torch.log(probs + eps) if eps else log_probs)).sum(-1)


def policy_loss(
    probs: Tensor, labels: Tensor, *, second_softmax: bool, where: Tensor | None = None
) -> Tensor:
    """Mean of -log π(label): cross-entropy on probabilities that are already a mean of softmaxes.

    `where` says which rows count; if none does, the loss is 0.

    With the second softmax, as the published code has it, the value stays within one nat, which is
    what keeps the negated loss of incorrect samples from tearing the model apart.
    """
    tiny = torch.finfo(probs.dtype).tiny
    log_probs = probs.log_softmax(-1) if second_softmax else probs.clamp_min(tiny).log()
    if where is None:
        return F.nll_loss(log_probs, labels)
    # A sum over all rows: picking some would make the host wait for the device to count them.
    each = F.nll_loss(log_probs, labels, reduction="none")
    return torch.where(where, each, 0).sum() / where.sum().clamp_min(1)


def complementary_loss(logits: Tensor, labels: Tensor, *, eps: float = 0.0) -> Tensor:
    """Mean of -log(1 - p(label)): any class but this one (Kim et al., 2019).

    With `eps` inside the logarithm, where a published code has it, the value is bounded and the
    gradient vanishes where the model is surest of the label.
    """
    others = logits.scatter(-1, labels.unsqueeze(-1), -torch.inf)
    each = logits.logsumexp(-1) - others.logsumexp(-1)
    return (-torch.log(torch.exp(-each) + eps) if eps else each).mean()
