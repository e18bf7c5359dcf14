"""Find dropout sites, the last stage and the last linear layer of any model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeAlias

from torch import Tensor, nn

from bitta.errors import ModelError, unknown_name_error
from bitta.nn.batchnorm import norm_parameters

Sites: TypeAlias = str | Sequence[str] | Callable[[str, nn.Module], bool] | None
"""Module names, a predicate over (name, module), or None for the stages found by structure."""

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Hardswish, nn.Tanh, nn.Sigmoid, nn.Softplus,
)  # fmt: skip
_QUARTERS = 4
_GOOD_PART = 1 / 3


def find_sites(model: nn.Module, sites: Sites = None) -> tuple[str, ...]:
    """Names of the modules after whose output dropout is applied, in the model's order."""
    if sites is None:
        found = _stages(model) or _own_dropouts(model) or _activations(model)
        if not found:
            raise ModelError(
                f"no stages, blocks or activation modules were found in {type(model).__name__}; "
                f'name the dropout sites, such as sites=["{_example(model)}"], or set dropout=0.'
            )
        return found
    named = dict(model.named_modules())
    if callable(sites):
        chosen = tuple(name for name, module in named.items() if name and sites(name, module))
        if not chosen:
            raise ModelError(
                f"the predicate given as sites matches none of the {len(named) - 1} modules of "
                f"{type(model).__name__}; see model.named_modules()."
            )
        return chosen
    sites = [sites] if isinstance(sites, str) else sites
    for name in sites:
        if name not in named or not name:
            raise unknown_name_error("dropout site", name, filter(None, named))
    return tuple(sites)


def _stages(model: nn.Module) -> tuple[str, ...]:
    """The ends of the stages, or of the quarters of a single chain of blocks.

    A block is a module that is repeated side by side. Of several kinds, the outermost that holds a
    good part of the parameters is meant: neither the layers inside blocks nor a repeated stem.
    """
    kinds: dict[type[nn.Module], list[tuple[str, list[str]]]] = {}
    size: dict[type[nn.Module], int] = {}
    depth: dict[type[nn.Module], int] = {}
    for name, parent in model.named_modules():
        for kind, blocks in _blocks(parent):
            kinds.setdefault(kind, []).append((name, [_join(name, child) for child, _ in blocks]))
            size[kind] = size.get(kind, 0) + sum(_n_parameters(block) for _, block in blocks)
            depth[kind] = max(depth.get(kind, 0), name.count(".") + bool(name))
    if not kinds:
        return ()
    enough = min(_GOOD_PART * _n_parameters(model), max(size.values()))
    large = [kind for kind in kinds if size[kind] >= enough]
    chains = kinds[min(large, key=lambda kind: depth[kind])]
    if len(chains) == 1:
        return _quarters(chains[0][1])
    return _quarters([_end(model, name, blocks) for name, blocks in chains])


def _own_dropouts(model: nn.Module) -> tuple[str, ...]:
    """Where the model's author put dropout, in a model without stages."""
    return tuple(name for name, module in model.named_modules() if isinstance(module, _DROPOUTS))


def _activations(model: nn.Module) -> tuple[str, ...]:
    """The quarters of a plain chain, by its activations."""
    names = [name for name, module in model.named_modules() if isinstance(module, _ACTIVATIONS)]
    return _quarters(names)


def _blocks(parent: nn.Module) -> Iterator[tuple[type[nn.Module], list[tuple[str, nn.Module]]]]:
    """Children of one compound kind: all of a container's, or at least two of another module's."""
    children = [(name, child) for name, child in parent.named_children()]
    compound = [(name, child) for name, child in children if _is_compound(child)]
    for kind in dict.fromkeys(type(child) for _, child in compound):
        same = [(name, child) for name, child in compound if type(child) is kind]
        if len(same) > 1 or (isinstance(parent, _CONTAINERS) and len(same) == len(children)):
            yield kind, same


def _is_compound(module: nn.Module) -> bool:
    plain_container = type(module) in _CONTAINERS
    return (
        not plain_container and any(True for _ in module.children()) and _n_parameters(module) > 0
    )


def _end(model: nn.Module, name: str, blocks: list[str]) -> str:
    """A container that is itself called, else its last block."""
    uncalled = (nn.ModuleList, nn.ModuleDict)
    whole = isinstance(model.get_submodule(name), _CONTAINERS)
    return name if whole and type(model.get_submodule(name)) not in uncalled else blocks[-1]


def _quarters(names: list[str]) -> tuple[str, ...]:
    """The last name of each quarter; all names where there are four or fewer."""
    if len(names) <= _QUARTERS:
        return tuple(names)
    edges = [round(len(names) * quarter / _QUARTERS) for quarter in range(_QUARTERS + 1)]
    return tuple(names[stop - 1] for _, stop in pairwise(edges))


def _n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _join(parent: str, child: str) -> str:
    return f"{parent}.{child}" if parent else child


def _example(model: nn.Module) -> str:
    """A name to show in an error: the module in the middle of the model."""
    names = [name for name, _ in model.named_modules() if name]
    return names[(len(names) - 1) // 2] if names else "layer"


def norm_parameters_below_top(model: nn.Module) -> list[nn.Parameter]:
    """Scale and shift of the normalisation layers before the last stage; of all without stages.

    Deep layers are sensitive: SAR, SoTTA and DeYO leave them as they are. What is registered after
    the last stage, such as a transformer's final normalisation, belongs to the top.
    """
    every, stages = norm_parameters(model), _stages_of(model)
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


def _stages_of(model: nn.Module) -> list[str]:
    """The ends of stages or of quarters of blocks; single activations are neither."""
    try:
        sites = find_sites(model)
    except ModelError:
        return []
    return [name for name in sites if any(True for _ in model.get_submodule(name).children())]


def find_head(model: nn.Module, forward: Callable[[], Tensor]) -> str:
    """Name of the last linear layer that runs in a forward with a row for each of its rows."""
    ran: list[tuple[str, int]] = []

    def hook_for(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            ran.append((name, len(output) if output.dim() == 2 else 0))

        return hook

    handles = [
        module.register_forward_hook(hook_for(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        n_rows = len(forward())
    finally:
        for handle in handles:
            handle.remove()
    heads = [name for name, rows in ran if rows == n_rows]
    if not heads:
        raise ModelError(
            f"{type(model).__name__} ends in no linear layer, so it has no features that this "
            "method could compare; use another method, or end the model in nn.Linear."
        )
    return heads[-1]


@contextmanager
def record_inputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what goes into a module in the forwards inside."""
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        handle.remove()
