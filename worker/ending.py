"""How a worker ends: with its jobs finished, with them given back, or, when it hangs, at once."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from contract.errors import PrefillqError
from contract.logs import get_logger
from worker.leases import LeaseKeeper

log = get_logger(__name__)


class DeviceLost(PrefillqError):
    """The device hangs or cannot be used any more; whoever supervises may look at the host."""

    code = "device_lost"
    exit_code = 9


class Shutdown:
    """Told once, the worker finishes what the grace period allows; told twice, it gives all back.

    `request` may be called from a signal handler. A third one ends the process there and then:
    the leases of what still ran will run out.
    """

    def __init__(
        self, leases: LeaseKeeper, *, grace_s: float, end: Callable[[int], None] = os._exit
    ) -> None:
        self._leases = leases
        self._grace_s = grace_s
        self._end = end
        self._asked = threading.Event()
        self._now = threading.Event()
        threading.Thread(target=self._follow, name="shutdown", daemon=True).start()

    @property
    def draining(self) -> bool:
        """True once no job may be taken any more."""
        return self._asked.is_set()

    def request(self, *, at_once: bool = False) -> None:
        """Ask the worker to end. Repeated or with `at_once` it gives its jobs back."""
        if self._now.is_set():
            self._end(1)
        if self._asked.is_set() or at_once:
            self._now.set()
        self._asked.set()

    def _follow(self) -> None:
        self._asked.wait()
        log.info("worker_draining", running=self._leases.running, grace_s=self._grace_s)
        grace_over = not self._now.wait(self._grace_s)
        # Also those claimed just before the request was seen.
        while running := self._leases.running:
            log.info("jobs_returned", running=running, grace_over=grace_over)
            self._leases.return_all()
            threading.Event().wait(0.2)


class Watchdog:
    """Ends the process when jobs run and none has made a step for `limit_s` seconds.

    A wedged device answers nothing and raises nothing, while leases are renewed: without this its
    jobs would hang until their deadlines. The process is beyond a clean stop; the leases run out
    and others take the jobs.
    """

    def __init__(
        self, leases: LeaseKeeper, *, limit_s: float, end: Callable[[int], None] = os._exit
    ) -> None:
        self._leases = leases
        self._limit_s = limit_s
        self._end = end

    def look(self) -> None:
        """End the process if the engine has been silent for too long."""
        if (silent_s := self._leases.silent_s) > self._limit_s:
            log.error("device_wedged", silent_s=round(silent_s), running=self._leases.running)
            sys.stderr.flush()
            self._end(DeviceLost.exit_code)
