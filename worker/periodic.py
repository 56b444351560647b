"""A thread that does one thing again and again, and stops at once when told to."""

from __future__ import annotations

import threading
from collections.abc import Callable

from contract.errors import PrefillqError
from contract.logs import get_logger

log = get_logger(__name__)


class Periodic:
    """Calls `action` every `interval_s`; a failing call is tried again next time.

    Redis may be away for a while, and none of what runs here may end because of that. The first
    failure and the recovery are logged, not every try between the two.
    """

    def __init__(self, name: str, action: Callable[[], object], *, interval_s: float) -> None:
        self._action = action
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._fails = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end and wait for the call in progress, if there is one."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=10)

    def _loop(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._action()
            except PrefillqError as error:
                if not self._fails:
                    log.warning("periodic_failed", thread=self._thread.name, error=str(error))
                self._fails = True
            except Exception:
                log.exception("periodic_crashed", thread=self._thread.name)
            else:
                if self._fails:
                    log.info("periodic_works_again", thread=self._thread.name)
                self._fails = False
