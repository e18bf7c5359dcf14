"""A model on loan: what it was like before, to be given back so."""

import torch
from torch import nn

_LOAN = "_bitta_loan"


class Loan:
    """How a model was before it was borrowed; kept on the model, so that a new session on it can
    take over from one that was never closed.
    """

    def __init__(self, model: nn.Module) -> None:
        give_back(model)
        self._model = model
        self._modes = {module: module.training for module in model.modules()}
        self._gradients = {p: (p.requires_grad, p.grad) for p in model.parameters()}
        self._rearranged: list[nn.Parameter] = []
        model.__dict__[_LOAN] = self

    @property
    def running(self) -> bool:
        """Whether the model is still ours: not given back, not taken over by a later loan."""
        return self._model.__dict__.get(_LOAN) is self

    def lay_out_channels_last(self) -> None:
        """Let filters lie in memory as a GPU's convolutions want them."""
        for parameter in self._model.parameters():
            if parameter.dim() == 4 and parameter.is_contiguous():
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
                self._rearranged.append(parameter)

    def lay_out_as_before(self) -> None:
        """Undo that."""
        for parameter in self._rearranged:
            parameter.data = parameter.data.contiguous()
        self._rearranged.clear()

    def undo(self) -> None:
        """Modes, gradients and layout as they were; weights stay adapted."""
        for module, training in self._modes.items():
            module.training = training
        for parameter, (required, gradient) in self._gradients.items():
            parameter.requires_grad_(required)
            parameter.grad = gradient
        self.lay_out_as_before()


def give_back(model: nn.Module) -> None:
    """End whatever loan there is."""
    loan: Loan | None = model.__dict__.pop(_LOAN, None)
    if loan is not None:
        loan.undo()
