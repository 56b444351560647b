"""Counts what a worker tells of its jobs, with a bounded number of series.

A label's value is never what a tenant may have made up. The version in a job's record is written
by whoever submits, so it becomes a label only once the registry has confirmed it, which is before
the job is tokenized. Series go when their template is not served any more, when their version has
had no job for long, and, last of all, when there are too many.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter

from contract.job_store import Refusal
from contract.types import Result, VersionRef
from worker.metrics.series import Families, Series
from worker.watcher import AttemptEnd, Watcher

# In the place of a template or version that nobody has confirmed; no name has parentheses.
UNKNOWN = "(unknown)"

# A version without a job for this long is forgotten, unless it is its template's latest in use.
IDLE_S = 3600.0
# A rollout has three versions of a template at work; the rest are those whose jobs still wait.
MAX_VERSIONS_PER_TEMPLATE = 16
# Each has about 120 time series, which cost 3 ms of every scrape. The engine may wait for all of
# it, since both want Python's lock. A hundred are 2 % at one scrape in 15 s.
MAX_VERSIONS = 100


class JobMetrics(Watcher):
    """A Watcher that counts into a registry. `by_tenant` gives all series the label `tenant`;
    without it, templates of one name are one, whosever they are.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        model_name: str,
        by_tenant: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._model_name = model_name
        self._by_tenant = by_tenant
        self._lock = threading.Lock()
        names = ("model_name", "template", "version", *(("tenant",) if by_tenant else ()))
        self._families = Families(registry, names)
        self._series: OrderedDict[tuple[str, ...], Series] = OrderedDict()  # latest used last
        self._served: frozenset[tuple[str, str]] = frozenset()

        def counter(name: str, text: str, label: str, values: Iterable[str]) -> dict[str, Counter]:
            family = Counter(f"prefillq_{name}", text, ("model_name", label), registry=registry)
            return {value: family.labels(model_name, value) for value in values}

        self._attempts = counter(
            "attempts_total", "Attempts at jobs, by how each ended.", "end", get_args(AttemptEnd)
        )
        self._refused = counter(
            "claims_refused_total",
            "Messages that rang for a job that was not to be run, by reason.",
            "reason",
            get_args(Refusal),
        )

        def plain(name: str, text: str) -> Counter:
            family = Counter(f"prefillq_{name}", text, ("model_name",), registry=registry)
            return family.labels(model_name)

        self._dead = plain("jobs_dead_total", "Jobs that used up their attempts.")
        self._rung = plain("jobs_rung_again_total", "Jobs rung for because their message was lost.")

    def claim_refused(self, reason: Refusal) -> None:
        self._refused[reason].inc()
        if reason == "dead":  # told once: from then on the job has ended
            self._dead.inc()

    def attempt_ended(self, end: AttemptEnd) -> None:
        self._attempts[end].inc()
        if end == "dead":
            self._dead.inc()

    def job_finished(self, result: Result) -> None:
        with self._lock:
            # A series that is removed meanwhile would take the count with it.
            series = self._of(result)
            series.used_at = self._clock()
            series.count(result)

    def rung_again(self) -> None:
        self._rung.inc()

    def serving(self, templates: Iterable[tuple[str, str]]) -> None:
        with self._lock:
            self._served = frozenset(templates)
            idle_since = self._clock() - IDLE_S
            names = {self._template(tenant, name) for tenant, name in self._served}
            latest = {_template_of(labels): labels for labels in self._series}
            for labels, series in list(self._series.items()):
                template = _template_of(labels)
                served = template in names or UNKNOWN in template
                idle = series.used_at < idle_since and labels != latest[template]
                if idle or not served:
                    self._forget(labels)

    def _of(self, result: Result) -> Series:
        labels = self._labels(result.ref)
        if labels not in self._series and not result.usage.prompt_tokens:
            labels = self._labels(_without_claims(result.ref, self._served))
        if labels in self._series:
            self._series.move_to_end(labels)
            return self._series[labels]
        same = [other for other in self._series if _template_of(other) == _template_of(labels)]
        if len(same) >= MAX_VERSIONS_PER_TEMPLATE:
            self._forget(same[0])
        if len(self._series) >= MAX_VERSIONS:
            self._forget(next(iter(self._series)))
        series = self._series[labels] = Series(self._families, labels)
        return series

    def _labels(self, ref: VersionRef) -> tuple[str, ...]:
        version = str(ref.version) if ref.version else UNKNOWN
        template, *tenant = self._template(ref.tenant, ref.template)
        return (self._model_name, template, version, *tenant)

    def _template(self, tenant: str, name: str) -> tuple[str, ...]:
        return (name, tenant) if self._by_tenant else (name,)

    def _forget(self, labels: tuple[str, ...]) -> None:
        del self._series[labels]
        self._families.remove(labels)


def _template_of(labels: tuple[str, ...]) -> tuple[str, ...]:
    _, template, _, *tenant = labels
    return (template, *tenant)


def _without_claims(ref: VersionRef, served: frozenset[tuple[str, str]]) -> VersionRef:
    """What is known of a version that nobody looked up: perhaps its template, and its tenant, which
    is the one whose queue brought the job.
    """
    known = (ref.tenant, ref.template) in served
    template = ref.template if known else UNKNOWN
    return VersionRef(tenant=ref.tenant, template=template, version=0, digest="")
