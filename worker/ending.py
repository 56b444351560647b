"""How a worker ends: with its jobs finished, with them given back, or, when it hangs, at once."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable

from contract.errors import PrefillqError
from contract.logs import get_logger
from worker.leases import LeaseKeeper

log = get_logger(__name__)

_LOOK_S = 0.1


class DeviceLost(PrefillqError):
    """The device hangs or cannot be used any more; whoever supervises may look at the host."""

    code = "device_lost"
    exit_code = 9


class Shutdown:
    """Told once, the worker finishes what the grace period allows; told twice, it gives all back.

    `request` may be called from a signal handler, which may come in the midst of another, so it
    takes no lock. A third one ends the process there and then: the leases of what still ran will
    run out.
    """

    def __init__(
        self, leases: LeaseKeeper, *, grace_s: float, end: Callable[[int], None] = os._exit
    ) -> None:
        self._leases = leases
        self._grace_s = grace_s
        self._end = end
        self._asked = False
        self._now = False
        threading.Thread(target=self._follow, name="shutdown", daemon=True).start()

    @property
    def draining(self) -> bool:
        """True once no job may be taken any more."""
        return self._asked

    def request(self, *, at_once: bool = False) -> None:
        """Ask the worker to end. Repeated or with `at_once` it gives its jobs back."""
        if self._now:
            self._end(1)
        if self._asked or at_once:
            self._now = True
        self._asked = True

    def _follow(self) -> None:
        while not self._asked:
            time.sleep(_LOOK_S)
        log.info("worker_draining", running=self._leases.running, grace_s=self._grace_s)
        grace_over_at = time.monotonic() + self._grace_s
        while not self._now and time.monotonic() < grace_over_at:
            time.sleep(_LOOK_S)
        # To the very end: a claim that was on its way may come yet.
        while True:
            if running := self._leases.running:
                log.info("jobs_returned", running=running, grace_over=not self._now)
                self._leases.return_all()
            time.sleep(_LOOK_S)


class Watchdog:
    """Ends the process when jobs run and neither any of them nor the engine has made a step for
    `limit_s` seconds, or when one that was to stop has made none for four times as long.

    A wedged device answers nothing and raises nothing, while leases are renewed: without this its
    jobs would hang for ever. A prefix that takes long is no such thing: jobs wait for it, and the
    engine steps. The process is beyond a clean stop; the leases run out and others take the jobs.
    """

    def __init__(
        self,
        leases: LeaseKeeper,
        *,
        limit_s: float,
        stepped_at: Callable[[], float] = lambda: -math.inf,  # the engine, on the monotonic clock
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._leases = leases
        self._limit_s = limit_s
        self._stepped_at = stepped_at
        self._end = end

    def look(self) -> None:
        """End the process if the engine has been silent for too long."""
        silent_s = min(self._leases.silent_s, time.monotonic() - self._stepped_at())
        stuck_s = self._leases.stuck_s
        if silent_s > self._limit_s or stuck_s > 4 * self._limit_s:
            log.error(
                "device_wedged",
                silent_s=round(silent_s),
                stuck_s=round(stuck_s),
                running=self._leases.running,
            )
            sys.stderr.flush()
            self._end(DeviceLost.exit_code)
