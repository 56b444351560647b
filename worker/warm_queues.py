"""Queues whose jobs find their prefix in memory, from what a worker holds and the labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from worker.catalog import LabelledQueues


class Held(Protocol):
    """What knows the versions in memory; `worker.prefixes.PrefixService` is one."""

    def held(self) -> frozenset[str]: ...


class WarmQueues:
    """Call it for the queues. Asked before each look into the queues, it counts only what changed.

    A queue is warm when the worker holds the prefix of a version that one of the template's labels
    points to, or when such a version has no prefix that could be held.
    """

    def __init__(self, *, prefixes: Held, labelled: Callable[[], LabelledQueues]) -> None:
        self._prefixes = prefixes
        self._labelled = labelled
        self._of: tuple[frozenset[str], LabelledQueues] | None = None
        self._warm: frozenset[str] = frozenset()

    def __call__(self) -> frozenset[str]:
        held, labelled = self._prefixes.held(), self._labelled()
        if self._of is None or self._of[0] is not held or self._of[1] is not labelled:
            queue_of = labelled.queue_of
            self._warm = labelled.bare | {queue_of[d] for d in held if d in queue_of}
            self._of = (held, labelled)
        return self._warm
