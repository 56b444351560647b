"""Enqueue jobs from Python and wait for their results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from contract.errors import InvalidInput, PrefillqError, RedisRefused, RedisUnreachable
from contract.ids import new_job_id, parse_address, tenant_of
from contract.job_store import Submitted
from contract.records import RedisJobStore
from contract.redis_client import connect
from contract.settings import Settings
from producer.bell import CeleryBell
from producer.enqueue import Enqueue, Parts, Terms, Wish, of_item
from producer.handle import JobHandle
from producer.notices import Watcher
from producer.patience import Patience
from producer.tracing import sending
from producer.validate import VariablesChecker
from templates.registry import Registry
from templates.rollouts.plain import check_key

# How long the clean-up after a failed submit may wait for Redis.
_UNDO_TIMEOUT_S = 1.0


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
        if settings is None:
            settings = Settings.load(redis_url=redis_url)
        elif redis_url is not None:
            settings = Settings.load(**{**settings.model_dump(), "redis_url": redis_url})
        self._client = connect(settings)
        self._undo_client = connect(
            settings, timeout_s=min(_UNDO_TIMEOUT_S, settings.redis_timeout_s)
        )
        self._parts = parts or Parts(
            store=RedisJobStore(self._client, settings),
            undo_store=RedisJobStore(self._undo_client, settings),
            versions=Registry(self._client, settings),
            bell=CeleryBell(settings),
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
    ) -> JobHandle:
        """Enqueue one job of `tenant/name`, `tenant/name@3` or `tenant/name@label`.

        The version is chosen now and stays. While a rollout is about the label, `sticky_key`
        decides: jobs with one key have one version until the next step. `deadline_s` counts from
        now and goes before the template's. Under the same idempotency key the same input gives the
        same job again, whatever has become of the label or version.

        Raises InvalidInput (nothing enqueued), NotFound (no such template), Conflict (the key
        was used with other input, or the queue is full), RedisUnreachable (the message says
        whether the job may have been enqueued).
        """
        keys = None if idempotency_key is None else [idempotency_key]
        sticky_keys = None if sticky_key is None else [sticky_key]
        terms = Terms(address=parse_address(template), deadline_s=deadline_s, use_cache=use_cache)
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
    ) -> list[JobHandle]:
        """Enqueue a job for each, in order and in few round trips.

        All are checked before the first is enqueued, each against the version that it gets. When
        one is refused or Redis goes away, those that no worker has taken yet are taken back.
        Raises as `submit` does; an InvalidInput names the item, counted from 0.
        """
        terms = Terms(address=parse_address(template), deadline_s=deadline_s, use_cache=use_cache)
        return self._submit(terms, list(variables), idempotency_keys, sticky_keys)

    def handle(self, job_id: str) -> JobHandle:
        """A handle of an earlier job. Raises InvalidInput unless it is a job id."""
        tenant_of(job_id)
        return JobHandle(job_id, self._parts.store, self._watcher, self._patience)

    def wait(
        self, handles: Collection[JobHandle], timeout: float | None = None
    ) -> Iterator[JobHandle]:
        """The handles, each once, as their jobs end (or turn out to have no record any more).

        One connection serves any number of handles. Raises TimedOut after `timeout` seconds,
        RedisUnreachable when Redis stays away.
        """
        by_id = {handle.id: handle for handle in handles}
        for job_id in self._watcher.ended(by_id.keys(), timeout):
            yield by_id[job_id]

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
        if keys is not None and (len(keys), len(set(keys))) != (len(inputs), len(inputs)):
            raise InvalidInput(
                "idempotency keys do not match the inputs",
                given=f"{len(keys)} keys, {len(set(keys))} different",
                expected=f"{len(inputs)} different keys",
            )
        if sticky_keys is not None and len(sticky_keys) != len(inputs):
            raise InvalidInput(
                "sticky keys do not match the inputs",
                given=f"{len(sticky_keys)} keys",
                expected=f"{len(inputs)}, one for each",
            )
        for key in sticky_keys or ():
            if key is not None:
                check_key("the sticky key", key)
        wishes = [
            Wish(
                job_id=new_job_id(terms.address.tenant),
                variables=plain,
                idempotency_key=None if keys is None else keys[place],
                sticky_key=None if sticky_keys is None else sticky_keys[place],
            )
            for place, plain in enumerate(self._plain(inputs))
        ]
        with sending(terms.address, [wish.job_id for wish in wishes]) as traceparent:
            submitted = self._enqueue(replace(terms, traceparent=traceparent), wishes)
        return [self.handle(one.job_id) for one in submitted]

    def _enqueue(self, terms: Terms, wishes: Sequence[Wish]) -> list[Submitted]:
        enqueue = Enqueue(self._parts, self._checker, terms, wishes)
        # Nothing is taken back between two tries: the ids are the jobs' identity, so a record that
        # a lost reply was about is found again.
        try:
            return self._patience.call(enqueue.run)
        except (RedisUnreachable, RedisRefused) as error:
            left = enqueue.withdraw()
            raise type(error)(
                error.problem,
                given=error.given,
                expected=error.expected,
                remedy=f"{error.remedy} {_what_is_left(left)}".lstrip(),
            ) from error
        except PrefillqError:
            enqueue.withdraw()
            raise

    def _plain(self, inputs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        for place, variables in enumerate(inputs):
            try:
                yield self._checker.plain(variables)
            except InvalidInput as error:
                if len(inputs) == 1:
                    raise
                raise of_item(place, error) from error


def _what_is_left(job_ids: Sequence[str]) -> str:
    if not job_ids:
        return "Nothing was enqueued."
    count = "The job" if len(job_ids) == 1 else f"{len(job_ids)} jobs"
    return (
        f"{count} may have been enqueued ({job_ids[0]}{', ...' if len(job_ids) > 1 else ''}); "
        "submitting again under the same idempotency key cannot enqueue it twice."
    )
