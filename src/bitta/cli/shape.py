"""What a model reads, as it is written on the command line."""

from contextlib import suppress

from bitta.errors import SettingError


def input_shape(text: str | None) -> tuple[int, int, int] | None:
    """Channels, height and width of CxHxW."""
    if text is None:
        return None
    with suppress(ValueError):
        channels, height, width = (int(part) for part in text.lower().split("x"))
        if min(channels, height, width) > 0:
            return channels, height, width
    raise SettingError(f"input-shape is {text!r}; channels x height x width, as 3x224x224.")
