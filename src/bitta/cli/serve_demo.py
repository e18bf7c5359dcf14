"""What `bitta serve --demo` adds: settings of its own, and a camera that sends pictures."""

import argparse
import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitta.errors import BittaError, SettingError

if TYPE_CHECKING:
    from bitta.server.camera import Camera, Picture
    from bitta.server.host import Host
    from bitta.server.settings import ServeSettings

DEMOS: Mapping[str, Mapping[str, Any]] = {
    "digits": {
        "model": "embedded:digits-resnet8",
        "classes": str(files("bitta") / "assets" / "demo-digits-classes.txt"),
        "settings": {"epochs": 1, "lr": 6e-3, "beta": 0.0, "dropout": 0.1},
        # While a model of two classes learns what they mean now, it serves one of them most of the
        # time, and is better than its source all the same; the last audits soon tell of a change.
        "guard": {"entropy_share": 0.2, "audit_window": 30},
        "data_dir": "bitta-serve-demo",
        "log_level": "warning",
    },
    "corruptions": {
        "model": "embedded:cifar10-resnet8",
        # Memories of 64 hold answers about weather that is long over, which costs accuracy in the
        # fog; these hold about five windows.
        "settings": {
            "epochs": 1,
            "lr": 3e-4,
            "dropout": 0.1,
            "bn_momentum": 0.7,
            "correct_memory": 8,
            "incorrect_memory": 8,
        },
        "guard": {"audit_window": 30},
        "data_dir": "bitta-serve-demo-corruptions",
        "log_level": "warning",
    },
}
"""By the camera's scene. Settings of the method are those of the demos of the same names, but for
lr and dropout of the digits (there 1e-2 and .3), since the model also has to stay good while
colours are faithful, and for the memories of the corruptions (there 64). They were chosen on seeds
10 to 14, the memories on 10 and 11."""
_STORIES = {
    "digits": "digits whose colour tells the class at first, and later the opposite",
    "corruptions": "pictures in clear weather at first, then in bad weather of several kinds",
}
TRUTH = "truth.jsonl"
RATE = 20.0


def configure_demo(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument(
        "--demo", nargs="?", choices=list(DEMOS), const="digits", metavar="|".join(DEMOS),
        help="a small model and a camera whose pictures change (default: digits)",
    )  # fmt: skip
    parser.add_argument(
        "--rate", type=float, metavar="N",
        help=f"pictures a second of the demo's camera; 0 for none (default: {RATE:g})",
    )  # fmt: skip


def rate_of(arguments: argparse.Namespace) -> float:
    """Pictures a second."""
    given: float | None = arguments.rate
    if given is None:
        return RATE if arguments.demo else 0.0
    if not arguments.demo:
        raise SettingError(f"--rate {given:g} is of the demo's camera; it needs --demo.")
    if not 0 <= given <= 1000:
        raise SettingError(f"rate is {given:g}; allowed: 0 to 1000 pictures a second.")
    return given


def demo_defaults(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The demo's settings, to be put under those given; another model or method brings its own."""
    demo = dict(DEMOS[name])
    if "model" in given:
        demo.pop("classes", None)
    if "method" in given or "preset" in given:
        del demo["settings"]
    return demo


def start_camera(host: "Host", settings: "ServeSettings", name: str, rate: float) -> "Camera":
    """Send pictures from where the last camera stopped; their truth goes to a file."""
    from bitta.server.camera import SCENES, Camera  # noqa: PLC0415 (an extra)

    truth = settings.data_dir / TRUTH
    truth.touch()
    print(f"camera     {_STORIES[name]}; {rate:g} a second")
    print(f"truth      {truth}, for bitta annotate --simulate", flush=True)

    def send(picture: "Picture", label: int) -> None:
        with suppress(BittaError):  # overloaded: this picture is lost, as with a real camera
            served = host.engine.predict(picture[None], request_id="camera").result()
            with truth.open("a") as file:
                file.write(json.dumps({served.prediction_ids[0]: label}) + "\n")

    scene = SCENES[name](seed=settings.seed)
    camera = Camera(scene, send, per_second=rate, first=_n_lines(truth))
    camera.start()
    return camera


def _n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.is_file() else 0
