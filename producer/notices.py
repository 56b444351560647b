"""Waiting for jobs to end: one connection and one thread, whatever the number of waiters.

Workers publish the id of every job that ends. A notice is a short cut that may be lost; the
records are polled too, so that a lost one only delays. Memory is one entry per job waited for.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Collection, Iterable, Iterator

from contract.errors import PrefillqError, RedisUnreachable
from contract.job_store import JobStore, Notice, NoticeStream
from producer.patience import NONE, Patience
from producer.waits import (
    OUTAGE_S,
    POLL_S,
    TICK_S,
    Outage,
    Waits,
    closed,
    closed_while_waiting,
    ended_of,
    in_vain,
    poll_after_s,
)

_IDLE_S = 5.0  # the connection stays open for this long when nobody waits

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
        self._outage = Outage(max(outage_s, patience.seconds))
        self._waits: Waits[_Wait] = Waits()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None
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
        self._tell_all(closed_while_waiting())
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
            error = in_vain(self._outage, pending, total)
            raise error from error.__cause__
        if isinstance(item, Exception):
            raise item
        return item

    def _add(self, wait: _Wait, job_ids: Iterable[str]) -> None:
        with self._changed:
            if self._closed:
                raise closed()
            self._waits.add(wait, job_ids)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="prefillq-watcher", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def _remove(self, wait: _Wait, job_ids: Iterable[str]) -> None:
        with self._changed:
            self._waits.remove(wait, job_ids)

    def _ended_now(self, job_ids: Collection[str]) -> Iterator[str]:
        ids = tuple(job_ids)
        return ended_of(ids, self._store.states(ids))

    def _tell(self, job_id: str) -> None:
        with self._changed:
            self._waits.tell(job_id)

    def _tell_all(self, error: Exception) -> None:
        with self._changed:
            self._waits.tell_all(error)

    def _watch(self) -> None:
        try:
            while self._waited_for():
                self._watch_once()
            self._drop_stream()
        except Exception as error:  # noqa: BLE001 - handed to those who wait
            try:
                self._drop_stream()  # while this thread is the only one: the next makes its own
            finally:
                with self._changed:
                    self._thread = None
                    self._tell_all(error)

    def _waited_for(self) -> bool:
        """Block until somebody waits; False once closed."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._closed or len(self._waits) > 0, timeout=_IDLE_S
            ):
                # Notices that nobody reads would pile up in Redis.
                self._drop_stream()
                self._changed.wait_for(self._wanted)
            return not self._closed

    def _wanted(self) -> bool:
        return self._closed or len(self._waits) > 0

    def _watch_once(self) -> None:
        """Listen until the records are due for a look, then look."""
        with self._changed:
            jobs = len(self._waits)
        due = time.monotonic() + poll_after_s(self._poll_s, jobs)
        while time.monotonic() < due:
            with self._changed:
                if self._closed or not self._waits:
                    return
                new_tenants = self._waits.tenants - self._followed
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
            return self._stream.next(TICK_S)
        except PrefillqError:
            # The poll finds what ended meanwhile, and says so if Redis is away for long.
            self._drop_stream()
            time.sleep(TICK_S)
            return None

    def _drop_stream(self) -> None:
        stream, self._stream = self._stream, None
        self._followed.clear()
        if stream is not None:
            stream.close()

    def _poll(self, tenant: str | None = None) -> None:
        with self._changed:
            job_ids = self._waits.jobs(tenant)
        try:
            ended = list(self._ended_now(job_ids))
        except RedisUnreachable as error:
            if self._outage.note(error, time.monotonic()):
                self._tell_all(error)
            return
        self._outage.over()
        for job_id in ended:
            self._tell(job_id)
