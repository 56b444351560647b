"""What happened when, from lines in any order, in a bounded number of equal spans of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from report.distribution import Distribution

MAX_BUCKETS = 120
_EXACT = 50  # values a bucket keeps before it counts: most have few
# Each a multiple of the one before, so that buckets merge without being cut: seconds to two years.
WIDTHS_S = (1, 5, 15, 60, 300, 900, 3600, 14_400, 86_400, 604_800, 4_838_400, 62_899_200)


@dataclass(slots=True, kw_only=True)
class Bucket:
    """The jobs that ended in one span."""

    jobs: int = 0
    failed: int = 0
    completion_tokens: int = 0
    total_s: Distribution = field(default_factory=lambda: Distribution(exact_up_to=_EXACT))


class Timeline:
    """Begins with buckets of a second and makes them wider when they would be more than 120."""

    def __init__(self) -> None:
        self._widths = iter(WIDTHS_S[1:])
        self.width_s = WIDTHS_S[0]
        self._buckets: dict[int, Bucket] = {}
        self._first = self._last = 0

    def at(self, moment: float) -> Bucket:
        """The bucket of a moment, in seconds since the epoch."""
        place = int(moment // self.width_s)
        found = self._buckets.get(place)
        if found is not None:
            return found
        if not self._buckets:
            self._first = self._last = place
        first, last = min(self._first, place), max(self._last, place)
        while last - first >= MAX_BUCKETS:
            self._widen()
            place = int(moment // self.width_s)
            first, last = min(self._first, place), max(self._last, place)
        self._first, self._last = first, last
        return self._buckets.setdefault(place, Bucket())

    def __iter__(self) -> Iterator[tuple[float, Bucket]]:
        """(begin, bucket) of every span from the first to the last, empty ones too."""
        if self._buckets:
            for place in range(self._first, self._last + 1):
                yield float(place * self.width_s), self._buckets.get(place, Bucket())

    def _widen(self) -> None:
        before, self.width_s = self.width_s, next(self._widths)
        factor = self.width_s // before
        wide: dict[int, Bucket] = {}
        for place, bucket in self._buckets.items():
            into = wide.setdefault(place // factor, Bucket())
            into.jobs += bucket.jobs
            into.failed += bucket.failed
            into.completion_tokens += bucket.completion_tokens
            into.total_s.merge(bucket.total_s)
        self._buckets = wide
        self._first, self._last = self._first // factor, self._last // factor
