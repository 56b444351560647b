"""What a scrape reads as it is now: the worker's own description, as `prefillq worker list` has it.

Nothing is counted here, so nothing is to be kept in step.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_args

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from worker.refusals import Reason

Describe = Callable[[], Mapping[str, Any]]
Lengths = Callable[[], Mapping[tuple[str, str], int]]

_LIBRARIES = ("prefillq", "celery", "torch", "transformers")


class WorkerState(Collector):
    """A collector; before `follow` there is only the build to tell of."""

    def __init__(self, *, model_name: str, by_tenant: bool = False) -> None:
        self._model_name = model_name
        self._by_tenant = by_tenant
        self._describe: Describe | None = None
        self._lengths: Lengths = dict
        self._build = {"python": platform.python_version()} | {
            name: _version(name) for name in _LIBRARIES
        }

    def follow(self, describe: Describe, lengths: Lengths) -> None:
        """From now on show what `describe` and `lengths` say."""
        self._lengths = lengths
        self._describe = describe

    def collect(self) -> Iterator[Metric]:
        yield self._info("build", "Versions of what this worker is made of.", self._build)
        if self._describe is None:
            return
        state = self._describe()
        way, cache = state["admission"].get("way", {}), state["cache"]
        yield self._info(
            "engine",
            "How the model is run: the fastest way that was proven here.",
            {
                "model_digest": state["model_digest"][:12],
                "device": state["device"],
                "dtype": state["dtype"],
                "engine": state["engine"],
                "mode": str(way.get("mode") or ""),
                "kernels": str(way.get("kernels") or ""),
            },
        )
        for name, text, value in (
            ("engine_ways_refused", "Faster ways that were not proven here.", _refused(state)),
            ("engine_rows", "Jobs that the engine computes at once, at most.", state["batch_size"]),
            ("worker_draining", "1 once the worker takes no more jobs.", state["draining"]),
            ("jobs_running", "Jobs that this worker has claimed and not ended.", state["running"]),
            ("kv_cache_bytes", "Memory of the prefixes in the cache.", cache["bytes"]),
            ("kv_cache_max_bytes", "Memory that they may take.", cache["max_bytes"]),
            ("kv_cache_entries", "Prefixes in the cache.", cache["entries"]),
        ):
            gauge = GaugeMetricFamily(f"prefillq_{name}", text, labels=["model_name"])
            gauge.add_metric([self._model_name], float(value))
            yield gauge
        yield self._counter(
            "cache_evictions",
            "Prefixes that left the cache in memory, by reason.",
            {"budget": 0, **cache["evictions"]},
        )
        yield self._counter(
            "messages_refused",
            "Messages that were no doorbells of their queue, by reason.",
            dict.fromkeys(get_args(Reason), 0) | state["refused_messages"],
        )
        yield self._queues()

    def _queues(self) -> Metric:
        tenant_label = ["tenant"] if self._by_tenant else []
        gauge = GaugeMetricFamily(
            "prefillq_queue_length",
            "Messages in a template's queue for this model: jobs that wait to be taken.",
            labels=["model_name", "template", *tenant_label],
        )
        lengths: Counter[tuple[str, ...]] = Counter()
        for (tenant, template), length in self._lengths().items():
            lengths[(template, tenant) if self._by_tenant else (template,)] += length
        for labels, length in lengths.items():
            gauge.add_metric([self._model_name, *labels], length)
        return gauge

    def _info(self, name: str, text: str, labels: Mapping[str, str]) -> Metric:
        values = {"model_name": self._model_name, **labels}
        gauge = GaugeMetricFamily(f"prefillq_{name}_info", f"{text} Always 1.", labels=list(values))
        gauge.add_metric(list(values.values()), 1)
        return gauge

    def _counter(self, name: str, text: str, counts: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(f"prefillq_{name}", text, labels=["model_name", "reason"])
        for reason, count in counts.items():
            family.add_metric([self._model_name, reason], count)
        return family


def _refused(state: Mapping[str, Any]) -> int:
    return len(state["admission"].get("refused", ()))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from the sources, or without this library
        return ""
