"""Percentiles of any number of values in bounded memory.

Up to a limit all values are kept and percentiles are exact. Beyond it they are counted in buckets
that grow by 1 %, so that a percentile is within 0.5 % of the exact one (DDSketch: Masson, Rim, Lee,
"DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees", VLDB 2019).
Unlike a reservoir, this has no luck in it: the same lines give the same numbers in every order.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Self

RELATIVE_ERROR = 0.005
EXACT_UP_TO = 1_000

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_BUCKET = 1 / math.log(_GAMMA)
_SMALLEST = 1e-9  # logs have six digits; less than this is 0


class Mean:
    """Of any number of values, in a few bytes."""

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one."""
        self.count += 1
        self.total += value

    @property
    def value(self) -> float | None:
        """None without values."""
        return self.total / self.count if self.count else None


class Distribution:
    """Values of 0 or more. At most about 3,800 buckets for values up to a year in seconds."""

    __slots__ = ("_buckets", "_exact_up_to", "_values", "count", "largest", "smallest", "total")

    def __init__(self, *, exact_up_to: int = EXACT_UP_TO) -> None:
        self._exact_up_to = exact_up_to
        self._values: list[float] | None = []  # None once there were too many
        self._buckets: Counter[int | None] = Counter()  # None: 0
        self.count = 0
        self.total = 0.0
        self.smallest = math.inf
        self.largest = 0.0

    @property
    def exact(self) -> bool:
        """True while percentiles have no error."""
        return self._values is not None

    @property
    def mean(self) -> float | None:
        """None without values."""
        return self.total / self.count if self.count else None

    def add(self, value: float) -> None:
        """Count a finite value of 0 or more."""
        self.count += 1
        self.total += value
        if value < self.smallest:  # noqa: PLR1730 - in half the time
            self.smallest = value
        if value > self.largest:  # noqa: PLR1730
            self.largest = value
        if self._values is None:
            self._buckets[_bucket(value)] += 1
            return
        self._values.append(value)
        if len(self._values) > self._exact_up_to:
            self._fold()

    def merge(self, other: Self) -> None:
        """Count what the other one has counted."""
        self.count += other.count
        self.total += other.total
        self.smallest = min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)
        if self._values is not None:
            self._values.extend(other._values or ())
            if other._values is None or len(self._values) > self._exact_up_to:
                self._fold()
        else:
            self._buckets.update(map(_bucket, other._values or ()))
        self._buckets.update(other._buckets)

    def percentile(self, percent: float) -> float | None:
        """The smallest value that at least `percent` of 100 do not exceed; None without values."""
        if not self.count:
            return None
        rank = max(1, math.ceil(self.count * percent / 100))
        if self._values is not None:
            return sorted(self._values)[rank - 1]
        if rank == self.count:
            return self.largest
        seen = 0
        for bucket in sorted(self._buckets, key=lambda at: -math.inf if at is None else at):
            seen += self._buckets[bucket]
            if seen >= rank:
                value = 0.0 if bucket is None else 2 * _GAMMA**bucket / (_GAMMA + 1)
                return min(max(value, self.smallest), self.largest)
        return self.largest

    def _fold(self) -> None:
        self._buckets.update(map(_bucket, self._values or ()))
        self._values = None


def _bucket(value: float) -> int | None:
    return None if value < _SMALLEST else math.ceil(math.log(value) * _PER_BUCKET)
