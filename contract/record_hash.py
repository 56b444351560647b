"""How a job record is spelled: the hash at `keys.job(id)`.

- what was asked: `template`, `version`, `digest`, `input` (msgpack), `input_digest`, `use_cache`,
  `queue` (where to ring), `stream` (if the answer is to be written piece by piece)
- how the version was chosen: `revision` (of the template at submit), `rollout` (its id, if one
  did), `shadow` (number of the version that answers a copy of the job, unseen, if one does)
- whose trace it belongs to: `traceparent`, if it was submitted within one
- when: `created_at`, `deadline_at`, `finished_at` (server time, seconds since the epoch)
- who runs it: `attempt`, `fence`, `first_fence` (of the first claim), `worker`, `claimed_at`,
  `lease_until`, `claim_token`
- when it failed and may be tried again: `not_before`, `ended_attempt` (the fence of that attempt),
  `tried` (how many attempts ended so; of the others that are over, the workers died)
- how it ends: `state`, `cancel_requested`, `result` (msgpack), `commit_s`, `dead`, `revived`
- what the answer was worth: `score:<name>`
- book-keeping: `submits`, `idempotency` (the end of its idempotency key's name, if it has one)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contract.codec import pack, unpack
from contract.errors import CodecError, RecordDamaged
from contract.ids import tenant_of
from contract.job_ends import end_without_result, with_commit_time
from contract.job_store import JobView
from contract.redis_client import text
from contract.types import Job, JobState, Result, VersionRef

Hash = Mapping[bytes, bytes]

_SCORE = b"score:"
_WHOLE = re.compile(rb"-?[0-9]{1,18}")
# What a worker reads of a record that it claims; all but the first are short.
JOB_FIELDS = (
    *("input", "template", "version", "digest", "queue", "use_cache", "created_at", "deadline_at"),
    *("attempt", "fence", "first_fence", "rollout", "shadow", "traceparent", "stream"),
)
# Bytes at most, as prefillq writes it. A producer may write its records by hand, and a worker hands
# these fields on to logs, traces and results.
_LONGEST = {
    b"template": 64,  # a name (contract.ids)
    b"digest": 64,
    b"queue": 64 + 1 + 64 + 1 + 12,  # contract.keys.queue
    b"rollout": 16,
    b"traceparent": 55,  # contract.tracing
    b"worker": 64,  # worker.identity
}
_NUMBER = re.compile(rb"-?[0-9]{1,18}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?")


def asked(job: Job) -> list[str | bytes | int]:
    """What was asked, as fields and values of the record."""
    return [
        "template",
        job.ref.template,
        "version",
        job.ref.version,
        "digest",
        job.ref.digest,
        "queue",
        job.queue,
        "use_cache",
        int(job.use_cache),
        "input",
        pack(job.variables),
        *(["rollout", job.rollout] if job.rollout else []),
        *(["shadow", str(job.shadow)] if job.shadow else []),
        *(["traceparent", job.traceparent] if job.traceparent else []),
        *(["stream", "1"] if job.stream else []),
    ]


def fields_of(names: Sequence[str], values: Sequence[bytes | None]) -> Hash:
    """A record, or a part of it, from what HMGET returns."""
    return {
        name.encode(): value for name, value in zip(names, values, strict=True) if value is not None
    }


def job_of(job_id: str, record: Hash) -> Job:
    """The job inside a record. Raises RecordDamaged when it is."""
    try:
        return _job_of(job_id, record)
    except (KeyError, ValueError, TypeError, CodecError) as error:
        raise _damaged(job_id, error) from error


def _job_of(job_id: str, record: Hash) -> Job:
    return Job(
        id=job_id,
        ref=VersionRef(
            tenant=tenant_of(job_id),
            template=_short(record, b"template"),
            version=whole(record, b"version"),
            digest=_short(record, b"digest"),
        ),
        queue=_short(record, b"queue"),
        variables=_variables(record),
        use_cache=record[b"use_cache"] == b"1",
        created_at=number(record, b"created_at"),
        deadline_at=number(record, b"deadline_at"),
        attempt=whole(record, b"attempt"),
        fence=whole(record, b"fence"),
        first_claim=record.get(b"first_fence", record[b"fence"]) == record[b"fence"],
        rollout=_short(record, b"rollout") if b"rollout" in record else "",
        shadow=whole(record, b"shadow") if b"shadow" in record else 0,
        traceparent=_short(record, b"traceparent") if b"traceparent" in record else "",
        stream=record.get(b"stream") == b"1",
    )


def whole(record: Hash, name: bytes) -> int:
    """A field that is an integer. Raises ValueError that does not quote it."""
    if not _WHOLE.fullmatch(record[name]):
        raise ValueError(f"{name.decode()} is no integer")
    return int(record[name])


def number(record: Hash, name: bytes) -> float:
    """A field that is a finite number. Raises ValueError that does not quote it."""
    if not _NUMBER.fullmatch(record[name]):
        raise ValueError(f"{name.decode()} is no number")
    return float(record[name])


def _short(record: Hash, name: bytes) -> str:
    """A field that is text. Raises ValueError that does not quote it if it is longer than ours."""
    if len(record[name]) > _LONGEST[name]:
        raise ValueError(f"{name.decode()} has more than {_LONGEST[name]} bytes")
    return text(record[name])


def _variables(record: Hash) -> dict[str, Any]:
    variables = unpack(record[b"input"])
    if not isinstance(variables, dict):
        raise TypeError("input is no object")
    return variables


def view_of(job_id: str, record: Hash) -> JobView:
    """What a reader sees of a record; a job that ended without a run gets a result made here.

    Raises RecordDamaged when it is.
    """
    try:
        return _view_of(job_id, record)
    except RecordDamaged:
        raise
    except (KeyError, ValueError, TypeError, CodecError) as error:
        raise _damaged(job_id, error) from error


def _view_of(job_id: str, record: Hash) -> JobView:
    job, state = job_of(job_id, record), state_of(job_id, record[b"state"])
    worker = _short(record, b"worker") if b"worker" in record else ""
    finished_at = number(record, b"finished_at") if state.ended else None
    result = None
    if b"result" in record:
        result = Result.from_dict(unpack(record[b"result"]))
        result = with_commit_time(
            result, number(record, b"commit_s") if b"commit_s" in record else 0.0
        )
        result = replace(result, rollout=job.rollout)
    elif finished_at is not None:
        result = end_without_result(job, state, worker, finished_at)
    return JobView(
        job=job,
        state=state,
        worker=worker,
        finished_at=finished_at,
        result=result,
        cancel_requested=record.get(b"cancel_requested") == b"1",
        dead=record.get(b"dead") == b"1",
        scores={
            text(name.removeprefix(_SCORE)): number(record, name)
            for name in sorted(record)
            if name.startswith(_SCORE)
        },
    )


def state_of(job_id: str, value: bytes | str) -> JobState:
    """The state that a record's field or a script's reply names. Raises RecordDamaged."""
    try:
        return JobState(text(value))
    except ValueError as error:
        raise _damaged(job_id, ValueError("state is none that a job has")) from error


def _damaged(job_id: str, error: Exception) -> RecordDamaged:
    # Nothing of the record's content: it holds what the user wrote.
    return RecordDamaged(
        "a job's record is damaged",
        given=f"{job_id}: {'no ' if isinstance(error, KeyError) else ''}{_words(error)}"[:160],
        expected="a record as prefillq writes it",
    )


def _words(error: Exception) -> str:
    match error:
        case KeyError():
            return text(error.args[0])
        case CodecError():
            return error.problem
    return str(error)
