"""One worker's endpoint, put together."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics

from worker.metrics.endpoint import Endpoint
from worker.metrics.jobs import JobMetrics
from worker.metrics.state import Describe, Lengths, WorkerState


class Exporter:
    """Counts in `jobs`, shows the worker's state from `follow` on, and serves both.

    The port is open once this is made: a worker that cannot have it says so before it loads its
    model. Raises what `Endpoint` raises.
    """

    def __init__(self, *, host: str, port: int, model_name: str, by_tenant: bool = False) -> None:
        # As many series again, for a time that Prometheus does not use.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        # Not the library's own, which is one for the process.
        registry = CollectorRegistry()
        self.jobs = JobMetrics(registry, model_name=model_name, by_tenant=by_tenant)
        self._state = WorkerState(model_name=model_name, by_tenant=by_tenant)
        registry.register(self._state)
        ProcessCollector(registry=registry)
        self._endpoint = Endpoint(registry, host=host, port=port)

    @property
    def address(self) -> str:
        """Host and port, for people and for whoever writes a scrape configuration."""
        return f"{self._endpoint.host}:{self._endpoint.port}"

    def follow(self, describe: Describe, lengths: Lengths) -> None:
        """Show this worker from now on."""
        self._state.follow(describe, lengths)

    def close(self) -> None:
        """Answer no more scrapes."""
        self._endpoint.close()
