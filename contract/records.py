"""The job record in Redis, and the scripts that move a job from state to state.

A record expires at its deadline plus the result's TTL and a grace, and `result_ttl_s` after
its end, so that whatever happens to producers and workers, Redis forgets it. Its fields are in
`contract.record_hash`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from typing import Any, TypeVar, cast

from redis.client import Pipeline

from contract import keys
from contract.codec import pack
from contract.described import describe
from contract.errors import PrefillqError
from contract.ids import tenant_of
from contract.job_store import (
    COMMIT_GRACE_S,
    Claimed,
    Doorbell,
    JobStore,
    JobView,
    Notice,
    NoticeStream,
    Refusal,
    Refused,
    Renewal,
    StopReason,
    Submission,
    Submitted,
    already_ended,
    check_ended,
    check_submission,
    fit_result,
    key_taken,
    no_such_job,
    queue_full,
)
from contract.record_hash import asked, job_of, pairs, state_of, view_of
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings
from contract.types import Job, JobState, Result

__all__ = [
    "Claimed",
    "JobStore",
    "JobView",
    "Notice",
    "NoticeStream",
    "RedisJobStore",
    "Refused",
    "Renewal",
    "StopReason",
    "Submission",
    "Submitted",
]

T = TypeVar("T")

_SCRIPTS = (
    "submit",
    "withdraw",
    "claim",
    "renew",
    "stop_reason",
    "commit",
    "note_commit",
    "release",
    "cancel",
    "state",
)
_BATCH = 256  # commands in one pipeline: bounds the memory of both ends


@cache
def script_source(name: str) -> str:
    """The text of one job script, with what all of them share in front."""
    folder = resources.files("contract") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("common", name))


class RedisJobStore:
    """`JobStore` on Redis. Safe to share between threads."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._scripts = {name: client.register_script(script_source(name)) for name in _SCRIPTS}

    def submit(
        self,
        job: Job,
        *,
        input_digest: str,
        idempotency_key: str | None = None,
        deadline_s: float | None = None,
        max_queue: int | None = None,
    ) -> Submitted:
        submission = Submission(
            job=job,
            input_digest=input_digest,
            idempotency_key=idempotency_key,
            deadline_s=deadline_s,
            max_queue=max_queue,
        )
        [outcome] = self.submit_many([submission])
        if isinstance(outcome, PrefillqError):
            raise outcome
        return outcome

    def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted | PrefillqError]:
        outcomes: list[Submitted | PrefillqError] = []
        for submission in submissions:
            check_submission(submission)
        for group in _groups(submissions):
            with errors_explained(self._settings):
                pipe = self._client.pipeline(transaction=False)
                for submission in group:
                    self._send_submit(submission, pipe)
                replies = pipe.execute(raise_on_error=False)
            outcomes += [
                self._explained(reply)
                if isinstance(reply, Exception)
                else _submitted(submission, reply)
                for submission, reply in zip(group, replies, strict=True)
            ]
        return outcomes

    def _send_submit(self, submission: Submission, pipe: Pipeline) -> None:
        job, key = submission.job, submission.idempotency_key
        tenant, template = job.ref.tenant, job.ref.template
        deadline_s = submission.deadline_s or self._settings.default_deadline_s
        self._run(
            "submit",
            job.id,
            deadline_s,
            round((self._settings.result_ttl_s + COMMIT_GRACE_S) * 1000),
            "" if submission.max_queue is None else submission.max_queue,
            submission.input_digest,
            *asked(job),
            more_keys=[
                keys.waiting(tenant, template),
                *([] if key is None else [keys.idempotency(tenant, key)]),
            ],
            pipe=pipe,
        )

    def withdraw(self, job_id: str, *, idempotency_key: str | None = None) -> bool:
        more_keys = (
            []
            if idempotency_key is None
            else [keys.idempotency(tenant_of(job_id), idempotency_key)]
        )
        with errors_explained(self._settings):
            return bool(self._run("withdraw", job_id, more_keys=more_keys))

    def claim(self, job_id: str, worker_id: str, lease_s: float) -> Claimed | Refused:
        with errors_explained(self._settings):
            reply = self._run("claim", job_id, worker_id, lease_s, secrets.token_hex(8))
        match reply:
            case [b"claimed", queued_s, record]:
                return Claimed(job=job_of(job_id, pairs(record)), queued_s=float(queued_s))
            case [b"not_found"]:
                return Refused(reason="not_found", state=None)
            case [reason, state]:
                return Refused(reason=cast(Refusal, text(reason)), state=state_of(job_id, state))
        raise _unexpected("claim", reply)

    def renew(self, job_id: str, fence: int, lease_s: float) -> Renewal:
        with errors_explained(self._settings):
            return cast(Renewal, text(self._run("renew", job_id, fence, lease_s)))

    def stop_reason(self, job_id: str, fence: int) -> StopReason | None:
        with errors_explained(self._settings):
            reply = self._run("stop_reason", job_id, fence)
        return None if reply is None else cast(StopReason, text(reply))

    def commit(self, result: Result, fence: int) -> Result | None:
        check_ended(result)
        packed = pack(result.to_dict())
        fitting = fit_result(result, len(packed), self._settings.max_result_bytes)
        if fitting is not result:
            packed = pack(fitting.to_dict())
        with errors_explained(self._settings):
            done = self._run("commit", result.job_id, fence, str(fitting.status), packed)
        return fitting if done else None

    def note_commit(self, job_id: str, fence: int, commit_s: float) -> None:
        with errors_explained(self._settings):
            self._run("note_commit", job_id, fence, f"{commit_s:.6f}")

    def overdue(self, tenant: str, *, queued_for_s: float, limit: int) -> list[Doorbell]:
        with errors_explained(self._settings):
            seconds, micros = self._client.time()
            now = float(seconds) + float(micros) / 1e6
            pipe = self._client.pipeline(transaction=False)
            pipe.zrange(keys.running(tenant), "-inf", now, byscore=True, offset=0, num=limit)
            pipe.zrange(
                keys.queued(tenant), "-inf", now - queued_for_s, byscore=True, offset=0, num=limit
            )
            running, queued = pipe.execute()
            late = [
                *((text(job_id), JobState.RUNNING) for job_id in running),
                *((text(job_id), JobState.QUEUED) for job_id in queued),
            ]
            for job_id, _ in late:
                pipe.hget(keys.job(job_id), "queue")
            # A damaged record's error stands in its place and must not hide the others.
            queues = pipe.execute(raise_on_error=False) if late else []
            bells, lost = [], []
            for (job_id, state), queue in zip(late, queues, strict=True):
                if isinstance(queue, bytes):
                    bells.append(Doorbell(job_id=job_id, queue=text(queue), state=state))
                else:
                    lost.append(job_id)
            if lost:  # no record, or no record of ours: nothing is left to ring for
                pipe.zrem(keys.running(tenant), *lost)
                pipe.zrem(keys.queued(tenant), *lost)
                pipe.execute()
        return bells

    def release(self, job_id: str, fence: int) -> bool:
        with errors_explained(self._settings):
            return bool(self._run("release", job_id, fence))

    def cancel(self, job_id: str) -> JobState:
        with errors_explained(self._settings):
            reply = [text(part) for part in self._run("cancel", job_id)]
        match reply:
            case ["cancelled", state]:
                return state_of(job_id, state)
            case ["ended", state]:
                raise already_ended(job_id, state_of(job_id, state))
            case ["not_found"]:
                raise no_such_job(job_id)
        raise _unexpected("cancel", reply)

    def get(self, job_id: str) -> JobView:
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            self._run("state", job_id, pipe=pipe)
            pipe.hgetall(keys.job(job_id))
            _, record = pipe.execute()
        if not record:
            raise no_such_job(job_id)
        return view_of(job_id, record)

    def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        replies: list[Any] = []
        with errors_explained(self._settings):
            for group in _groups(job_ids):
                pipe = self._client.pipeline(transaction=False)
                for job_id in group:
                    self._run("state", job_id, pipe=pipe)
                replies += pipe.execute()
        return [
            None if reply is None else state_of(job_id, reply)
            for job_id, reply in zip(job_ids, replies, strict=True)
        ]

    def notices(self) -> NoticeStream:
        return RedisNotices(self._client, self._settings)

    def _run(
        self,
        script: str,
        job_id: str,
        *args: float | str | bytes,
        more_keys: Sequence[str] = (),
        pipe: Pipeline | None = None,
    ) -> Any:
        tenant = tenant_of(job_id)
        keep_ms = round(self._settings.result_ttl_s * 1000)
        return self._scripts[script](
            keys=[keys.job(job_id), keys.queued(tenant), keys.running(tenant), *more_keys],
            args=[job_id, keep_ms, keys.notices(tenant), *args],
            client=pipe,
        )

    def _explained(self, error: Exception) -> PrefillqError:
        try:
            with errors_explained(self._settings):
                raise error
        except PrefillqError as explained:
            return explained


class RedisNotices:
    """`NoticeStream` on one pub/sub connection, which resubscribes when it reconnects."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._settings = settings
        self._pubsub: Any = cast(Any, client).pubsub()  # redis-py gives it no types
        self._tenants: dict[str, str] = {}  # channel -> tenant

    def follow(self, tenant: str) -> None:
        channel = keys.notices(tenant)
        self._tenants[channel] = tenant
        with errors_explained(self._settings):
            self._pubsub.subscribe(channel)

    def next(self, timeout: float) -> Notice | None:
        with errors_explained(self._settings):
            message = self._pubsub.get_message(timeout=timeout)
        if message is None:
            return None
        tenant = self._tenants[text(message["channel"])]
        if message["type"] == "subscribe":
            return Notice(tenant=tenant, job_id=None)
        return Notice(tenant=tenant, job_id=text(message["data"]))

    def close(self) -> None:
        self._pubsub.close()


def _groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


def _submitted(submission: Submission, reply: Any) -> Submitted | PrefillqError:
    match [text(part) for part in reply]:
        case ["full"]:
            return queue_full(submission.job, submission.max_queue or 0)
        case ["conflict", job_id, _]:
            return key_taken(job_id)
        case [outcome, job_id, state, queue]:
            return Submitted(
                job_id=job_id,
                created=outcome == "created",
                state=state_of(job_id, state),
                queue=queue,
            )
    return _unexpected("submit", reply)


def _unexpected(script: str, reply: object) -> PrefillqError:
    return PrefillqError(f"the script {script} of another version answered", given=describe(reply))
