"""A metrics page, read as Prometheus reads it."""

from __future__ import annotations

import http.client
from collections import Counter
from collections.abc import Iterable
from typing import Self

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families


class Scraped:
    """All samples of one page."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.families = list(text_string_to_metric_families(page))
        self.samples = [sample for family in self.families for sample in family.samples]
        series = Counter((sample.name, *sorted(sample.labels.items())) for sample in self.samples)
        twice = [key for key, count in series.items() if count > 1]
        assert not twice, f"Prometheus refuses a page with a series twice: {twice[:3]}"

    @classmethod
    def of(cls, registry: CollectorRegistry) -> Self:
        """What a scrape of this registry would give."""
        return cls(generate_latest(registry).decode("utf-8"))

    @classmethod
    def over_http(cls, address: str, *, timeout: float = 5.0) -> Self:
        """The page that a worker serves at `host:port`."""
        connection = http.client.HTTPConnection(address, timeout=timeout)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            page = answer.read().decode("utf-8")
        finally:
            connection.close()
        assert answer.status == 200, page
        return cls(page)

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of `prefillq_<name>` over all series with these labels. KeyError without any."""
        found = self._found(name, labels)
        if not found:
            raise KeyError(f"no series {name} {labels}")
        return sum(found)

    def has(self, name: str, **labels: str) -> bool:
        """Whether there is such a series."""
        return bool(self._found(name, labels))

    def names(self) -> set[str]:
        """Names of all samples, `_bucket`, `_sum` and `_count` among them."""
        return {sample.name for sample in self.samples}

    def values_of(self, label: str) -> set[str]:
        """All that stands in one label."""
        return {sample.labels[label] for sample in self.samples if label in sample.labels}

    def labels_of(self, name: str) -> set[tuple[str, ...]]:
        """The names of the labels of one metric's series."""
        return {
            tuple(sorted(sample.labels))
            for sample in self.samples
            if sample.name == f"prefillq_{name}"
        }

    def difference(self, before: Scraped) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """What each `prefillq_` series has grown by, those that stayed left out."""
        old = dict(_keyed(before.samples_of_ours()))
        grown = {key: value - old.get(key, 0.0) for key, value in _keyed(self.samples_of_ours())}
        return {key: value for key, value in grown.items() if value}

    def samples_of_ours(self) -> list[tuple[str, dict[str, str], float]]:
        return [
            (sample.name, sample.labels, sample.value)
            for sample in self.samples
            if sample.name.startswith("prefillq_")
        ]

    def _found(self, name: str, labels: dict[str, str]) -> list[float]:
        return [
            value
            for sample, has, value in self.samples_of_ours()
            if sample == f"prefillq_{name}" and labels.items() <= has.items()
        ]


def _keyed(
    samples: Iterable[tuple[str, dict[str, str], float]],
) -> Iterable[tuple[tuple[str, tuple[tuple[str, str], ...]], float]]:
    for name, labels, value in samples:
        yield (name, tuple(sorted(labels.items()))), value
