"""A model on loan: what it was like before, to be given back so."""

import torch
from torch import nn

_LOAN = "_bitta_loan"
_LAYOUTS = torch.contiguous_format, torch.channels_last


class Loan:
    """How a model was before it was borrowed; kept on the model, so that a new session on it can
    take over from one that was never closed.
    """

    def __init__(self, model: nn.Module) -> None:
        give_back(model)
        self._model = model
        self._modes = {module: module.training for module in model.modules()}
        self._gradients = {p: (p.requires_grad, p.grad) for p in model.parameters()}
        self._rearranged: dict[nn.Parameter, torch.memory_format] = {}
        model.__dict__[_LOAN] = self

    @property
    def running(self) -> bool:
        """Whether the model is still ours: not given back, not taken over by a later loan."""
        return self._model.__dict__.get(_LOAN) is self

    def lay_out(self, layout: torch.memory_format) -> None:
        """Let filters lie in memory in one of the two usual ways."""
        for parameter in self._model.parameters():
            if parameter.dim() != 4 or parameter.is_contiguous(memory_format=layout):
                continue
            before = _LAYOUTS[1 - _LAYOUTS.index(layout)]
            if parameter.is_contiguous(memory_format=before):
                parameter.data = parameter.data.contiguous(memory_format=layout)
                self._rearranged.setdefault(parameter, before)

    def _lay_out_as_before(self) -> None:
        for parameter, before in self._rearranged.items():
            parameter.data = parameter.data.contiguous(memory_format=before)
        self._rearranged.clear()

    def undo(self) -> None:
        """Modes, gradients and layout as they were; weights stay adapted."""
        for module, training in self._modes.items():
            module.training = training
        for parameter, (required, gradient) in self._gradients.items():
            parameter.requires_grad_(required)
            parameter.grad = gradient
        self._lay_out_as_before()


def give_back(model: nn.Module) -> None:
    """End whatever loan there is."""
    loan: Loan | None = model.__dict__.pop(_LOAN, None)
    if loan is not None:
        loan.undo()
