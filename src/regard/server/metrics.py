"""Prometheus metrics of a server. Each app has its own registry, so that several can live in one process."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters, gauges and histograms; `prometheus_client` adds the suffix `_total` to the names of counters."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "regard_requests", "HTTP requests by endpoint and status.", ["endpoint", "status"], registry=registry
        )
        self.request_duration = Histogram(
            "regard_request_duration_seconds",
            "Seconds from the head of a request to the last byte of its response.",
            ["endpoint"],
            buckets=BUCKETS,
            registry=registry,
        )
        self.tokens = Counter("regard_generated_tokens", "Tokens generated.", ["model"], registry=registry)
        self.steps = Counter("regard_decoding_steps", "Decoding steps.", ["model"], registry=registry)
        self.cancelled = Counter(
            "regard_cancelled_jobs", "Jobs cancelled because the client left or the time ran out.", ["model"], registry=registry
        )
        self.rejected = Counter("regard_rejected_jobs", "Jobs rejected because the queue was full.", ["model"], registry=registry)
        self.failures = Counter("regard_failures", "Internal errors.", ["model"], registry=registry)
        self.closed_connections = Counter(
            "regard_closed_connections",
            "Connections closed because there were too many (limit) or the client was too slow (late).",
            ["reason"],
            registry=registry,
        )
        self._running = Gauge("regard_running_jobs", "Jobs being decoded.", ["model", "worker"], registry=registry)
        self._queued = Gauge("regard_queued_jobs", "Jobs waiting in the queue.", ["model", "worker"], registry=registry)

    def watch_worker(self, model: str, worker: str, running: Callable[[], float], queued: Callable[[], float]) -> None:
        """Read a worker's load whenever the metrics are scraped."""
        self._running.labels(model, worker).set_function(running)
        self._queued.labels(model, worker).set_function(queued)

    def to_text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)
