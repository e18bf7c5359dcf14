"""bitta serve: serve a model that asks people about its predictions and learns from the answers."""

import argparse
import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bitta.cli.serve_demo import (
    configure_demo,
    demo_defaults,
    rate_of,
    start_camera,
)
from bitta.cli.shape import input_shape
from bitta.errors import InputError, SettingError

if TYPE_CHECKING:
    from bitta.server.host import Host
    from bitta.server.settings import ServeSettings

_EPILOG = """\
examples:
  bitta serve --demo
  bitta serve --demo corruptions --rate 40
  bitta serve --model weights.safetensors --port 8080
  bitta serve --model mymodels:make --classes classes.txt --input-shape 3x224x224
  bitta serve --config server.toml --check

Every setting also has a name in the file and in the environment: --data-dir is data_dir in the
file and BITTA_SERVE_DATA_DIR. Arguments come first, then the file, then the environment, then what
a demo has of its own. docs/how-to/serve.md lists them.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    configure_demo(parser)
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
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", help="who signs the certificates that clients must show"
    )
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
    gc.disable()  # until it serves: what it is made of is not garbage
    try:
        return _serve(arguments)
    finally:
        gc.enable()


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from bitta.server.host import hosting  # noqa: PLC0415
        from bitta.server.process import check_tls, serve  # noqa: PLC0415 (an optional extra)
    except ModuleNotFoundError as error:
        raise InputError(
            f'{error.name} is not installed; run "pip install bitta[serve]" first.'
        ) from None
    settings, rate = _settings(arguments), rate_of(arguments)
    check_tls(settings)
    if arguments.check:
        return _check(settings)
    with hosting(settings) as host:
        print(f"{host.model.name}: {host.begun_from}", flush=True)
        _print_keys(host, demo=arguments.demo is not None)
        camera = start_camera(host, settings, arguments.demo, rate) if rate else None
        try:
            serve(host.app, settings, print_line=lambda line: print(line, flush=True))
        finally:
            if camera is not None:
                camera.stop()
    return 0


def _settings(arguments: argparse.Namespace) -> "ServeSettings":
    from bitta.server.settings import load_settings  # noqa: PLC0415

    names = ("model", "classes", "input_shape", "database", "data_dir", "host", "port",
             "tls_cert", "tls_key", "tls_client_ca", "method", "preset", "keep_images")  # fmt: skip
    given: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    given["input_shape"] = input_shape(given["input_shape"])
    given = {name: value for name, value in given.items() if value is not None}
    own = dict(_assignment(text) for text in arguments.overrides)
    if own:
        given["settings"] = own
    settings = load_settings(
        given,
        config=arguments.config and Path(arguments.config),
        defaults=partial(demo_defaults, arguments.demo) if arguments.demo else None,
    )
    if not settings.model:
        raise SettingError("no model was given; use --model, or --demo to look around.")
    return settings


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise SettingError(f"--set {text!r} is not NAME=VALUE.")
    with suppress(ValueError):
        return name, json.loads(value)
    return name, value


def _check(settings: "ServeSettings") -> int:
    """Everything that could go wrong at the start; only tables of a database server stay."""
    from bitta.server.engine.continued import require_same  # noqa: PLC0415
    from bitta.server.engine.learner import Learner  # noqa: PLC0415
    from bitta.server.host import engine_config, model_of  # noqa: PLC0415
    from bitta.server.process import bind  # noqa: PLC0415
    from bitta.server.store import Store  # noqa: PLC0415

    model = model_of(settings)
    config = engine_config(settings).learner
    learner = Learner(model.module, config)
    weights = learner.weights
    learner.close()
    print(f"model      {model.name}, {len(model.classes)} classes, reads {model.input_shape}")
    with (
        _tried(settings) as (database, folder),
        Store.open(database, folder, alone=False) as store,
    ):
        require_same(store, config, weights=weights, data_dir=folder)
        print(f"data       {settings.data_dir}, {store.counts().served} predictions so far")
        keys = [key for key in store.keys.list() if key.revoked_at is None]
        print(f"keys       {len(keys)}" + ("" if keys else '; make some with "bitta keys create"'))
    bind(settings).close()
    print(f"address    {settings.host}:{settings.port} is free")
    return 0


@contextmanager
def _tried(settings: "ServeSettings") -> Iterator[tuple[str | None, Path]]:
    """Database and data folder; where no server has begun, others in their place for a while."""
    from bitta.server.store.connect import is_new  # noqa: PLC0415

    database, folder = settings.database, settings.data_dir
    new = is_new(database, folder)
    if folder.exists() and not (folder.is_dir() and new):
        yield database, folder
        return
    parent = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        made = TemporaryDirectory(dir=parent, prefix=".bitta-check-")
    except OSError as error:
        raise InputError(
            f"the data folder {str(folder)!r} cannot be made ({error.strerror}); give another "
            "--data-dir."
        ) from None
    with made as name:
        yield None if new else database, Path(name)


def _print_keys(host: "Host", *, demo: bool) -> None:
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
        print(f"  {role:<10} {made.token}", flush=True)
