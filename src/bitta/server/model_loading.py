"""Loading of the classifier that a server serves."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bitta.errors import InputError, ModelError, SettingError
from bitta.models import call_model_factory, load_model, weights_path
from bitta.nn import WrappedModel
from bitta.streams import Geometry


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """Model with its class names and input shape."""

    module: nn.Module
    classes: tuple[str, ...]
    input_shape: tuple[int, int, int]
    name: str
    geometry: Geometry | None = None
    """Resizing and cropping of encoded images, if the model's card contains it."""


def load_served_model(
    given: str, *, classes: Path | None = None, input_shape: tuple[int, int, int] | None = None
) -> ServedModel:
    """Load weights with a model card, or call the function "module:function".

    `classes` and `input_shape` override those of the card.
    """
    card_classes: tuple[str, ...] = ()
    card_shape: tuple[int, ...] | None = None
    geometry: Geometry | None = None
    if _is_factory(given):
        module = call_model_factory(given, of="model")
        name = given.partition(":")[2]
    else:
        with weights_path(given) as path:
            module, card = load_model(path)
        card_classes, card_shape = card.classes, card.input_shape
        geometry = Geometry(**card.preprocessing) if card.preprocessing else None
        name = Path(given.partition(":")[2] or given).stem
    names = _read_classes(classes) if classes else card_classes
    shape = input_shape or card_shape
    if shape is None or len(shape) != 3:
        raise SettingError(
            f"the input shape of the model {given!r} is unknown; give --input-shape, such as "
            "3x224x224."
        )
    if not names:
        raise SettingError(
            f"the classes of the model {given!r} are unknown; give --classes FILE with one name "
            "per line."
        )
    _check_forward(module, names, shape)
    return ServedModel(
        module=module,
        classes=names,
        input_shape=(shape[0], shape[1], shape[2]),
        name=name,
        geometry=geometry,
    )


def _is_factory(given: str) -> bool:
    return ":" in given and not given.startswith("embedded:") and not Path(given).exists()


def _read_classes(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the classes file {str(path)!r} cannot be read ({error}).") from None
    names = tuple(line.strip() for line in lines if line.strip())
    repeated = [name for name, n in Counter(names).items() if n > 1]
    if repeated:
        raise InputError(
            f"the classes file {str(path)!r} contains {repeated[0]!r} more than once; give each "
            "class its own name."
        )
    return names


@torch.no_grad()
def _check_forward(module: nn.Module, names: tuple[str, ...], shape: tuple[int, ...]) -> None:
    """Run one small forward pass, to find errors before the server starts."""
    wrapped = WrappedModel(module, eager=True)
    try:
        n = wrapped(wrapped.prepare_inputs(torch.zeros(2, *shape)), statistics="running").shape[-1]
    except ModelError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"the model cannot read images of shape {shape} ({reason}); give --input-shape as "
            "channels, height and width, such as 3x224x224."
        ) from None
    finally:
        wrapped.close()
    if n != len(names):
        raise InputError(
            f"the model has {n} outputs, but {len(names)} class names were given; give one name "
            "per output."
        )
