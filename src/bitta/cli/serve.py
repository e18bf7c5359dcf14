"""bitta serve: serve a model that asks people about its predictions and learns from the answers."""

import argparse
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bitta.errors import BittaError, InputError, SettingError

if TYPE_CHECKING:
    import numpy as np

    from bitta.server.host import Host
    from bitta.server.settings import ServeSettings

_EPILOG = """\
examples:
  bitta serve --demo
  bitta serve --model weights.safetensors --port 8080
  bitta serve --model mymodels:make --classes classes.txt --input-shape 3x224x224
  bitta serve --config server.toml --check

Every setting also has a name in the file and in the environment: --data-dir is data_dir in the
file and BITTA_SERVE_DATA_DIR. Arguments come first, then the file. docs/serving.md lists them.
"""
_DEMO = {
    "model": "embedded:cifar10-resnet8",
    "settings": {"epochs": 1, "lr": 3e-4, "dropout": 0.1, "bn_momentum": 0.7},
    "data_dir": "bitta-serve-demo",
    "log_level": "warning",
}
_PICTURES = 8.0  # a second
TRUTH = "truth.jsonl"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--demo", action="store_true", help="a small model and a camera whose pictures get worse"
    )
    parser.add_argument("--model", help="weights with a card, or module:function")
    parser.add_argument("--classes", metavar="FILE", help="a class name per line")
    parser.add_argument("--input-shape", metavar="CxHxW", help="such as 3x224x224")
    parser.add_argument("--config", metavar="FILE.toml", help="settings")
    parser.add_argument("--database", metavar="URL", help="(default: SQLite in the data folder)")
    parser.add_argument("--data-dir", metavar="DIR", help="(default: bitta-data)")
    parser.add_argument("--host", help="(default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="0 takes a free one (default: 8000)")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate chain, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, PEM")
    parser.add_argument("--method", help='(default: bitta; "bitta methods" lists them)')
    parser.add_argument("--preset", help="named settings of the method")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of the method (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--keep-images", choices=("none", "queried", "all"), help="(default: queried)"
    )
    parser.add_argument("--check", action="store_true", help="look whether it could run, and end")


def main(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    try:
        from bitta.server.api.run import serve  # noqa: PLC0415 (an extra that may not be there)
        from bitta.server.host import hosting  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InputError(
            f'{error.name} is not installed; run "pip install bitta[serve]" first.'
        ) from None
    settings = _settings(arguments)
    if arguments.check:
        return _check(settings)
    with hosting(settings) as host:
        print(f"{host.model.name}: {host.begun_from}", flush=True)
        _print_keys(host, settings, demo=arguments.demo)
        camera = _camera(host, settings) if arguments.demo else None
        try:
            serve(host.app, settings, tell=lambda line: print(line, flush=True))
        finally:
            if camera is not None:
                camera.stop()
    return 0


def _settings(arguments: argparse.Namespace) -> "ServeSettings":
    from bitta.server.settings import load_settings  # noqa: PLC0415

    names = ("model", "classes", "input_shape", "database", "data_dir", "host", "port",
             "tls_cert", "tls_key", "method", "preset", "keep_images")  # fmt: skip
    given: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    if given["input_shape"] is not None:
        given["input_shape"] = _shape(given["input_shape"])
    given = {name: value for name, value in given.items() if value is not None}
    own = dict(_assignment(text) for text in arguments.overrides)
    if arguments.demo:
        given = {**_DEMO, **given, "settings": {**_DEMO["settings"], **own}}  # type: ignore[dict-item]
    elif own:
        given["settings"] = own
    settings = load_settings(given, config=arguments.config and Path(arguments.config))
    if not settings.model:
        raise SettingError("no model was given; use --model, or --demo to look around.")
    return settings


def _shape(text: str) -> tuple[int, ...]:
    with suppress(ValueError):
        shape = tuple(int(part) for part in text.lower().split("x"))
        if len(shape) == 3 and min(shape) > 0:
            return shape
    raise SettingError(f"input-shape is {text!r}; channels x height x width, as 3x224x224.")


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise SettingError(f"--set {text!r} is not NAME=VALUE.")
    with suppress(ValueError):
        return name, json.loads(value)
    return name, value


def _check(settings: "ServeSettings") -> int:
    """Everything that could go wrong at the start, tried without keeping anything."""
    from bitta.server.api.run import bind  # noqa: PLC0415
    from bitta.server.engine.learner import Learner  # noqa: PLC0415
    from bitta.server.host import engine_config, model_of  # noqa: PLC0415
    from bitta.server.store import Store  # noqa: PLC0415

    model = model_of(settings)
    Learner(model.module, engine_config(settings).learner).close()
    print(f"model      {model.name}, {len(model.classes)} classes, reads {model.input_shape}")
    with Store.open(settings.database, settings.data_dir, alone=False) as store:
        print(f"data       {settings.data_dir}, {store.counts().served} predictions so far")
        keys = [key for key in store.keys.list() if key.revoked_at is None]
        print(f"keys       {len(keys)}" + ("" if keys else '; make some with "bitta keys create"'))
    bind(settings).close()
    print(f"address    {settings.host}:{settings.port} is free")
    return 0


def _print_keys(host: "Host", settings: "ServeSettings", *, demo: bool) -> None:
    """A server without keys is of no use: make the first ones, and show them this once."""
    keys = host.store.keys
    if demo:
        for old in keys.list():
            keys.revoke(old.id)
    elif any(key.revoked_at is None for key in keys.list()):
        return
    print("keys, shown this once:")
    for role in ("client", "annotator", "operator"):
        made = keys.create(role, f"first {role}")
        print(f"  {role:<10} {made.token}")
    if demo:
        print("the camera's truth, for bitta annotate --simulate:")
        print(f"  {settings.data_dir / TRUTH}", flush=True)


def _camera(host: "Host", settings: "ServeSettings") -> Any:
    from bitta.server.camera import Camera  # noqa: PLC0415

    def send(picture: "np.ndarray[Any, Any]", truth: int) -> None:
        with suppress(BittaError):  # overloaded: this picture is lost, as with a real camera
            served = host.engine.predict(picture, request_id="camera").result()
            with open(settings.data_dir / TRUTH, "a") as file:
                file.write(json.dumps({served.prediction_ids[0]: truth}) + "\n")

    camera = Camera(send, per_second=_PICTURES, seed=settings.seed)
    camera.start()
    return camera
