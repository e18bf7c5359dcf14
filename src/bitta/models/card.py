"""What weights are: enough to rebuild the model and to know what to expect of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Travels inside the weight file, so that it cannot be lost or mixed up."""

    architecture: str
    arguments: Mapping[str, Any]
    """Constructor arguments beyond the architecture's own: classes, pixel mean and deviation."""
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """Percent, by the name of the set it was measured on."""
    source: str = ""
    """What it was trained on."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    terms: str = ""
