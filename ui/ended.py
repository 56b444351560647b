"""Which jobs ended lately: heard from the notices that every commit publishes.

Redis keeps no list of ended jobs, and to write one would cost every job a command. So what is known
is what ended while the page's process was listening.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from contract.errors import InvalidInput, PrefillqError
from contract.ids import tenant_of
from contract.job_store import NoticeStream
from contract.logs import get_logger
from ui.look import MAX_ENDED

log = get_logger(__name__)

_LOOK_S = 0.5
_AGAIN_S = 2.0


class Ended:
    """Listens in a thread of its own, on one connection."""

    def __init__(self, open_stream: Callable[[], NoticeStream]) -> None:
        self._open_stream = open_stream
        self._lock = threading.Lock()
        self._ids: dict[str, deque[str]] = {}
        self._wanted: frozenset[str] = frozenset()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ended", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def follow(self, tenants: Iterable[str]) -> None:
        """Listen to these too, from now on."""
        with self._lock:
            self._wanted |= frozenset(tenants)

    def ids(self, tenant: str) -> list[str]:
        """Its jobs that ended, the last first; at most MAX_ENDED."""
        with self._lock:
            return list(self._ids.get(tenant, ()))

    def hear(self, tenant: str, job_id: str) -> None:
        """A job ended. Who may publish may publish anything: what is no id of its is left out."""
        try:
            if tenant_of(job_id) != tenant:
                return
        except InvalidInput:
            return
        with self._lock:
            known = self._ids.setdefault(tenant, deque(maxlen=MAX_ENDED))
            if job_id in known:  # a dead one that was tried again
                known.remove(job_id)
            known.appendleft(job_id)

    def _run(self) -> None:
        while not self._stopped.is_set():
            stream = self._open_stream()
            try:
                self._listen(stream)
            except PrefillqError as error:
                log.info("notices_lost", error=error.code)  # the page itself says it aloud
                self._stopped.wait(_AGAIN_S)
            finally:
                stream.close()

    def _listen(self, stream: NoticeStream) -> None:
        followed: set[str] = set()
        while not self._stopped.is_set():
            with self._lock:
                new = self._wanted - followed
            for tenant in sorted(new):
                stream.follow(tenant)
            followed |= new
            if not followed:
                self._stopped.wait(_LOOK_S)
                continue
            notice = stream.next(_LOOK_S)
            if notice is not None and notice.job_id is not None:
                self.hear(notice.tenant, notice.job_id)
