"""Which jobs run beside which: a suspect, whose workers died twice, runs alone.

A job that ends its process takes all that run beside it with it. They would be taken again
together, by the same worker, until none had an attempt left. So from the third attempt on such a
job waits for those that run, and others wait for it; which of them it was then shows by itself.

Any tenant can have suspects, and no tenant may have the worker for itself: when one has run alone
and others were kept out, these have as long as it took before the next one's turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_S = 0.2  # between looks at whether to give up


class Company:
    """The jobs that run in one process. A turn begins before its job is claimed: what waits here
    has lost no attempt when the process ends.
    """

    def __init__(
        self,
        *,
        give_up: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._give_up = give_up
        self._clock = clock
        self._changed = threading.Condition()
        self._together = 0
        self._alone = False
        self._waiting = 0  # to run alone
        self._kept_out = 0  # wait because one does
        self._asked_at = 0.0  # when the first of them began to keep others out
        self._others_until = 0.0  # until when nobody is kept out

    @contextmanager
    def together(self) -> Iterator[None]:
        """Beside all others that are in here. Waits no longer once `give_up` is true."""
        with self._changed:
            self._kept_out += 1
            try:
                self._wait_for(lambda: not self._alone and not self._keeps_out())
            finally:
                self._kept_out -= 1
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Beside nobody. Waits no longer once `give_up` is true."""
        with self._changed:
            self._waiting += 1
            try:
                self._wait_for(self._may_be_alone)
            finally:
                self._waiting -= 1
            self._alone = True
            since = self._asked_at or self._clock()
            self._asked_at = 0.0
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                now = self._clock()
                self._others_until = now + (now - since if self._kept_out else 0.0)
                self._changed.notify_all()

    def _may_be_alone(self) -> bool:
        if self._clock() < self._others_until:
            return False
        self._asked_at = self._asked_at or self._clock()
        return not self._alone and self._together == 0

    def _keeps_out(self) -> bool:
        return self._waiting > 0 and self._clock() >= self._others_until

    def _wait_for(self, turn: Callable[[], bool]) -> None:
        while not turn() and not self._give_up():
            self._changed.wait(_LOOK_S)
