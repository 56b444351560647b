"""Messages that were no doorbells: counted, for the worker's report, and logged without content.

Anybody who may push to a queue can put anything there. Such a message is dropped; its body is
neither executed nor written to a log, where it could be what a log must not hold.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal

from contract.logs import get_logger

log = get_logger(__name__)

Reason = Literal[
    "unreadable",  # no message at all
    "content",  # another serializer than msgpack, or a body that is damaged
    "unknown_task",
    "no_task",  # a message without a task, or with headers that are none
    "arguments",  # our task, but not with one job id
    "no_doorbell",  # whatever else `worker.doorbell` does not take
]


class Refusals:
    """Counts of one process. Thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, reason: Reason, *, error: str = "") -> None:
        """Count one refused message, and log why."""
        with self._lock:
            self._counts[reason] += 1
        log.warning("message_refused", reason=reason, error=error[:200])

    def counts(self) -> dict[str, int]:
        """How many were refused so far, by reason."""
        with self._lock:
            return dict(self._counts)


REFUSALS = Refusals()  # one for the process: kombu makes its channels itself, and they count too
