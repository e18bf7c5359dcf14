"""Which weights there are: those in the package, and those in a folder."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from bitta.errors import InputError, unknown_name_error
from bitta.models.tensor_files import locate, parts_of, plain_path
from bitta.models.weights import ModelCard, read_card

EMBEDDED = "embedded:"
_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Entry:
    """Weights, or a file that cannot be used and why."""

    name: str
    """What an experiment writes as model.weights."""
    n_bytes: int
    n_files: int
    """0 where only the log of its training is there."""
    card: ModelCard | None
    problem: str = ""


def embedded_names() -> tuple[str, ...]:
    """Weights that are part of the package, without the prefix."""
    assets = (files("bitta") / "assets").iterdir()
    return tuple(sorted(a.name.removesuffix(_SUFFIX) for a in assets if a.name.endswith(_SUFFIX)))


@contextmanager
def weights_at(name: str) -> Iterator[Path]:
    """The path of weights by what an experiment calls them: embedded:NAME, or a path."""
    if not name.startswith(EMBEDDED):
        yield Path(name)
        return
    short = name.removeprefix(EMBEDDED)
    if short not in embedded_names():
        raise unknown_name_error("embedded weights", short, embedded_names())
    with as_file(files("bitta") / "assets" / f"{short}{_SUFFIX}") as path:
        yield path


def catalogue(folder: str | Path) -> list[Entry]:
    """Embedded weights, then those in a folder and below, in the order of their names.

    A model whose weights are too large to keep is known by the log of its training.
    """
    entries = []
    for name in embedded_names():
        with weights_at(EMBEDDED + name) as path:
            entries.append(entry_of(path, name=EMBEDDED + name))
    wholes = {plain_path(path) for path in Path(folder).rglob(f"[!.]*{_SUFFIX}")}
    logs = {path.with_suffix(_SUFFIX): path for path in Path(folder).rglob("[!.]*.json")}
    for whole in sorted(wholes | logs.keys()):
        if whole in wholes:
            entries.append(entry_of(whole, name=str(whole)))
        elif (card := _logged(logs[whole])) is not None:
            entries.append(Entry(str(whole), 0, 0, card))
    return entries


def _logged(path: Path) -> ModelCard | None:
    """The card in the log of a training whose weights are elsewhere."""
    try:
        log = json.loads(path.read_text())
        return ModelCard.from_text(json.dumps(log["card"]), path=str(path))
    except (InputError, OSError, ValueError, TypeError, LookupError):
        return None  # some other file


def entry_of(path: Path, *, name: str) -> Entry:
    """One file or one set of parts; what is wrong with it is told, not raised."""
    whole = plain_path(path)
    present = [whole] if whole.exists() else parts_of(whole)
    n_bytes = sum(part.stat().st_size for part in present)
    try:
        locate(path)
        return Entry(name, n_bytes, len(present), read_card(path))
    except InputError as error:
        return Entry(name, n_bytes, len(present), None, problem=str(error))
