"""Find dropout sites, the last stage and the last linear layer of any model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeAlias

from torch import Tensor, nn

from bitta.errors import ModelError, unknown_name_error
from bitta.nn.batchnorm import norm_parameters

Sites: TypeAlias = str | Sequence[str] | Callable[[str, nn.Module], bool] | None
"""Names of modules, a function of (name, module), or None to find stages by structure."""

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish,
    nn.Hardswish, nn.Tanh, nn.Sigmoid, nn.Softplus,
)  # fmt: skip
_N_QUARTERS = 4
_MIN_PARAMETER_SHARE = 1 / 3


def find_sites(model: nn.Module, sites: Sites = None) -> tuple[str, ...]:
    """Return the names of the modules after which dropout is applied, in the model's order."""
    if sites is None:
        found = _find_stages(model) or _find_dropouts(model) or _find_activations(model)
        if not found:
            raise ModelError(
                f"no stages, blocks or activation modules were found in {type(model).__name__}; "
                f'name the dropout sites, such as sites=["{_example_name(model)}"], or set '
                "dropout=0."
            )
        return found
    modules = dict(model.named_modules())
    if callable(sites):
        chosen = tuple(name for name, module in modules.items() if name and sites(name, module))
        if not chosen:
            raise ModelError(
                f"the function given as sites matches none of the {len(modules) - 1} modules of "
                f"{type(model).__name__}; see model.named_modules()."
            )
        return chosen
    sites = [sites] if isinstance(sites, str) else sites
    for name in sites:
        if name not in modules or not name:
            raise unknown_name_error("dropout site", name, filter(None, modules))
    return tuple(sites)


def _find_stages(model: nn.Module) -> tuple[str, ...]:
    """Return the last module of each stage, or of each quarter of a single chain of blocks.

    Blocks are sibling modules of the same type. If several types are repeated, the outermost one
    with a large share of the parameters is used: this excludes layers inside blocks and a repeated
    stem.
    """
    chains: dict[type[nn.Module], list[tuple[str, list[str]]]] = {}
    size: dict[type[nn.Module], int] = {}
    depth: dict[type[nn.Module], int] = {}
    for name, parent in model.named_modules():
        for kind, blocks in _find_blocks(parent):
            names = [_join(name, child) for child, _ in blocks]
            chains.setdefault(kind, []).append((name, names))
            size[kind] = size.get(kind, 0) + sum(_n_parameters(block) for _, block in blocks)
            depth[kind] = max(depth.get(kind, 0), name.count(".") + bool(name))
    if not chains:
        return ()
    min_size = min(_MIN_PARAMETER_SHARE * _n_parameters(model), max(size.values()))
    large = [kind for kind in chains if size[kind] >= min_size]
    stages = chains[min(large, key=lambda kind: depth[kind])]
    if len(stages) == 1:
        return _last_of_quarters(stages[0][1])
    return _last_of_quarters([_stage_end(model, name, blocks) for name, blocks in stages])


def _find_dropouts(model: nn.Module) -> tuple[str, ...]:
    """Return the model's own dropout modules, for a model without stages."""
    return tuple(name for name, module in model.named_modules() if isinstance(module, _DROPOUTS))


def _find_activations(model: nn.Module) -> tuple[str, ...]:
    """Return the last activation of each quarter of the model, for a plain chain of layers."""
    names = [name for name, module in model.named_modules() if isinstance(module, _ACTIVATIONS)]
    return _last_of_quarters(names)


def _find_blocks(
    parent: nn.Module,
) -> Iterator[tuple[type[nn.Module], list[tuple[str, nn.Module]]]]:
    """Yield children of the same type that have children themselves.

    In a container, all children must have this type. In any other module, at least two must.
    """
    children = [(name, child) for name, child in parent.named_children()]
    compound = [(name, child) for name, child in children if _is_compound(child)]
    for kind in dict.fromkeys(type(child) for _, child in compound):
        same = [(name, child) for name, child in compound if type(child) is kind]
        if len(same) > 1 or (isinstance(parent, _CONTAINERS) and len(same) == len(children)):
            yield kind, same


def _is_compound(module: nn.Module) -> bool:
    is_container = type(module) in _CONTAINERS
    has_children = any(True for _ in module.children())
    return not is_container and has_children and _n_parameters(module) > 0


def _stage_end(model: nn.Module, name: str, blocks: list[str]) -> str:
    """Return the container if the model calls it, else its last block."""
    container = model.get_submodule(name)
    is_called = isinstance(container, _CONTAINERS) and type(container) not in (
        nn.ModuleList,
        nn.ModuleDict,
    )
    return name if is_called else blocks[-1]


def _last_of_quarters(names: list[str]) -> tuple[str, ...]:
    """Return the last name of each quarter, or all names if there are four or fewer."""
    if len(names) <= _N_QUARTERS:
        return tuple(names)
    edges = [round(len(names) * quarter / _N_QUARTERS) for quarter in range(_N_QUARTERS + 1)]
    return tuple(names[stop - 1] for _, stop in pairwise(edges))


def _n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _join(parent: str, child: str) -> str:
    return f"{parent}.{child}" if parent else child


def _example_name(model: nn.Module) -> str:
    """Return the name of the module in the middle of the model, for an error message."""
    names = [name for name, _ in model.named_modules() if name]
    return names[(len(names) - 1) // 2] if names else "layer"


def norm_parameters_below_top(model: nn.Module) -> list[nn.Parameter]:
    """Return scale and shift of the normalisation layers before the last stage.

    SAR, SoTTA and DeYO do not train the top, because deep layers are sensitive. Modules after the
    last stage, such as the final normalisation of a transformer, belong to the top. In a model
    without stages all normalisation layers are returned.
    """
    parameters, stages = norm_parameters(model), _stages_with_children(model)
    if len(stages) < 2:
        return parameters
    last_below = stages[-2]
    modules = list(model.named_modules())
    start = 1 + max(
        place
        for place, (name, _) in enumerate(modules)
        if name == last_below or name.startswith(f"{last_below}.")
    )
    top = {id(p) for _, module in modules[start:] for p in module.parameters(recurse=False)}
    return [parameter for parameter in parameters if id(parameter) not in top] or parameters


def _stages_with_children(model: nn.Module) -> list[str]:
    """Return the names found by `find_sites`, without modules such as single activations."""
    try:
        sites = find_sites(model)
    except ModelError:
        return []
    return [name for name in sites if any(True for _ in model.get_submodule(name).children())]


def find_head(model: nn.Module, forward: Callable[[], Tensor]) -> str:
    """Return the name of the last linear layer that returns one row per sample."""
    n_rows_by_call: list[tuple[str, int]] = []

    def hook_for(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            n_rows_by_call.append((name, len(output) if output.dim() == 2 else 0))

        return hook

    handles = [
        module.register_forward_hook(hook_for(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        n_samples = len(forward())
    finally:
        for handle in handles:
            handle.remove()
    heads = [name for name, n_rows in n_rows_by_call if n_rows == n_samples]
    if not heads:
        raise ModelError(
            f"{type(model).__name__} does not end in a linear layer, so it has no features that "
            "this method could compare; use another method, or end the model in nn.Linear."
        )
    return heads[-1]


@contextmanager
def record_inputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """Record the inputs of a module in the forward passes inside the block."""
    recorded: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _module, inputs: recorded.append(inputs[0]))
    try:
        yield recorded
    finally:
        handle.remove()
