"""Enqueue jobs from Python and wait for their results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from contract.awaited import run_now
from contract.calls import BlockingServer
from contract.ids import tenant_of
from contract.records import RedisJobStore
from contract.redis_client import connect
from contract.settings import Settings
from producer.bell import CeleryBell
from producer.desk import Parts, desk_of
from producer.enqueue import Enqueue, submit
from producer.handle import JobHandle
from producer.notices import Watcher
from producer.patience import Pace, Patience, blocking_sleep
from producer.refused import RefusedOutcomes
from producer.validate import VariablesChecker
from producer.wishes import Terms, terms_of, wishes_of
from templates.registry import Registry

# How long the clean-up after a failed submit may wait for Redis.
UNDO_TIMEOUT_S = 1.0


def settings_for(settings: Settings | None, redis_url: str | None) -> Settings:
    """The settings of a producer that was given these."""
    if settings is None:
        return Settings.load(redis_url=redis_url)
    if redis_url is None:
        return settings
    return Settings.load(**{**settings.model_dump(), "redis_url": redis_url})


class Producer:
    """Submits jobs and hands out handles. Safe to share between threads.

    Makes its connections on first use. Every call ends within 5 seconds when Redis is away
    (with the default `redis_timeout_s`), except a wait that was asked to last longer. With
    `patience_s` every call goes on trying for that long while Redis cannot be reached; a job
    is enqueued once however often that took.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        redis_url: str | None = None,
        patience_s: float = 0.0,
        parts: Parts | None = None,
    ) -> None:
        settings = settings_for(settings, redis_url)
        self._client = connect(settings)
        self._undo_client = connect(
            settings, timeout_s=min(UNDO_TIMEOUT_S, settings.redis_timeout_s)
        )
        self._parts = parts or Parts(
            store=RedisJobStore(self._client, settings),
            undo_store=RedisJobStore(self._undo_client, settings),
            versions=Registry(self._client, settings),
            bell=CeleryBell(settings),
            outcomes=RefusedOutcomes(BlockingServer(self._client, settings)),
        )
        self._patience = Patience(patience_s)
        self._watcher = Watcher(self._parts.store, patience=self._patience)
        self._checker = VariablesChecker(settings.max_variables_bytes)

    def submit(
        self,
        template: str,
        variables: Mapping[str, Any],
        *,
        idempotency_key: str | None = None,
        sticky_key: str | None = None,
        deadline_s: float | None = None,
        use_cache: bool = True,
        stream: bool = False,
    ) -> JobHandle:
        """Enqueue one job of `tenant/name`, `tenant/name@3` or `tenant/name@label`.

        The version is chosen now and stays. While a rollout is about the label, `sticky_key`
        decides: jobs with one key have one version until the next step. `deadline_s` counts from
        now and goes before the template's. Under the same idempotency key the same input gives the
        same job again, whatever has become of the label or version. With `stream` the answer can be
        read while it is written, by the handle's `stream()`.

        Raises InvalidInput (nothing enqueued), NotFound (no such template), Conflict (the key
        was used with other input, or the queue is full), RedisUnreachable (the message says
        whether the job may have been enqueued).
        """
        keys = None if idempotency_key is None else [idempotency_key]
        sticky_keys = None if sticky_key is None else [sticky_key]
        terms = terms_of(template, deadline_s, use_cache=use_cache, stream=stream)
        [handle] = self._submit(terms, [variables], keys, sticky_keys)
        return handle

    def submit_many(
        self,
        template: str,
        variables: Iterable[Mapping[str, Any]],
        *,
        idempotency_keys: Sequence[str] | None = None,
        sticky_keys: Sequence[str | None] | None = None,
        deadline_s: float | None = None,
        use_cache: bool = True,
        stream: bool = False,
    ) -> list[JobHandle]:
        """Enqueue a job for each, in order and in few round trips.

        All are checked before the first is enqueued, each against the version that it gets. When
        one is refused or Redis goes away, those that no worker has taken yet are taken back.
        Raises as `submit` does; an InvalidInput names the item, counted from 0.
        """
        terms = terms_of(template, deadline_s, use_cache=use_cache, stream=stream)
        return self._submit(terms, list(variables), idempotency_keys, sticky_keys)

    def handle(self, job_id: str) -> JobHandle:
        """A handle of an earlier job. Raises InvalidInput unless it is a job id."""
        tenant_of(job_id)
        return JobHandle(job_id, self._parts.store, self._watcher, self._patience)

    def as_completed(
        self, handles: Collection[JobHandle], timeout: float | None = None
    ) -> Iterator[JobHandle]:
        """The handles, each once, as their jobs end (or turn out to have no record any more).

        One connection serves any number of handles. Raises TimedOut after `timeout` seconds,
        RedisUnreachable when Redis stays away.
        """
        by_id = {handle.id: handle for handle in handles}
        for job_id in self._watcher.ended(by_id.keys(), timeout):
            yield by_id[job_id]

    def wait(
        self, handles: Collection[JobHandle], timeout: float | None = None
    ) -> Iterator[JobHandle]:
        """`as_completed` under its older name."""
        return self.as_completed(handles, timeout)

    def close(self) -> None:
        """Close all connections. Jobs go on."""
        self._watcher.close()
        self._parts.close()
        self._client.close()
        self._undo_client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _submit(
        self,
        terms: Terms,
        inputs: Sequence[Mapping[str, Any]],
        keys: Sequence[str] | None,
        sticky_keys: Sequence[str | None] | None,
    ) -> list[JobHandle]:
        pace = Pace(blocking_sleep)
        wishes = run_now(wishes_of(self._checker, terms, inputs, keys, sticky_keys, pace=pace))
        enqueue = Enqueue(desk_of(self._parts), self._checker, terms, wishes, pace=pace)
        job_ids = run_now(submit(enqueue, self._patience, sleep=blocking_sleep))
        return [self.handle(job_id) for job_id in job_ids]
