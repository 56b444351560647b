"""What producers ask of the job store: which scripts are called with what, and what answers mean.

Written once for both kinds of client (`contract.calls`); `contract.records` has the scripts and
what workers ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from contract import keys
from contract.calls import Run, Server, ask, command, groups
from contract.described import describe
from contract.errors import CodecError, KeyDamaged, PrefillqError
from contract.ids import new_job_id, tenant_of
from contract.job_checks import check_score, check_submission
from contract.job_refusals import (
    already_ended,
    key_taken,
    no_such_job,
    not_succeeded,
    over_queued,
    over_rate,
    queue_full,
    template_moved,
    too_many_scores,
)
from contract.job_store import COMMIT_GRACE_S, MAX_SCORES, JobView, Notice, Submission, Submitted
from contract.logs import get_logger
from contract.pieces import Entry, read_entries
from contract.record_hash import asked, state_of, view_of
from contract.redis_client import text
from contract.scripts import Argument
from contract.settings import Settings
from contract.types import JobState

log = get_logger(__name__)


class JobDesk(Protocol):
    """The part of `contract.job_store.JobStore` that producers use, for whoever can await."""

    async def submit_many(
        self, submissions: Sequence[Submission]
    ) -> list[Submitted | PrefillqError]: ...
    async def find(self, tenant: str, key: str, input_digest: str) -> Submitted | None: ...
    async def withdraw(self, job_id: str, *, idempotency_key: str | None = None) -> bool: ...
    async def cancel(self, job_id: str) -> JobState: ...
    async def get(self, job_id: str) -> JobView: ...
    async def score(self, job_id: str, name: str, value: float) -> None: ...
    async def states(self, job_ids: Sequence[str]) -> list[JobState | None]: ...
    async def pieces(self, job_id: str, after: str, *, limit: int) -> list[Entry]: ...
    async def piece(self, job_id: str, entry: str) -> Entry | None: ...


class JobCalls:
    """`JobDesk` on Redis."""

    def __init__(self, server: Server, settings: Settings) -> None:
        self._server = server
        self._settings = settings

    async def submit_many(
        self, submissions: Sequence[Submission]
    ) -> list[Submitted | PrefillqError]:
        for submission in submissions:
            check_submission(submission)
        outcomes: list[Submitted | PrefillqError] = []
        for group in groups(submissions):  # an event loop has its turn between two
            replies = await self._server.ask_each([self._submit(each) for each in group])
            outcomes += [
                reply if isinstance(reply, PrefillqError) else _submitted(submission, reply)
                for submission, reply in zip(group, replies, strict=True)
            ]
        return outcomes

    def _submit(self, submission: Submission) -> Run:
        job, key = submission.job, submission.idempotency_key
        tenant, template = job.ref.tenant, job.ref.template
        deadline_s = submission.deadline_s or self._settings.default_deadline_s
        return job_script(
            self._settings,
            "submit",
            job.id,
            deadline_s,
            outlives_ms(self._settings),
            "" if submission.max_queue is None else submission.max_queue,
            submission.input_digest,
            self._settings.lease_s,
            "" if submission.revision is None else submission.revision,
            job.ref.version,
            *asked(job),
            more_keys=[
                keys.waiting(tenant, template),
                keys.rate(tenant),
                *([] if key is None else [keys.idempotency(tenant, key)]),
            ],
        )

    async def find(self, tenant: str, key: str, input_digest: str) -> Submitted | None:
        reply = await self._run(
            "find",
            new_job_id(tenant),  # of no job: beside its record are those of all others
            input_digest,
            more_keys=[keys.idempotency(tenant, key)],
        )
        match [text(part) for part in reply]:
            case ["none"]:
                return None
            case ["conflict", job_id, _]:
                raise key_taken(job_id)
            case ["existing", job_id, state, queue]:
                return Submitted(
                    job_id=job_id, created=False, state=state_of(job_id, state), queue=queue
                )
        raise unexpected("find", reply)

    async def withdraw(self, job_id: str, *, idempotency_key: str | None = None) -> bool:
        more_keys = (
            []
            if idempotency_key is None
            else [keys.idempotency(tenant_of(job_id), idempotency_key)]
        )
        return bool(await self._run("withdraw", job_id, more_keys=more_keys))

    async def cancel(self, job_id: str) -> JobState:
        reply = [text(part) for part in await self._run("cancel", job_id)]
        match reply:
            case ["cancelled", state]:
                return state_of(job_id, state)
            case ["ended", state]:
                raise already_ended(job_id, state_of(job_id, state))
            case ["not_found"]:
                raise no_such_job(job_id)
        raise unexpected("cancel", reply)

    async def get(self, job_id: str) -> JobView:
        _, record = await ask(
            self._server,
            job_script(self._settings, "state", job_id),
            command("HGETALL", keys.job(job_id)),
        )
        if not record:
            raise no_such_job(job_id)
        return view_of(job_id, record)

    async def score(self, job_id: str, name: str, value: float) -> None:
        value = check_score(name, value)
        reply = [text(part) for part in await self._run("score", job_id, name, value, MAX_SCORES)]
        match reply:
            case ["scored"]:
                return
            case ["full"]:
                raise too_many_scores(job_id)
            case ["not_succeeded", state]:
                raise not_succeeded(job_id, state_of(job_id, state))
            case ["not_found"]:
                raise no_such_job(job_id)
        raise unexpected("score", reply)

    async def states(self, job_ids: Sequence[str]) -> list[JobState | None]:
        found: list[JobState | None] = []
        for group in groups(job_ids):
            replies = await self._server.ask_each(
                [job_script(self._settings, "state", job_id) for job_id in group]
            )
            found += map(_readable_state, group, replies)
        return found

    async def pieces(self, job_id: str, after: str, *, limit: int) -> list[Entry]:
        [found] = await ask(
            self._server, command("XRANGE", keys.pieces(job_id), f"({after}", "+", "COUNT", limit)
        )
        return read_entries(found)

    async def piece(self, job_id: str, entry: str) -> Entry | None:
        [found] = await ask(self._server, command("XRANGE", keys.pieces(job_id), entry, entry))
        return next(iter(read_entries(found)), None)

    async def _run(
        self, script: str, job_id: str, *args: Argument, more_keys: Sequence[str] = ()
    ) -> Any:
        [reply] = await ask(
            self._server, job_script(self._settings, script, job_id, *args, more_keys=more_keys)
        )
        return reply


def _readable_state(job_id: str, reply: Any) -> JobState | None:
    """None for a record that is damaged too: producers can write theirs by hand, and who looks at
    many must not lose the others' states to one. Raises what Redis refuses for other reasons."""
    try:
        if isinstance(reply, PrefillqError):
            raise reply
        return None if reply is None else state_of(job_id, reply)
    except (CodecError, KeyDamaged) as error:
        log.warning("job_unreadable", job_id=job_id, error=error.without_remedy)
        return None


def job_script(
    settings: Settings, script: str, job_id: str, *args: Argument, more_keys: Sequence[str] = ()
) -> Run:
    """A job script with the keys and arguments that all of them share in front."""
    tenant = tenant_of(job_id)
    keep_ms = round(settings.result_ttl_s * 1000)
    return Run(
        script=script,
        keys=(keys.job(job_id), keys.queued(tenant), keys.running(tenant), *more_keys),
        args=(job_id, keep_ms, keys.notices(tenant), *args),
    )


def outlives_ms(settings: Settings) -> int:
    """How long a record outlives its deadline."""
    return round((settings.result_ttl_s + COMMIT_GRACE_S) * 1000)


def unexpected(script: str, reply: object) -> PrefillqError:
    """The error for a reply that no script of this release gives."""
    return PrefillqError(
        f"the script {script} of another version answered",
        given=describe(reply),
        remedy="Have one release of prefillq on all hosts; an operator's 'prefillq tenants update' "
        "gives Redis its functions.",
    )


def _submitted(submission: Submission, reply: Any) -> Submitted | PrefillqError:
    match [text(part) for part in reply]:
        case ["moved"]:
            return template_moved(submission.job)
        case ["full"]:
            return queue_full(submission.job, submission.max_queue or 0)
        case ["over_queued", limit]:
            return over_queued(submission.job.ref.tenant, int(limit))
        case ["over_rate", seconds]:
            return over_rate(submission.job.ref.tenant, float(seconds))
        case ["conflict", job_id, _]:
            return key_taken(job_id)
        case [outcome, job_id, state, queue]:
            return Submitted(
                job_id=job_id,
                created=outcome == "created",
                state=state_of(job_id, state),
                queue=queue,
            )
    return unexpected("submit", reply)


def read_notice(message: Any, tenants: dict[str, str]) -> Notice | None:
    """What a message of pub/sub says; `tenants` by channel."""
    if message is None:
        return None
    tenant = tenants[text(message["channel"])]
    if message["type"] == "subscribe":
        return Notice(tenant=tenant, job_id=None)
    return Notice(tenant=tenant, job_id=text(message["data"]))
