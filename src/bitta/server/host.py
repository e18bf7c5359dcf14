"""A server put together: store, model, engine and what is reached over HTTP."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from fastapi import FastAPI

from bitta.server.api import create_app
from bitta.server.engine import Engine, EngineConfig, LearnerConfig, Overloaded
from bitta.server.model import ServedModel, served_model
from bitta.server.settings import ServeSettings
from bitta.server.store import Store
from bitta.server.store.connect import now


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """Everything, running."""

    model: ServedModel
    store: Store
    engine: Engine
    app: FastAPI
    begun_from: str
    """A sentence about the weights it began with."""


@contextmanager
def hosting(settings: ServeSettings) -> Iterator[Host]:
    """Open, recover and run; afterwards the state is kept and the data folder is free again."""
    model = model_of(settings)
    with _one_core_left(), Store.open(settings.database, settings.data_dir) as store:
        engine = Engine(
            model.module,
            model.classes,
            store,
            engine_config(settings),
            data_dir=settings.data_dir,
            clock=now,
            input_shape=model.input_shape,
            name=model.name,
        )
        begun_from = engine.start()
        try:
            app = create_app(
                engine,
                store,
                settings,
                geometry=model.geometry,
                errors={Overloaded: (503, "overloaded")},
            )
            yield Host(model, store, engine, app, begun_from)
        finally:
            engine.stop()


@contextmanager
def _one_core_left() -> Iterator[None]:
    """Let the model compute on all cores but one, unless the user has said how many.

    Requests are read and written on that one. Where they have to share, each parallel part of
    the model waits for the thread that is held up.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, min(before, len(os.sched_getaffinity(0)) - 1)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def model_of(settings: ServeSettings) -> ServedModel:
    """The model that the settings name."""
    return served_model(settings.model, classes=settings.classes, input_shape=settings.input_shape)


def engine_config(settings: ServeSettings) -> EngineConfig:
    """What the engine takes of the settings."""
    learner = LearnerConfig(
        method=settings.method,
        preset=settings.preset,
        settings=tuple(settings.settings.items()),
        window=settings.window,
        n_queries=settings.n_queries,
        audits=settings.audits,
        max_distance=settings.max_distance,
        seed=settings.seed,
    )
    return EngineConfig(
        learner=learner,
        guard=settings.guard,
        max_batch=settings.max_batch,
        max_wait=settings.max_wait_ms / 1000,
        max_waiting=settings.max_waiting,
        duty=settings.duty,
        rollback=settings.rollback,
        keep_images=settings.keep_images,
        recent_bytes=settings.recent_bytes,
        snapshot_steps=settings.snapshot_steps,
        snapshot_seconds=settings.snapshot_seconds,
        keep_snapshots=settings.keep_snapshots,
        question_seconds=settings.question_seconds,
        max_open=settings.max_open,
        overlap=settings.overlap,
    )
