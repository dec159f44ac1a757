# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a server counts and measures. ``Metrics`` counts nothing; the others tell Prometheus, or Ray."""

from __future__ import annotations

from typing import Any

#: Seconds: networks take from microseconds to seconds.
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: Names, what they say, and by what they are told apart.
REQUESTS = ("dycl_requests", "Requests that were answered, by status", ("model", "protocol", "code"))
FAILED = ("dycl_failed_requests", "Requests that were answered with an error, by status", ("model", "protocol", "code"))
SECONDS = ("dycl_request_seconds", "Time from the first byte of a request's body to its answer", ("model", "protocol"))
RUN = ("dycl_run_seconds", "Time in the network, by the path that it took", ("model", "path"))
WAIT = ("dycl_wait_seconds", "Time that requests waited for a session", ("model",))
PRESENT = ("dycl_requests_present", "Requests that run or wait", ("model",))
SEQUENCES = ("dycl_sequences", "Sequences that are open", ("model",))


class Metrics:
    """Where a server tells what happens."""

    def answered(self, model: str, protocol: str, code: str, seconds: float) -> None:
        """A request was answered."""

    def ran(self, model: str, path: str, waited: float, seconds: float) -> None:
        """A network ran."""

    def waiting_or_running(self, model: str, number: int) -> None:
        """So many requests are there."""

    def sequences(self, model: str, number: int) -> None:
        """So many sequences are open."""


class PrometheusMetrics(Metrics):
    """Metrics for Prometheus, in a registry of their own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        to: dict[str, Any] = {"registry": self.registry}
        buckets: dict[str, Any] = {**to, "buckets": BUCKETS}
        self._requests, self._failed = Counter(*REQUESTS, **to), Counter(*FAILED, **to)
        self._seconds, self._run, self._wait = (Histogram(*what, **buckets) for what in (SECONDS, RUN, WAIT))
        self._present, self._sequences = Gauge(*PRESENT, **to), Gauge(*SEQUENCES, **to)

    def text(self) -> tuple[bytes, str]:
        """Return the page that Prometheus reads, and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def answered(self, model: str, protocol: str, code: str, seconds: float) -> None:
        self._requests.labels(model, protocol, code).inc()
        if code not in ("200", "OK"):
            self._failed.labels(model, protocol, code).inc()
        self._seconds.labels(model, protocol).observe(seconds)

    def ran(self, model: str, path: str, waited: float, seconds: float) -> None:
        self._run.labels(model, path).observe(seconds)
        self._wait.labels(model).observe(waited)

    def waiting_or_running(self, model: str, number: int) -> None:
        self._present.labels(model).set(number)

    def sequences(self, model: str, number: int) -> None:
        self._sequences.labels(model).set(number)


class RayMetrics(Metrics):
    """The same as metrics of the application, which Ray's agents show to Prometheus, with the replica."""

    def __init__(self) -> None:
        from ray.util.metrics import Counter, Gauge, Histogram

        self._requests, self._failed = (Counter(name, text, keys) for name, text, keys in (REQUESTS, FAILED))
        self._seconds, self._run, self._wait = (Histogram(name, text, list(BUCKETS), keys) for name, text, keys in (SECONDS, RUN, WAIT))
        self._present, self._sequences = (Gauge(name, text, keys) for name, text, keys in (PRESENT, SEQUENCES))

    def answered(self, model: str, protocol: str, code: str, seconds: float) -> None:
        tags = {"model": model, "protocol": protocol, "code": code}
        self._requests.inc(1, tags)
        if code not in ("200", "OK"):
            self._failed.inc(1, tags)
        self._seconds.observe(max(seconds, 1e-9), {"model": model, "protocol": protocol})

    def ran(self, model: str, path: str, waited: float, seconds: float) -> None:
        self._run.observe(max(seconds, 1e-9), {"model": model, "path": path})
        self._wait.observe(max(waited, 1e-9), {"model": model})

    def waiting_or_running(self, model: str, number: int) -> None:
        self._present.set(number, {"model": model})

    def sequences(self, model: str, number: int) -> None:
        self._sequences.set(number, {"model": model})
