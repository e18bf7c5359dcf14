"""Any user's model, by the function that makes it."""

import importlib
import inspect
import os
import sys
from contextlib import suppress

from torch import nn

from bitta.errors import SettingError


def from_factory(text: str, *, of: str) -> nn.Module:
    """What "module:function" returns; `of` is what the setting is called."""
    module, _, function = text.partition(":")
    if not module or not function or module.startswith("."):
        raise SettingError(f'{of} is {text!r}; "module:function" is needed.')
    try:
        # The console script, unlike `python -m`, does not look in the working directory.
        sys.path.insert(0, os.getcwd())
        factory = getattr(importlib.import_module(module), function)
        with suppress(ValueError):  # builtins have no signature
            inspect.signature(factory).bind()
    except (ImportError, AttributeError, SyntaxError) as error:
        raise SettingError(f"{of} {text!r} cannot be loaded ({error}).") from None
    except TypeError as error:
        raise SettingError(f"{of} {text!r} cannot be called ({error}).") from None
    finally:
        sys.path.remove(os.getcwd())
    model = factory()
    if not isinstance(model, nn.Module):
        raise SettingError(f"{of} {text!r} returned a {type(model).__name__}.")
    return model
