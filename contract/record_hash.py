"""How a job record is spelled: the hash at `keys.job(id)`.

- what was asked: `template`, `version`, `digest`, `input` (msgpack), `input_digest`, `use_cache`,
  `queue` (where to ring)
- when: `created_at`, `deadline_at`, `finished_at` (server time, seconds since the epoch)
- who runs it: `attempt`, `fence`, `worker`, `lease_until`, `claim_token`
- when it failed and may be tried again: `not_before`, `ended_attempt` (the fence of that attempt)
- how it ends: `state`, `cancel_requested`, `result` (msgpack), `commit_s`, `dead`
- book-keeping: `submits`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contract.codec import pack, unpack
from contract.errors import CodecError
from contract.ids import tenant_of
from contract.job_store import JobView, end_without_result, with_commit_time
from contract.redis_client import text
from contract.types import Job, JobState, Result, VersionRef

Hash = Mapping[bytes, bytes]


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
    ]


def pairs(flat: Sequence[bytes]) -> Hash:
    """A hash from the flat list in which a script returns it."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def job_of(job_id: str, record: Hash) -> Job:
    """The job inside a record. Raises CodecError when the record is damaged."""
    try:
        return _job_of(job_id, record)
    except (KeyError, ValueError, TypeError) as error:
        raise _damaged(job_id, error) from error


def _job_of(job_id: str, record: Hash) -> Job:
    return Job(
        id=job_id,
        ref=VersionRef(
            tenant=tenant_of(job_id),
            template=text(record[b"template"]),
            version=int(record[b"version"]),
            digest=text(record[b"digest"]),
        ),
        queue=text(record[b"queue"]),
        variables=unpack(record[b"input"]),
        use_cache=record[b"use_cache"] == b"1",
        created_at=float(record[b"created_at"]),
        deadline_at=float(record[b"deadline_at"]),
        attempt=int(record[b"attempt"]),
        fence=int(record[b"fence"]),
    )


def view_of(job_id: str, record: Hash) -> JobView:
    """What a reader sees of a record; a job that ended without a run gets a result made here.

    Raises CodecError when the record is damaged.
    """
    try:
        return _view_of(job_id, record)
    except (KeyError, ValueError, TypeError) as error:
        raise _damaged(job_id, error) from error


def _view_of(job_id: str, record: Hash) -> JobView:
    job, state = job_of(job_id, record), JobState(text(record[b"state"]))
    worker = text(record.get(b"worker", b""))
    finished_at = float(record[b"finished_at"]) if state.ended else None
    result = None
    if b"result" in record:
        result = Result.from_dict(unpack(record[b"result"]))
        result = with_commit_time(result, float(record.get(b"commit_s", 0.0)))
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
    )


def _damaged(job_id: str, error: Exception) -> CodecError:
    return CodecError(
        "a job's record is damaged",
        given=f"{job_id}: {type(error).__name__} {error}"[:160],
        expected="a record as prefillq writes it",
    )
