"""The job record in Redis, and the scripts that move a job from state to state.

A record expires at its deadline plus the result's TTL and a grace, and `result_ttl_s` after
its end, so that whatever happens to producers and workers, Redis forgets it. Its fields are in
`contract.record_hash`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, TypeVar, cast

from redis.client import Pipeline

from contract import keys
from contract.awaited import run_now
from contract.calls import BlockingServer, Call, command
from contract.codec import pack
from contract.errors import InvalidInput, PrefillqError
from contract.ids import new_job_id, tenant_of
from contract.job_calls import JobCalls, job_script, outlives_ms, read_notice, unexpected
from contract.job_checks import check_ended, check_limits
from contract.job_ends import fit_result, outcome_of
from contract.job_refusals import no_such_job, not_dead
from contract.job_store import (
    SUSPECT_CRASHES,
    Claimed,
    Doorbell,
    Held,
    JobStore,
    JobView,
    Notice,
    NoticeStream,
    PieceWrite,
    Refusal,
    Refused,
    Renewal,
    StopReason,
    Submission,
    Submitted,
    TenantLimits,
)
from contract.pieces import MAX_ENTRIES, Entry
from contract.pinned import count_pinned
from contract.record_hash import JOB_FIELDS, fields_of, job_of, state_of, view_of
from contract.redis_client import Client, errors_explained, text
from contract.scripts import ScriptLibrary, Scripts
from contract.settings import MIB, Settings
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

_LARGEST_INPUT = 16 * MIB  # bytes of a job's variables: whatever producers' own limit is

_SCRIPTS = (
    "submit",
    "find",
    "withdraw",
    "claim",
    "renew",
    "stop_reason",
    "commit",
    "note_commit",
    "release",
    "retry",
    "revive",
    "drop",
    "cancel",
    "score",
    "state",
    "overdue",
    "head",
    "keep",
)
# What works in a full Redis too: it writes little, and then frees memory.
_FLAGS = {
    "withdraw": "allow-oom",
    "cancel": "allow-oom",
    "state": "allow-oom",
    "overdue": "allow-oom",
    "stop_reason": "no-writes",
    "head": "no-writes",
}


@cache
def script_source(name: str) -> str:
    """The text of one job script, with what all of them share in front."""
    folder = resources.files("contract") / "lua"
    return "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("common", name))


def job_library() -> ScriptLibrary:
    """All job scripts, as `prefillq tenants` stores them in Redis."""
    return ScriptLibrary(
        name="jobs", sources={name: script_source(name) for name in _SCRIPTS}, flags=_FLAGS
    )


class RedisJobStore:
    """`JobStore` on Redis. Safe to share between threads."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._scripts = Scripts(client, settings, job_library())
        self._server = BlockingServer(client, settings, self._scripts)
        self._calls = JobCalls(self._server, settings)

    def submit(
        self,
        job: Job,
        *,
        input_digest: str,
        idempotency_key: str | None = None,
        deadline_s: float | None = None,
        max_queue: int | None = None,
        revision: int | None = None,
    ) -> Submitted:
        submission = Submission(
            job=job,
            input_digest=input_digest,
            idempotency_key=idempotency_key,
            deadline_s=deadline_s,
            max_queue=max_queue,
            revision=revision,
        )
        [outcome] = self.submit_many([submission])
        if isinstance(outcome, PrefillqError):
            raise outcome
        return outcome

    def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted | PrefillqError]:
        return run_now(self._calls.submit_many(submissions))

    def find(self, tenant: str, key: str, input_digest: str) -> Submitted | None:
        return run_now(self._calls.find(tenant, key, input_digest))

    def withdraw(self, job_id: str, *, idempotency_key: str | None = None) -> bool:
        return run_now(self._calls.withdraw(job_id, idempotency_key=idempotency_key))

    def claim(
        self, job_id: str, worker_id: str, lease_s: float, *, alone: bool = False
    ) -> Claimed | Refused:
        tenant = tenant_of(job_id)
        with errors_explained(self._settings):
            reply = self._run(
                "claim",
                job_id,
                worker_id,
                lease_s,
                secrets.token_hex(8),
                self._settings.max_attempts,
                self._dead_ms,
                SUSPECT_CRASHES,
                int(alone),
                max(_LARGEST_INPUT, 2 * self._settings.max_variables_bytes),
                *JOB_FIELDS,
                more_keys=[keys.dead(tenant), keys.held(tenant)],
            )
        match reply:
            case [b"claimed", queued_s, values]:
                record = fields_of(JOB_FIELDS, values)
                return Claimed(job=job_of(job_id, record), queued_s=float(queued_s))
            case [b"not_found"]:
                return Refused(reason="not_found", state=None)
            case [reason, state]:
                return Refused(reason=cast(Refusal, text(reason)), state=state_of(job_id, state))
        raise unexpected("claim", reply)

    def renew(self, job_id: str, fence: int, lease_s: float) -> Renewal:
        with errors_explained(self._settings):
            return cast(Renewal, text(self._run("renew", job_id, fence, lease_s)))

    def renew_many(self, held: Sequence[Held], lease_s: float) -> list[Renewal | PrefillqError]:
        replies = self._run_many("renew", held, lease_s)
        return [
            reply if isinstance(reply, PrefillqError) else cast(Renewal, text(reply))
            for reply in replies
        ]

    def stop_reasons(self, held: Sequence[Held]) -> list[StopReason | PrefillqError | None]:
        replies = self._run_many("stop_reason", held)
        return [
            reply
            if reply is None or isinstance(reply, PrefillqError)
            else cast(StopReason, text(reply))
            for reply in replies
        ]

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
            done = self._run(
                "commit", result.job_id, fence, str(fitting.status), packed, *outcome_of(fitting)
            )
        return fitting if done else None

    def note_commit(self, job_id: str, fence: int, commit_s: float) -> Doorbell | None:
        tenant = tenant_of(job_id)
        held = keys.held(tenant)
        with errors_explained(self._settings):
            reply = self._run("note_commit", job_id, fence, f"{commit_s:.6f}", more_keys=[held])
        if reply is None:
            return None
        next_id, queue = _job_id(reply[0], tenant), _queue(reply[1], tenant)
        if next_id is None or queue is None:
            return None
        return Doorbell(job_id=next_id, queue=queue, state=JobState.QUEUED, silent=True)

    def overdue(self, tenant: str, *, limit: int, leases_tell: bool = True) -> list[Doorbell]:
        with errors_explained(self._settings):
            found = self._run(
                "overdue",
                new_job_id(tenant),  # of no job: beside its record are those of all others
                limit,
                self._settings.lease_s,
                int(leases_tell),
                more_keys=[keys.held(tenant), keys.retries(tenant)],
            )
        return [
            Doorbell(
                job_id=text(job_id),
                queue=text(queue),
                state=JobState(text(state)),
                silent=silent == b"1",
            )
            for job_id, queue, state, silent in found
        ]

    def rung(self, doorbells: Sequence[Doorbell]) -> None:
        if not doorbells:
            return
        with errors_explained(self._settings):
            again_at = self._now() + self._settings.lease_s
            pipe = self._client.pipeline(transaction=False)
            for bell in doorbells:
                tenant, queued = tenant_of(bell.job_id), bell.state is JobState.QUEUED
                indexes = [keys.queued(tenant), keys.retries(tenant)]
                for index in indexes if queued else [keys.running(tenant)]:
                    # XX: it may have been claimed or ended meanwhile.
                    pipe.zadd(index, {bell.job_id: again_at}, xx=True)
                if queued:
                    # Refused once more for lack of room, it is held again.
                    pipe.zrem(keys.held(tenant), bell.job_id)
            pipe.execute()

    def retry(self, result: Result, fence: int, delay_s: float) -> JobState | None:
        with errors_explained(self._settings):
            reply = self._run(
                "retry",
                result.job_id,
                fence,
                delay_s,
                self._settings.max_attempts,
                self._dead_ms,
                pack(result.to_dict()),
                *outcome_of(result),
                more_keys=[keys.dead(tenant_of(result.job_id))],
            )
        return None if reply is None else JobState(text(reply))

    def dead(self, tenant: str, *, limit: int) -> list[JobView]:
        with errors_explained(self._settings):
            job_ids = [
                text(job_id)
                for job_id in self._client.zrange(keys.dead(tenant), 0, limit - 1, desc=True)
            ]
            pipe = self._client.pipeline(transaction=False)
            for job_id in job_ids:
                pipe.hgetall(keys.job(job_id))
            records = pipe.execute() if job_ids else []
        return [
            view_of(job_id, record)
            for job_id, record in zip(job_ids, records, strict=True)
            if record  # else it expired just now
        ]

    def revive(self, job_id: str, *, deadline_s: float | None = None) -> str:
        deadline_s = deadline_s or self._settings.default_deadline_s
        return self._of_dead("revive", job_id, deadline_s, outlives_ms(self._settings))

    def drop(self, job_id: str) -> None:
        self._of_dead("drop", job_id)

    def _of_dead(self, script: str, job_id: str, *args: float) -> str:
        with errors_explained(self._settings):
            reply = self._run(script, job_id, *args, more_keys=[keys.dead(tenant_of(job_id))])
        match [text(part) for part in reply]:
            case ["queued", queue]:
                return queue
            case ["dropped"]:
                return ""
            case ["not_dead", state]:
                raise not_dead(job_id, JobState(state))
            case ["not_found"]:
                raise no_such_job(job_id)
        raise unexpected(script, reply)

    def pinned(self, tenant: str, template: str) -> dict[int, int]:
        with errors_explained(self._settings):
            return count_pinned(self._client, tenant, template)

    def release(self, job_id: str, fence: int) -> bool:
        with errors_explained(self._settings):
            return bool(self._run("release", job_id, fence))

    def cancel(self, job_id: str) -> JobState:
        return run_now(self._calls.cancel(job_id))

    def get(self, job_id: str) -> JobView:
        return run_now(self._calls.get(job_id))

    def score(self, job_id: str, name: str, value: float) -> None:
        run_now(self._calls.score(job_id, name, value))

    def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        return run_now(self._calls.states(job_ids))

    def pieces(self, job_id: str, after: str, *, limit: int) -> list[Entry]:
        return run_now(self._calls.pieces(job_id, after, limit=limit))

    def piece(self, job_id: str, entry: str) -> Entry | None:
        return run_now(self._calls.piece(job_id, entry))

    def write_pieces(self, writes: Sequence[PieceWrite]) -> list[PrefillqError | None]:
        calls: list[Call] = []
        owners: list[int] = []
        for place, write in enumerate(writes):
            key = keys.pieces(write.job_id)
            more: list[Call] = [
                command("XADD", key, "MAXLEN", "~", MAX_ENTRIES, "*", *entry.fields())
                for entry in write.entries
            ]
            more.append(command("PEXPIRE", key, round(write.keep_s * 1000)))
            calls += more
            owners += [place] * len(more)
        outcomes: list[PrefillqError | None] = [None] * len(writes)
        for place, reply in zip(owners, run_now(self._server.ask_each(calls)), strict=True):
            if isinstance(reply, PrefillqError):
                outcomes[place] = outcomes[place] or reply
        return outcomes

    def set_limits(self, tenant: str, limits: TenantLimits) -> None:
        check_limits(limits)
        given = {
            "rate": limits.rate_per_s,
            "max_queued": limits.max_queued,
            "max_running": limits.max_running,
        }
        key = keys.limits(tenant)
        set_ones: dict[Any, Any] = {k: v for k, v in given.items() if v is not None}
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=True)
            pipe.delete(key)
            if set_ones:
                pipe.hset(key, mapping=set_ones)
            pipe.execute()

    def limits(self, tenant: str) -> TenantLimits:
        with errors_explained(self._settings):
            found = self._client.hmget(keys.limits(tenant), "rate", "max_queued", "max_running")
        rate, queued, running = found
        return TenantLimits(
            rate_per_s=None if rate is None else float(rate),
            max_queued=None if queued is None else int(queued),
            max_running=None if running is None else int(running),
        )

    def notices(self) -> NoticeStream:
        return RedisNotices(self._client, self._settings)

    @property
    def _dead_ms(self) -> int:
        return round(self._settings.dead_ttl_s * 1000)

    def _now(self) -> float:
        """The server's time, in seconds since the epoch."""
        seconds, micros = self._client.time()
        return float(seconds) + float(micros) / 1e6

    def _run(
        self,
        script: str,
        job_id: str,
        *args: float | str | bytes,
        more_keys: Sequence[str] = (),
        pipe: Pipeline | None = None,
    ) -> Any:
        run = job_script(self._settings, script, job_id, *args, more_keys=more_keys)
        return self._scripts.run(script, keys=run.keys, args=run.args, pipe=pipe)

    def _run_many(self, script: str, held: Sequence[Held], *args: float) -> list[Any]:
        """The script's reply for each claim; what Redis refused is explained in its place."""
        calls = [job_script(self._settings, script, id_, fence, *args) for id_, fence in held]
        return run_now(self._server.ask_each(calls))


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
        return read_notice(message, self._tenants)

    def close(self) -> None:
        self._pubsub.close()


def _job_id(entry: bytes, tenant: str) -> str | None:
    """An index's entry as the id of one of the tenant's jobs; None when it is none."""
    try:
        job_id = entry.decode("ascii")
        return job_id if tenant_of(job_id) == tenant else None
    except (UnicodeDecodeError, InvalidInput):
        return None


def _queue(field: object, tenant: str) -> str | None:
    """A record's field `queue`, if it names one of the tenant's queues."""
    if not isinstance(field, bytes):
        return None
    queue = field.decode("utf-8", errors="replace")
    return queue if keys.tenant_of_queue(queue) == tenant else None
