"""Loss functions of logits or probabilities."""

import torch
import torch.nn.functional as F
from torch import Tensor


def entropy(logits: Tensor, *, eps: float = 0.0) -> Tensor:
    """Return the entropy of the softmax of each row, (rows,).

    `eps` is added inside the logarithm, as some published code does.
    """
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    return -(probs * (torch.log(probs + eps) if eps else log_probs)).sum(-1)


def policy_loss(
    probs: Tensor, labels: Tensor, *, second_softmax: bool, where: Tensor | None = None
) -> Tensor:
    """Return the mean of -log π(label), the cross-entropy of a mean of softmaxes.

    `where` selects the rows that count. Without any such row the loss is 0.

    With the second softmax of the published code the value varies by at most one nat. This bounds
    the negated loss on incorrect samples, which otherwise destroys the model.
    """
    tiny = torch.finfo(probs.dtype).tiny
    log_probs = probs.log_softmax(-1) if second_softmax else probs.clamp_min(tiny).log()
    if where is None:
        return F.nll_loss(log_probs, labels)
    # Sum over all rows: indexing by a mask would make the host wait for the device.
    losses = F.nll_loss(log_probs, labels, reduction="none")
    return torch.where(where, losses, 0).sum() / where.sum().clamp_min(1)


def complementary_loss(logits: Tensor, labels: Tensor, *, eps: float = 0.0) -> Tensor:
    """Return the mean of -log(1 - p(label)), a loss for labels that are wrong (Kim et al., 2019).

    `eps` is added inside the logarithm, as some published code does. Then the value is bounded, and
    the gradient vanishes if p(label) is close to 1.
    """
    others = logits.scatter(-1, labels.unsqueeze(-1), -torch.inf)
    losses = logits.logsumexp(-1) - others.logsumexp(-1)
    return (-torch.log(torch.exp(-losses) + eps) if eps else losses).mean()
