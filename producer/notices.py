"""Waiting for jobs to end: one connection and one thread, whatever the number of waiters.

Workers publish the id of every job that ends. A notice is a short cut that may be lost; the
records are polled too, so that a lost one only delays. Memory is one entry per job waited for.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Iterable, Iterator

from contract.errors import PrefillqError, RedisUnreachable, TimedOut
from contract.ids import tenant_of
from contract.job_store import JobStore, Notice, NoticeStream
from producer.patience import NONE, Patience

POLL_S = 1.0  # between looks at the records, for up to POLL_JOBS of them; longer for more
POLL_JOBS = 1000
OUTAGE_S = 30.0  # a wait survives a Redis that is away for this long
_IDLE_S = 5.0  # the connection stays open for this long when nobody waits
_TICK_S = 0.1  # how late a new tenant's notices may be asked for

_Wait = queue.SimpleQueue[str | Exception]


class Watcher:
    """Tells waiters which of their jobs have ended. Safe to share between threads."""

    def __init__(
        self,
        store: JobStore,
        *,
        poll_s: float = POLL_S,
        outage_s: float = OUTAGE_S,
        patience: Patience = NONE,
    ) -> None:
        self._patience = patience
        self._store = store
        self._poll_s = poll_s
        self._outage_s = max(outage_s, patience.seconds)
        self._waits: dict[str, list[_Wait]] = {}  # job id -> who waits for it
        self._tenants: set[str] = set()  # of all jobs ever waited for
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._trouble: RedisUnreachable | None = None  # while Redis is away
        self._trouble_since = 0.0
        # Used by the thread alone.
        self._stream: NoticeStream | None = None
        self._followed: set[str] = set()

    def ended(self, job_ids: Collection[str], timeout: float | None) -> Iterator[str]:
        """The ids, each once, as their jobs end or turn out to have no record.

        Raises TimedOut after `timeout` seconds (None: no limit), and RedisUnreachable when
        Redis is away at the start, at the timeout, or for longer than `outage_s`.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        pending = set(job_ids)
        total = len(pending)
        wait: _Wait = queue.SimpleQueue()
        self._add(wait, pending)
        try:
            # After the registration, so that no job can end unseen between the two.
            patient_until = self._patience.until()
            ended = self._patience.call(
                lambda: list(self._ended_now(tuple(pending))),
                until=patient_until if give_up is None else min(patient_until, give_up),
            )
            for job_id in ended:
                pending.discard(job_id)
                yield job_id
            while pending:
                job_id = self._next(wait, give_up, pending, total)
                if job_id in pending:
                    pending.discard(job_id)
                    yield job_id
        finally:
            self._remove(wait, job_ids)

    def close(self) -> None:
        """End the thread; whoever still waits gets an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        self._tell_all(PrefillqError("the producer was closed while waiting for jobs"))
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _next(self, wait: _Wait, give_up: float | None, pending: set[str], total: int) -> str:
        try:
            item = wait.get(
                timeout=None
                if give_up is None
                else min(max(0.0, give_up - time.monotonic()), threading.TIMEOUT_MAX)
            )
        except queue.Empty:
            if self._trouble is not None:
                raise self._trouble from None
            raise TimedOut(
                f"{len(pending)} of {total} job(s) have not ended in time",
                given=f"still waiting for {min(pending)}",
                remedy="The jobs go on: wait again, or cancel them.",
            ) from None
        if isinstance(item, Exception):
            raise item
        return item

    def _add(self, wait: _Wait, job_ids: Iterable[str]) -> None:
        with self._changed:
            if self._closed:
                raise PrefillqError("the producer is closed", remedy="Make a new one.")
            for job_id in job_ids:
                self._tenants.add(tenant_of(job_id))
                self._waits.setdefault(job_id, []).append(wait)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="prefillq-watcher", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def _remove(self, wait: _Wait, job_ids: Iterable[str]) -> None:
        with self._changed:
            for job_id in job_ids:
                waits = self._waits.get(job_id, [])
                if wait in waits:
                    waits.remove(wait)
                if not waits:
                    self._waits.pop(job_id, None)

    def _ended_now(self, job_ids: Collection[str]) -> Iterator[str]:
        ids = tuple(job_ids)
        for job_id, state in zip(ids, self._store.states(ids), strict=True):
            if state is None or state.ended:
                yield job_id

    def _tell(self, job_id: str) -> None:
        with self._changed:
            # Told once and forgotten, however slowly the waiter takes it.
            for wait in self._waits.pop(job_id, ()):
                wait.put(job_id)

    def _tell_all(self, error: Exception) -> None:
        with self._changed:
            for wait in {id(w): w for waits in self._waits.values() for w in waits}.values():
                wait.put(error)

    def _watch(self) -> None:
        try:
            while self._waited_for():
                self._watch_once()
        except Exception as error:  # noqa: BLE001 - handed to those who wait
            with self._changed:
                self._thread = None
                self._tell_all(error)
        finally:
            self._drop_stream()

    def _waited_for(self) -> bool:
        """Block until somebody waits; False once closed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._waits, timeout=_IDLE_S):
                # Notices that nobody reads would pile up in Redis.
                self._drop_stream()
                self._changed.wait_for(lambda: self._closed or self._waits)
            return not self._closed

    def _watch_once(self) -> None:
        """Listen until the records are due for a look, then look."""
        with self._changed:
            jobs = len(self._waits)
        due = time.monotonic() + self._poll_s * max(1.0, jobs / POLL_JOBS)
        while time.monotonic() < due:
            with self._changed:
                if self._closed or not self._waits:
                    return
                new_tenants = self._tenants - self._followed
            notice = self._listen(new_tenants)
            if notice is not None and notice.job_id is not None:
                self._tell(notice.job_id)
            elif notice is not None:
                # What ended before this tenant's notices began to arrive.
                self._poll(notice.tenant)
        self._poll()

    def _listen(self, new_tenants: Iterable[str]) -> Notice | None:
        try:
            if self._stream is None:
                self._stream = self._store.notices()
            for tenant in new_tenants:
                self._stream.follow(tenant)
                self._followed.add(tenant)
            return self._stream.next(_TICK_S)
        except PrefillqError:
            # The poll finds what ended meanwhile, and says so if Redis is away for long.
            self._drop_stream()
            time.sleep(_TICK_S)
            return None

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        self._followed.clear()
        if stream is not None:
            stream.close()

    def _poll(self, tenant: str | None = None) -> None:
        with self._changed:
            job_ids = [
                job_id
                for job_id in self._waits
                if tenant is None or job_id.startswith(f"{tenant}.")
            ]
        try:
            ended = list(self._ended_now(job_ids))
        except RedisUnreachable as error:
            self._note_trouble(error)
            return
        self._trouble = None
        for job_id in ended:
            self._tell(job_id)

    def _note_trouble(self, error: RedisUnreachable) -> None:
        now = time.monotonic()
        if self._trouble is None:
            self._trouble_since = now
        self._trouble = error
        if now - self._trouble_since >= self._outage_s:
            self._tell_all(error)
