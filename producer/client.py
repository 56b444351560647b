"""Enqueue jobs from Python and wait for their results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from contract.canonical import digest
from contract.errors import InvalidInput, PrefillqError, RedisRefused, RedisUnreachable
from contract.ids import TemplateAddress, new_job_id, parse_address, tenant_of
from contract.job_store import JobStore, Submission, Submitted, check_submission
from contract.keys import queue as queue_name
from contract.records import RedisJobStore
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import Job, JobState, VersionRef
from producer.bell import Bell, CeleryBell, Ring
from producer.handle import JobHandle
from producer.notices import Watcher
from producer.patience import Patience
from producer.validate import VariablesChecker
from templates.registry import Registry
from templates.version import PublishedVersion

# How long the clean-up after a failed submit may wait for Redis.
_UNDO_TIMEOUT_S = 1.0


class Versions(Protocol):
    """Where a producer finds templates; `templates.registry.Registry` is one."""

    def resolve(self, address: TemplateAddress) -> VersionRef: ...
    def get(self, ref: VersionRef) -> PublishedVersion: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a producer works with. Tests pass parts that need no Redis."""

    store: JobStore
    undo_store: JobStore  # the same records, asked with less patience
    versions: Versions
    bell: Bell

    def close(self) -> None:
        self.bell.close()


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
        deadline_s: float | None = None,
        use_cache: bool = True,
    ) -> JobHandle:
        """Enqueue one job of `tenant/name`, `tenant/name@3` or `tenant/name@label`.

        The version is resolved now and stays. `deadline_s` counts from now and goes before the
        template's. Under the same idempotency key the same input gives the same job again.

        Raises InvalidInput (nothing enqueued), NotFound (no such template), Conflict (the key
        was used with other input, or the queue is full), RedisUnreachable (the message says
        whether the job may have been enqueued).
        """
        keys = None if idempotency_key is None else [idempotency_key]
        [handle] = self._submit(template, [variables], keys, deadline_s, use_cache)
        return handle

    def submit_many(
        self,
        template: str,
        variables: Iterable[Mapping[str, Any]],
        *,
        idempotency_keys: Sequence[str] | None = None,
        deadline_s: float | None = None,
        use_cache: bool = True,
    ) -> list[JobHandle]:
        """Enqueue a job for each, in order and in few round trips.

        All are checked before the first is enqueued, and all have the same version. When one
        is refused or Redis goes away, those that no worker has taken yet are taken back.
        Raises as `submit` does; an InvalidInput names the item, counted from 0.
        """
        return self._submit(template, list(variables), idempotency_keys, deadline_s, use_cache)

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
        template: str,
        inputs: Sequence[Mapping[str, Any]],
        keys: Sequence[str] | None,
        deadline_s: float | None,
        use_cache: bool,
    ) -> list[JobHandle]:
        if keys is not None and (len(keys), len(set(keys))) != (len(inputs), len(inputs)):
            raise InvalidInput(
                "idempotency keys do not match the inputs",
                given=f"{len(keys)} keys, {len(set(keys))} different",
                expected=f"{len(inputs)} different keys",
            )
        address = parse_address(template)
        until = self._patience.until()
        versions = self._parts.versions
        version = self._patience.call(lambda: versions.get(versions.resolve(address)), until=until)
        queue = queue_name(address.tenant, address.name, version.model_digest)
        limits = version.spec.limits
        submissions = [
            Submission(
                job=Job(
                    id=new_job_id(address.tenant),
                    ref=version.ref,
                    queue=queue,
                    variables=variables,
                    use_cache=use_cache,
                ),
                input_digest=_input_digest(address, variables, use_cache=use_cache),
                idempotency_key=None if keys is None else keys[index],
                deadline_s=limits.deadline_s if deadline_s is None else deadline_s,
                max_queue=limits.max_queue,
            )
            for index, variables in enumerate(self._checked(version, inputs))
        ]
        for submission in submissions:
            check_submission(submission)
        submitted = self._enqueue(submissions, until=until)
        return [self.handle(one.job_id) for one in submitted]

    def _checked(
        self, version: PublishedVersion, inputs: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        checked = []
        for index, variables in enumerate(inputs):
            try:
                checked.append(self._checker.check(version, variables))
            except InvalidInput as error:
                if len(inputs) == 1:
                    raise
                raise InvalidInput(
                    f"item {index}: {error.problem}",
                    given=error.given,
                    expected=error.expected,
                    remedy=error.remedy,
                ) from error
        return checked

    def _enqueue(self, submissions: Sequence[Submission], *, until: float) -> list[Submitted]:
        """Write all records and ring for all. On any trouble take back what can be.

        Nothing is taken back between two tries: the ids are the jobs' identity, so a record that
        a lost reply was about is found again.
        """
        try:
            return self._patience.call(lambda: self._write_and_ring(submissions), until=until)
        except (RedisUnreachable, RedisRefused) as error:
            left = self._withdraw(submissions)
            raise type(error)(
                error.problem,
                given=error.given,
                expected=error.expected,
                remedy=f"{error.remedy} {_what_is_left(left)}".lstrip(),
            ) from error

    def _write_and_ring(self, submissions: Sequence[Submission]) -> list[Submitted]:
        outcomes = self._parts.store.submit_many(submissions)
        submitted = [o for o in outcomes if isinstance(o, Submitted)]
        refusals = [o for o in outcomes if isinstance(o, PrefillqError)]
        if refusals:
            # What Redis itself would not do may be tried again; that is not taken back yet.
            if not isinstance(refusals[0], RedisUnreachable | RedisRefused):
                self._withdraw(submissions)
            raise refusals[0]
        self._parts.bell.ring(
            Ring(queue=outcome.queue, job_id=outcome.job_id)
            for outcome in submitted
            # A job found by its key is rung again: its first ring may have been lost.
            if outcome.state is JobState.QUEUED
        )
        return submitted

    def _withdraw(self, submissions: Sequence[Submission]) -> list[str]:
        """Erase the records of these submits; the ids of those that may still exist."""
        left: list[str] = []
        for index, submission in enumerate(submissions):
            job_id = submission.job.id
            try:
                gone = self._parts.undo_store.withdraw(
                    job_id, idempotency_key=submission.idempotency_key
                )
            except PrefillqError:
                # Redis does not answer: one timeout is enough, and the caller is told.
                return left + [s.job.id for s in submissions[index:]]
            if not gone:
                left.append(job_id)
        return left


def _input_digest(
    address: TemplateAddress, variables: Mapping[str, Any], *, use_cache: bool
) -> str:
    """Digest of what the caller asked for, not of the version it came to.

    So a retry under the same key finds its job also when a label has moved meanwhile.
    """
    template = f"{address.tenant}/{address.name}@{address.version or address.label}"
    return digest({"template": template, "variables": variables, "use_cache": use_cache})


def _what_is_left(job_ids: Sequence[str]) -> str:
    if not job_ids:
        return "Nothing was enqueued."
    count = "The job" if len(job_ids) == 1 else f"{len(job_ids)} jobs"
    return (
        f"{count} may have been enqueued ({job_ids[0]}{', ...' if len(job_ids) > 1 else ''}); "
        "submitting again under the same idempotency key cannot enqueue it twice."
    )
