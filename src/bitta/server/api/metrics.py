"""Metrics: counters and gauges for Prometheus, and statistics of the inference protocol."""

from collections.abc import Iterator
from dataclasses import replace
from time import time

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from bitta.server.api.engine_interface import EngineInterface
from bitta.server.protocol import ModelStatistics, StatisticDuration
from bitta.server.store import Store

CONTENT_TYPE = CONTENT_TYPE_LATEST
_LATENCY_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Upper bounds in seconds."""
_COLLAPSE_LEVELS = {"ok": 0, "suspect": 1}
_COLLAPSED = 2


class ServerMetrics:
    """Prometheus metrics of one app, in a registry of their own."""

    def __init__(self, engine: EngineInterface, store: Store) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "bitta_requests", "Requests.", ("method", "route", "status"), registry=self._registry
        )
        self.seconds = Histogram(
            "bitta_request_seconds",
            "Time to the complete response, without event streams.",
            ("route",),
            buckets=_LATENCY_BUCKETS,
            registry=self._registry,
        )
        self.predictions = Counter(
            "bitta_predictions", "Images predicted over HTTP.", registry=self._registry
        )
        self.answers = Counter(
            "bitta_answers", "Answers stored, by verdict.", ("verdict",), registry=self._registry
        )
        self._registry.register(_EngineAndStoreCollector(engine, store))

    def observe_request(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count one request. `seconds` is None for an event stream."""
        self.requests.labels(method, route, str(status)).inc()
        if seconds is not None:
            self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus. It reads the store and blocks."""
        return generate_latest(self._registry)


class _EngineAndStoreCollector(Collector):
    """Collector of the values that the engine and the store hold."""

    def __init__(self, engine: EngineInterface, store: Store) -> None:
        self._engine = engine
        self._store = store

    def describe(self) -> list[Metric]:
        """Return no metrics, so that registration reads neither engine nor store."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        status, counts = self._engine.status(), self._store.counts()
        yield _counter("served", "Images served since the start.", status.n_served)
        yield _counter("questions", "Questions asked.", counts.asked)
        yield _gauge("questions_open", "Open questions.", counts.open)
        yield _gauge("answers_pending", "Answers not yet learned from.", counts.pending)
        yield _gauge(
            "learning_steps", "Learning steps of the model served.", status.n_learning_steps
        )
        n_failed = self._store.images.n_failed
        yield _counter("images_failed", "Images that could not be written to disk.", n_failed)
        is_paused = status.learning == "paused"
        yield _gauge("learning_paused", "1 while learning is paused.", is_paused)
        distance = status.distance.get("now") or 0.0
        yield _gauge("model_distance", "Distance from the source weights.", distance)
        yield _gauge("queue_depth", "Images in the queue of the worker.", status.queue_depth)
        yield _gauge(
            "worker_alive", "1 while the worker runs and is not stuck.", self._engine.is_alive
        )
        level = _COLLAPSE_LEVELS.get(str(status.collapse.get("state")), _COLLAPSED)
        yield _gauge("collapse", "State of the model: 0 ok, 1 suspect, 2 collapsed.", level)
        if (low := status.audits.get("low")) is not None:
            yield _gauge("audit_accuracy", "Accuracy on audits.", status.audits["accuracy"] or 0)
            yield _gauge("audit_accuracy_low", "Lower 95 % bound of the accuracy.", low)
            high = status.audits["high"] or 0
            yield _gauge("audit_accuracy_high", "Upper 95 % bound of the accuracy.", high)
        if status.last_snapshot_at is not None:
            age_seconds = max(0.0, time() - status.last_snapshot_at / 1e6)
            yield _gauge("snapshot_age_seconds", "Age of the newest snapshot.", age_seconds)


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"bitta_{name}", documentation, value=float(value))


def _counter(name: str, documentation: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"bitta_{name}", documentation, value=float(value))


class InferenceCounter:
    """Counts inference requests since the start, for the statistics of the protocol."""

    def __init__(self) -> None:
        self.statistics = ModelStatistics()

    def count_success(self, n_images: int, nanoseconds: int) -> None:
        """Count one answered request."""
        before = self.statistics
        self.statistics = replace(
            before,
            n_images=before.n_images + n_images,
            n_batches=before.n_batches + 1,
            last_ms=int(time() * 1000),
            success=StatisticDuration(before.success.count + 1, before.success.ns + nanoseconds),
        )

    def count_failure(self, nanoseconds: int) -> None:
        """Count one refused or failed request."""
        before = self.statistics
        self.statistics = replace(
            before, fail=StatisticDuration(before.fail.count + 1, before.fail.ns + nanoseconds)
        )
