"""Which part of a model is its top: the last stage, or the last quarter of its blocks."""

from torch import nn

from bitta.errors import ModelError
from bitta.nn.norm import scale_and_shift
from bitta.nn.sites import find_sites


def below_the_top(model: nn.Module) -> list[nn.Parameter]:
    """Scale and shift of the normalisation layers before the last stage; of all without stages.

    Deep layers are sensitive: SAR, SoTTA and DeYO leave them as they are. What is registered after
    the last stage, such as a transformer's final normalisation, belongs to the top.
    """
    every, stages = scale_and_shift(model), _stages(model)
    if len(stages) < 2:
        return every
    below = stages[-2]
    modules = list(model.named_modules())
    start = 1 + max(
        place
        for place, (name, _) in enumerate(modules)
        if name == below or name.startswith(f"{below}.")
    )
    top = {id(p) for _, module in modules[start:] for p in module.parameters(recurse=False)}
    return [parameter for parameter in every if id(parameter) not in top] or every


def _stages(model: nn.Module) -> list[str]:
    """The ends of stages or of quarters of blocks; single activations are neither."""
    try:
        sites = find_sites(model)
    except ModelError:
        return []
    return [name for name in sites if any(True for _ in model.get_submodule(name).children())]
