"""What weights are: enough to rebuild the model and to know what to expect of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from bitta.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Travels inside the weight file, so that it cannot be lost or mixed up."""

    architecture: str
    arguments: Mapping[str, Any]
    """Constructor arguments beyond the architecture's own: classes, pixel mean and deviation."""
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    preprocessing: Mapping[str, int] = field(default_factory=dict)
    """How a picture gets to `input_shape`: {"resize": 256, "crop": 224} is shorter side, then
    centre. Empty where images come in their own size."""
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """Percent, by the name of the set it was measured on."""
    source: str = ""
    """What it was trained on."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    terms: str = ""

    def as_text(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str, *, path: str) -> Self:
        """Read what `as_text` wrote; `path` is for the error."""
        try:
            fields = json.loads(text)
            fields |= {name: tuple(fields[name]) for name in ("classes", "input_shape")}
            return cls(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"the card in {path!r} cannot be read ({type(error).__name__}: {error}); "
                "was it written by a newer version?"
            ) from None
