"""Numbers for Prometheus; each app has a registry of its own."""

from collections.abc import Iterator
from time import time

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from bitta.server.api.ports import Engine
from bitta.server.store import Store

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """What the app counts itself, and what it reads from engine and store when asked."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "bitta_requests", "Requests.", ("method", "route", "status"), registry=self._registry
        )
        self.seconds = Histogram(
            "bitta_request_seconds",
            "Time to a complete response; streams are left out.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.predictions = Counter(
            "bitta_predictions", "Images predicted over HTTP.", registry=self._registry
        )
        self.answers = Counter(
            "bitta_answers", "Answers stored, by verdict.", ("verdict",), registry=self._registry
        )
        self._registry.register(_Read(engine, store))

    def observe(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """One request; None seconds for a stream."""
        self.requests.labels(method, route, str(status)).inc()
        if seconds is not None:
            self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """As it is scraped (blocking: the store is read)."""
        return generate_latest(self._registry)


class _Read(Collector):
    """Values that others keep."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine = engine
        self._store = store

    def describe(self) -> list[Metric]:
        """Nothing is read before the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """As of now."""
        status, counts = self._engine.status(), self._store.counts()
        yield _total("served", "Images served since the start.", status.n_served)
        yield _total("questions", "Questions asked.", counts.asked)
        yield _now("questions_open", "Questions that wait for an answer.", counts.open)
        yield _now("answers_pending", "Answers not yet learned from.", counts.pending)
        yield _now("learning_steps", "Learning steps of the model served.", status.n_steps)
        missed = self._store.images.missed
        yield _total("images_missed", "Images that could not be kept on disk.", missed)
        paused = status.learning == "paused"
        yield _now("learning_paused", "1 while the model does not learn.", paused)
        distance = status.distance.get("now") or 0.0
        yield _now("model_distance", "Distance from the source's weights.", distance)
        yield _now("queue_depth", "Images that wait to be served.", status.queue_depth)
        yield _now("worker_alive", "1 while the worker goes round.", self._engine.alive)
        collapsed = {"ok": 0, "suspect": 1}.get(str(status.collapse.get("state")), 2)
        yield _now("collapse", "0 ok, 1 suspect, 2 collapsed.", collapsed)
        if (low := status.audits.get("low")) is not None:
            yield _now("audit_accuracy", "Accuracy on audits.", status.audits["accuracy"] or 0)
            yield _now("audit_accuracy_low", "Lower bound, 95 %.", low)
            yield _now("audit_accuracy_high", "Upper bound, 95 %.", status.audits["high"] or 0)
        if status.last_snapshot_at is not None:
            age = max(0.0, time() - status.last_snapshot_at / 1e6)
            yield _now("snapshot_age_seconds", "Age of the newest snapshot.", age)


def _now(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"bitta_{name}", meaning, value=float(value))


def _total(name: str, meaning: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"bitta_{name}", meaning, value=float(value))
