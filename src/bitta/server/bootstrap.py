"""Start of a server: load the model, open the store, start the engine and build the app."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from fastapi import FastAPI

from bitta.server.api import create_app
from bitta.server.engine import Engine, EngineOverloadedError
from bitta.server.served_model import ServedModel, load_served_model
from bitta.server.settings import ServeSettings
from bitta.server.store import Store, now


@dataclass(frozen=True, slots=True, eq=False)
class RunningServer:
    """The parts of a started server."""

    model: ServedModel
    store: Store
    engine: Engine
    app: FastAPI
    start_message: str
    """Model version that serves, and the snapshot or weights that it comes from."""


@contextmanager
def start_server(settings: ServeSettings) -> Iterator[RunningServer]:
    """Start a server. At the end of the block, save its state and release the data folder."""
    model = load_model_from_settings(settings)
    with (
        _one_core_free(),
        _exif_warnings_ignored(),
        Store.open(settings.database, settings.data_dir) as store,
    ):
        engine = Engine(
            model.module,
            model.classes,
            store,
            settings,
            data_dir=settings.data_dir,
            clock=now,
            input_shape=model.input_shape,
            name=model.name,
        )
        start_message = engine.start()
        try:
            app = create_app(
                engine,
                store,
                settings,
                geometry=model.geometry,
                errors={EngineOverloadedError: (503, "overloaded")},
            )
            yield RunningServer(model, store, engine, app, start_message)
        finally:
            engine.stop()


def load_model_from_settings(settings: ServeSettings) -> ServedModel:
    """Load the model that the settings name."""
    return load_served_model(
        settings.model, classes=settings.classes, input_shape=settings.input_shape
    )


@contextmanager
def _one_core_free() -> Iterator[None]:
    """Let the model use all cores but one, unless OMP_NUM_THREADS is set.

    The free core handles requests. Without it, requests would slow down one of the model's threads,
    and every parallel operation waits for the slowest thread.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(before, len(os.sched_getaffinity(0)) - 1)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _exif_warnings_ignored() -> Iterator[None]:
    """Ignore Pillow's warnings about damaged EXIF tags, which any client could cause."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.TiffImagePlugin")
        yield
