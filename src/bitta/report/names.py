"""What rows are called in print."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from bitta.methods import METHODS

Answers = Literal["none", "verdict", "full"]
"""The kind of answers that a method learns from."""
TITLES: Mapping[str, str] = {
    "source": "Source", "bn_stats": "BN-Stats", "tent": "TENT", "eta": "ETA", "eata": "EATA",
    "sar": "SAR", "cotta": "CoTTA", "rotta": "RoTTA", "sotta": "SoTTA", "deyo": "DeYO",
    "tast": "TAST-BN", "owttt": "OWTTT", "simatta": "SimATTA", "bitta": "BiTTA",
}  # fmt: skip
USUAL_FEEDBACK: Mapping[str, Any] = {
    "every": 1, "total": -1, "equal": "count", "flip": 0.0, "error": 0.0, "annotators": "",
    "delay": 0, "answer_every": 1,
}  # fmt: skip
"""Settings of [feedback] unless someone says otherwise."""
_MOST_SETTINGS = 2
"""How many may be told in a title; with more, the experiment's name says it better."""


def title_of(method: str, answers: Answers, apart: Sequence[str] = ()) -> str:
    """As the paper prints it: a star for verdicts, which BiTTA has anyway.

    >>> title_of("tent", "verdict", ["reference"]), title_of("simatta", "full")
    ('TENT* (reference)', 'SimATTA (full labels)')
    """
    star = "*" if answers == "verdict" and method != "bitta" else ""
    told = ["full labels"] if answers == "full" else []
    if answers == "none" and method in ("simatta", "bitta"):
        told = ["no answers"]
    brackets = ", ".join((*told, *apart))
    return TITLES.get(method, method) + star + (f" ({brackets})" if brackets else "")


def preset_of(method: Mapping[str, Any]) -> str:
    """The preset of which all settings are there, the largest if several are; else empty."""
    kind = METHODS.get(method["name"])
    if kind is None:
        return ""
    usual, found, most = defaults_of(method["name"]), "", 0
    for name, values in kind.Config.presets.items():
        own = {key: value for key, value in values.items() if value != usual.get(key)}
        if len(own) > most and all(plain(method.get(key)) == plain(own[key]) for key in own):
            found, most = name, len(own)
    return found


def defaults_of(method: str) -> dict[str, Any]:
    """Settings of a method as they are unless someone says otherwise."""
    kind = METHODS.get(method)
    return {} if kind is None else vars(kind.configure({}, None, name=method))


def told_settings(settings: Mapping[str, Any], method: str, name: str) -> list[str]:
    """What sets a row apart from its like: "lr 0.001"; its name where that would be long."""
    usual = {f"method.{key}": plain(value) for key, value in defaults_of(method).items()}
    usual |= {f"feedback.{key}": value for key, value in USUAL_FEEDBACK.items()}
    if method in METHODS:
        usual["feedback.n_queries"] = METHODS[method].n_queries
    told = [
        f"{key.rpartition('.')[2]} {shown(value)}"
        for key, value in settings.items()
        if key not in usual or usual[key] != plain(value)
    ]
    return told if len(told) <= _MOST_SETTINGS else [name]


def shown(value: Any) -> str:
    """A setting's value, short.

    >>> shown(1e-4), shown(True), shown(None), shown("mixed")
    ('0.0001', 'yes', '–', 'mixed')
    """
    match value:
        case None | "":
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def between(numbers: Sequence[int]) -> str:
    """The least and the most of some counts.

    >>> between([3, 1, 2]), between([3, 3])
    ('1 to 3', '3')
    """
    least, most = min(numbers), max(numbers)
    return f"{least} to {most}" if least < most else str(most)


def listed_seeds(seeds: Collection[int]) -> str:
    """Which they are.

    >>> listed_seeds([0]), listed_seeds([0, 2])
    ('seed 0', 'seeds 0, 2')
    """
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def plain(value: Any) -> Any:
    """As JSON gives it back."""
    return [plain(item) for item in value] if isinstance(value, tuple) else value
