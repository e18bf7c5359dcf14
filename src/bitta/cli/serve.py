"""bitta serve: serve a model that asks people about its predictions and learns from the answers."""

import argparse
import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from bitta.cli.arguments import missing_server_package_error, parse_input_shape
from bitta.errors import BittaError, InputError, SettingError

if TYPE_CHECKING:  # the packages of the server are optional dependencies
    from bitta.server.demo_camera import Camera, ImageArray
    from bitta.server.process import RunningServer
    from bitta.server.settings import ServeSettings

_EPILOG = """\
examples:
  bitta serve --demo
  bitta serve --demo corruptions --rate 40
  bitta serve --model weights.safetensors --port 8080
  bitta serve --model mymodels:make --classes classes.txt --input-shape 3x224x224
  bitta serve --config server.toml --check

A setting can also be given in the file of --config or in the environment: --data-dir is data_dir
in the file and BITTA_SERVE_DATA_DIR in the environment. Arguments override the file, the file
overrides the environment, and the environment overrides the settings of a demo.
docs/reference/server-settings.md lists all settings.
"""

DEMOS: Mapping[str, Mapping[str, Any]] = {
    "digits": {
        "model": "embedded:digits-resnet8",
        "classes": str(files("bitta") / "assets" / "demo-digits-classes.txt"),
        "settings": {"epochs": 1, "lr": 6e-3, "beta": 0.0, "dropout": 0.1},
        # While the model relearns its two classes, it mostly predicts one of them, but is still
        # better than the source model. A short audit window detects a change soon.
        "guard": {"entropy_share": 0.2, "audit_window": 30},
        "data_dir": "bitta-serve-demo",
        "log_level": "warning",
    },
    "corruptions": {
        "model": "embedded:cifar10-resnet8",
        # Memories of 64 hold answers about earlier corruptions, which costs accuracy in fog.
        # Memories of 8 hold the answers of about five windows.
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
"""Settings of the demos, by the scene of the camera.

The settings of the method are those of `bitta demo`, with two differences. The digits use another
lr and dropout (there 1e-2 and 0.3), because the model must also stay good while the colours are
right. The corruptions use smaller memories (there 64). The values were chosen on seeds 10 to 14,
the memories on seeds 10 and 11.
"""
_DEMO_DESCRIPTIONS = {
    "digits": "digits whose colour shows the class at first, and later the opposite",
    "corruptions": "pictures in clear weather at first, then in several kinds of bad weather",
}
_TRUTH_FILE = "truth.jsonl"
_DEFAULT_RATE = 20.0
_SETTING_OPTIONS = {
    "model": None,
    "classes": "FILE",
    "input_shape": "CxHxW",
    "database": "URL",
    "data_dir": "DIR",
    "host": None,
    "port": None,
    "tls_cert": "FILE",
    "tls_key": "FILE",
    "tls_client_ca": "FILE",
    "method": None,
    "preset": None,
    "keep_images": None,
}
"""Settings that have an option, with its metavar, or None for the usual one."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--demo", nargs="?", choices=list(DEMOS), const="digits", metavar="|".join(DEMOS),
        help="serve a small model, with a simulated camera whose pictures change "
        "(default: digits)")  # fmt: skip
    add("--rate", type=float, metavar="N",
        help="pictures per second of the camera of a demo; 0 for no camera "
        f"(default: {_DEFAULT_RATE:g})")  # fmt: skip
    add("--config", metavar="FILE.toml", help="file with settings")
    for name, metavar in _SETTING_OPTIONS.items():
        add(f"--{name.replace('_', '-')}", metavar=metavar, **_describe_option(name))
    add("--set", dest="overrides", action="append", default=[], metavar="NAME=VALUE",
        help="change a setting of the method (repeatable)")  # fmt: skip
    add("--check", action="store_true", help="check the settings, model, data and port, then exit")


def _describe_option(name: str) -> dict[str, Any]:
    """Return type, choices and help of the option of a setting, as the setting declares them."""
    try:
        from bitta.server.settings import ServeSettings  # noqa: PLC0415 (an optional dependency)
    except ModuleNotFoundError:
        return {}  # `main` raises an error that names the missing package
    setting = ServeSettings.model_fields[name]
    text = _first_sentence(setting.description or "")
    if setting.default not in (None, ""):
        text += f" (default: {setting.default})"
    options: dict[str, Any] = {"help": text}
    if setting.annotation is int:
        options["type"] = int
    if get_origin(setting.annotation) is Literal:
        options["choices"] = get_args(setting.annotation)
    return options


def _first_sentence(text: str) -> str:
    """Return the first sentence in the style of help: without capital and full stop."""
    sentence = text.replace("\n", " ").partition(". ")[0].rstrip(".")
    is_word = sentence[1:2].islower()  # not an abbreviation such as URL
    return sentence[0].lower() + sentence[1:] if is_word else sentence


def main(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    gc.disable()  # Scanning objects that stay alive would only slow the start.
    try:
        return _serve(arguments)
    finally:
        gc.enable()


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from bitta.server.process import (  # noqa: PLC0415 (an optional extra)
            check_tls,
            serve,
            start_server,
        )
    except ModuleNotFoundError as error:
        raise missing_server_package_error(error) from None
    settings, rate = _load_settings(arguments), _camera_rate(arguments)
    check_tls(settings)
    if arguments.check:
        return _check(settings)
    with start_server(settings) as server:
        print(f"{server.model.name}: {server.start_message}", flush=True)
        _print_new_keys(server, is_demo=arguments.demo is not None)
        camera = _start_camera(server, settings, arguments.demo, rate) if rate else None
        try:
            serve(server.app, settings, print_line=lambda line: print(line, flush=True))
        finally:
            if camera is not None:
                camera.stop()
    return 0


def _load_settings(arguments: argparse.Namespace) -> "ServeSettings":
    from bitta.server.settings import load_settings  # noqa: PLC0415

    values: dict[str, Any] = {name: getattr(arguments, name) for name in _SETTING_OPTIONS}
    values["input_shape"] = parse_input_shape(values["input_shape"])
    values = {name: value for name, value in values.items() if value is not None}
    if arguments.overrides:
        values["settings"] = dict(_parse_assignment(text) for text in arguments.overrides)
    settings = load_settings(
        values,
        config=arguments.config and Path(arguments.config),
        defaults=partial(_demo_defaults, arguments.demo) if arguments.demo else None,
    )
    if not settings.model:
        raise SettingError("no model was given; use --model, or --demo for an example.")
    return settings


def _parse_assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise SettingError(f"--set is {text!r}; allowed: NAME=VALUE.")
    with suppress(ValueError):
        return name, json.loads(value)
    return name, value


def _check(settings: "ServeSettings") -> int:
    """Check everything that can fail at the start.

    The tables of an existing database are upgraded. On PostgreSQL they are created, too.
    """
    from bitta.server.engine.learner import Learner  # noqa: PLC0415
    from bitta.server.engine.snapshots_and_rollback import require_same_settings  # noqa: PLC0415
    from bitta.server.process import bind, load_model_from_settings  # noqa: PLC0415
    from bitta.server.store import Store  # noqa: PLC0415

    model = load_model_from_settings(settings)
    learner = Learner(model.module, settings)
    weights_hash = learner.weights_hash
    learner.close()
    print(f"model      {model.name}, {len(model.classes)} classes, input {model.input_shape}")
    with (
        _database_for_check(settings) as (database, folder),
        Store.open(database, folder, exclusive=False) as store,
    ):
        require_same_settings(store, settings, weights_hash=weights_hash, data_dir=folder)
        print(f"data       {settings.data_dir}, {store.counts().served} predictions so far")
        keys = [key for key in store.keys.list() if key.revoked_at is None]
        hint = "" if keys else '; create some with "bitta keys create"'
        print(f"keys       {len(keys)}{hint}")
    bind(settings).close()
    print(f"address    {settings.host}:{settings.port} is free")
    return 0


@contextmanager
def _database_for_check(settings: "ServeSettings") -> Iterator[tuple[str | None, Path]]:
    """Yield the database and the data folder, or temporary ones if no server has used them."""
    from bitta.server.store.connection import is_missing  # noqa: PLC0415

    database, folder = settings.database, settings.data_dir
    database_is_new = is_missing(database, folder)
    if folder.exists() and not (folder.is_dir() and database_is_new):
        yield database, folder
        return
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        temporary = TemporaryDirectory(dir=parent, prefix=".bitta-check-")
    except OSError as error:
        raise InputError(
            f"the data folder {str(folder)!r} cannot be created ({error.strerror}); give another "
            "--data-dir."
        ) from None
    with temporary as name:
        yield None if database_is_new else database, Path(name)


def _print_new_keys(server: "RunningServer", *, is_demo: bool) -> None:
    """Create and print a key per role if there are none. A demo gets new keys at each start."""
    keys = server.store.keys
    if is_demo:
        for key in keys.list():
            keys.revoke(key.id)
    elif any(key.revoked_at is None for key in keys.list()):
        return
    print("keys, shown this once:")
    for role in ("client", "annotator", "operator"):
        new_key = keys.create(role, f"first {role}")
        print(f"  {role:<10} {new_key.token}", flush=True)


def _camera_rate(arguments: argparse.Namespace) -> float:
    """Return the pictures per second of the camera. 0 stands for no camera."""
    rate: float | None = arguments.rate
    if rate is None:
        return _DEFAULT_RATE if arguments.demo else 0.0
    if not arguments.demo:
        raise SettingError(
            f"--rate {rate:g} was given without --demo; only a demo has a camera. Add --demo, or "
            "leave out --rate."
        )
    if not 0 <= rate <= 1000:
        raise SettingError(f"--rate is {rate:g}; allowed: 0 to 1000 pictures per second.")
    return rate


def _demo_defaults(name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the default settings of a demo that fit the given model and method."""
    defaults = dict(DEMOS[name])
    if "model" in given:
        defaults.pop("classes", None)
    if "method" in given or "preset" in given:
        del defaults["settings"]
    return defaults


def _start_camera(
    server: "RunningServer", settings: "ServeSettings", name: str, rate: float
) -> "Camera":
    """Start a camera where the last one stopped. Write the classes of its pictures to a file."""
    from bitta.server.demo_camera import SCENES, Camera  # noqa: PLC0415 (an optional dependency)

    truth_path = settings.data_dir / _TRUTH_FILE
    truth_path.touch()
    print(f"camera     {_DEMO_DESCRIPTIONS[name]}; {rate:g} pictures per second")
    print(f"truth      {truth_path}, for bitta annotate --simulate", flush=True)

    def send(picture: "ImageArray", label: int) -> None:
        with suppress(BittaError):  # an overloaded server drops the picture
            served = server.engine.predict(picture[None], request_id="camera").result()
            with truth_path.open("a") as file:
                file.write(json.dumps({served.prediction_ids[0]: label}) + "\n")

    n_sent = truth_path.read_bytes().count(b"\n")
    camera = Camera(SCENES[name](seed=settings.seed), send, per_second=rate, first=n_sent)
    camera.start()
    return camera
