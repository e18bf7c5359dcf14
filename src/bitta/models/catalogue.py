"""List of weights files: those in the package and those in a folder."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from bitta.errors import InputError, unknown_name_error
from bitta.models.tensor_files import find_weights_files, list_parts, unsplit_path
from bitta.models.weights import ModelCard, read_card

EMBEDDED = "embedded:"
_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class WeightsEntry:
    """Weights file in a list. A file that cannot be used has a problem instead of a card."""

    name: str
    """Value for model.weights in an experiment."""
    n_bytes: int
    n_files: int
    """Number of files. It is 0 if only the training log exists."""
    card: ModelCard | None
    problem: str = ""


def embedded_names() -> tuple[str, ...]:
    """Return the names of the weights in the package, without the prefix."""
    assets = (files("bitta") / "assets").iterdir()
    return tuple(sorted(a.name.removesuffix(_SUFFIX) for a in assets if a.name.endswith(_SUFFIX)))


@contextmanager
def weights_path(name: str) -> Iterator[Path]:
    """Yield the path of weights that are named by embedded:NAME or by a path."""
    if not name.startswith(EMBEDDED):
        yield Path(name)
        return
    short = name.removeprefix(EMBEDDED)
    if short not in embedded_names():
        raise unknown_name_error("embedded weights", short, embedded_names())
    with as_file(files("bitta") / "assets" / f"{short}{_SUFFIX}") as path:
        yield path


def list_weights(folder: str | Path) -> list[WeightsEntry]:
    """Return the embedded weights, then those in a folder and its subfolders, sorted by name.

    Weights of which only the training log exists are listed with 0 files.
    """
    entries = []
    for name in embedded_names():
        with weights_path(EMBEDDED + name) as path:
            entries.append(describe_weights(path, name=EMBEDDED + name))
    wholes = {unsplit_path(path) for path in Path(folder).rglob(f"[!.]*{_SUFFIX}")}
    logs = {path.with_suffix(_SUFFIX): path for path in Path(folder).rglob("[!.]*.json")}
    for whole in sorted(wholes | logs.keys()):
        if whole in wholes:
            entries.append(describe_weights(whole, name=str(whole)))
        elif (card := _read_card_from_log(logs[whole])) is not None:
            entries.append(WeightsEntry(str(whole), 0, 0, card))
    return entries


def _read_card_from_log(path: Path) -> ModelCard | None:
    """Return the model card in a training log, or None for another file."""
    try:
        log = json.loads(path.read_text())
        return ModelCard.from_text(json.dumps(log["card"]), path=str(path))
    except (InputError, OSError, ValueError, TypeError, LookupError):
        return None


def describe_weights(path: Path, *, name: str) -> WeightsEntry:
    """Describe a weights file or a set of parts. A problem is returned, not raised."""
    whole = unsplit_path(path)
    present = [whole] if whole.exists() else list_parts(whole)
    n_bytes = sum(part.stat().st_size for part in present)
    try:
        find_weights_files(path)
        return WeightsEntry(name, n_bytes, len(present), read_card(path))
    except InputError as error:
        return WeightsEntry(name, n_bytes, len(present), None, problem=str(error))
