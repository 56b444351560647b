"""Whether it adds up: accepted = committed once + dead with a reason + cancelled + expired.

Knows no Redis and no process, only the evidence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from contract.types import JobState
from tests.chaos.evidence import Evidence, Finished, Record, worker_pid
from tests.chaos.ledger import Entry
from tests.chaos.plan import Kind

FaultKind = Literal[
    "lost",  # accepted, and there is no record or no end
    "twice",  # committed by two workers, or twice by one
    "undone",  # a worker committed it, and the record knows nothing of that
    "unlogged",  # the record has a result whose worker lived on and never said so
    "differs",  # two sources tell two stories of one result
    "wrong_answer",  # not the answer to this job's input
    "wrong_end",  # an end for which there was no reason
    "two_jobs",  # two jobs under one idempotency key
    "phantom",  # a job of which its producer was told that there is none
    "refused",  # a submit was refused that had nothing wrong with it
    "left",  # ended, and still listed among those that wait or run
    "idle",  # a worker that runs, and does not take the jobs that only it can take
    "hung",  # a process that does not end when told to
    "crashed",  # a process that ended by itself
]

Outcome = Literal["succeeded", "failed", "dead", "cancelled", "expired", "lost"]

# Error codes with which a job may be dead.
# Error of a dead job -> which jobs may die of it. We kill workers often enough, mostly soon after
# they are up, that any job may lose all of its attempts to us.
_DIE_OF = {"attempts_exhausted": set(Kind), "non_finite_logits": {Kind.PASSING}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that must not be."""

    kind: FaultKind
    what: str  # job id, key or actor
    detail: str


@dataclass(kw_only=True)
class Account:
    """All jobs by how they ended, and what is wrong."""

    submits: int = 0  # calls, repetitions included
    refusals: Counter[str] = field(default_factory=Counter)  # of calls, by error code
    given_up: int = 0  # keys whose producer was told that nothing was enqueued, and believed it
    accepted: int = 0  # jobs
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    dead_by: Counter[str] = field(default_factory=Counter)  # by what the job was meant to meet
    attempts: Counter[int] = field(default_factory=Counter)  # jobs by attempts counted
    faults: list[Fault] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "submits": self.submits,
            "refusals": dict(self.refusals),
            "given_up": self.given_up,
            "accepted": self.accepted,
            "outcomes": dict(self.outcomes),
            "dead_by": dict(self.dead_by),
            "attempts": {str(count): jobs for count, jobs in sorted(self.attempts.items())},
        }


@dataclass(kw_only=True)
class _Promise:
    """What the ledger says of one key."""

    kind: str = ""
    attempts: int = 0
    accepted: set[str] = field(default_factory=set)  # job ids
    refused_for: set[str] = field(default_factory=set)  # error codes
    # Whether its producer may believe that nothing of this key was ever enqueued.
    nothing: bool = True
    given_up: bool = False
    cancelled: bool = False
    vanished: bool = False
    results: list[Entry] = field(default_factory=list)


def judge(evidence: Evidence) -> Account:
    """Account for every job that was accepted or that exists."""
    account = Account()
    promises = _promises(evidence.ledger)
    by_key: dict[str, list[Record]] = defaultdict(list)
    for record in evidence.records.values():
        by_key[record.key].append(record)
    lines: dict[str, list[Finished]] = defaultdict(list)
    for line in evidence.finished:
        lines[line.job_id].append(line)

    for key, promise in promises.items():
        account.submits += promise.attempts
        account.given_up += promise.given_up
        account.faults += _faults_of_key(key, promise, by_key[key])
        for job_id in promise.accepted or {record.job_id for record in by_key[key]}:
            record = evidence.records.get(job_id)
            account.accepted += 1
            account.outcomes[_outcome(record)] += 1
            if record is not None:
                account.attempts[record.attempt] += 1
                if record.dead:
                    account.dead_by[promise.kind] += 1
            account.faults += _faults_of_job(job_id, promise, record, lines[job_id], evidence)
    account.refusals = Counter(
        entry["error"] for entry in evidence.ledger if entry["event"] == "refused"
    )
    account.faults += [
        Fault(kind="phantom", what=record.job_id, detail="nobody submitted it")
        for record in evidence.records.values()
        if record.key not in promises
    ]
    return account


def _promises(ledger: list[Entry]) -> dict[str, _Promise]:
    promises: dict[str, _Promise] = defaultdict(_Promise)
    open_attempts: Counter[str] = Counter()
    for entry in ledger:
        if "key" not in entry:
            continue
        key, promise = entry["key"], promises[entry["key"]]
        match entry["event"]:
            case "attempt":
                promise.kind = entry["kind"]
                promise.attempts += 1
                open_attempts[key] += 1
            case "accepted":
                promise.accepted.add(entry["job_id"])
                open_attempts[key] -= 1
            case "refused":
                open_attempts[key] -= 1
                promise.refused_for.add(entry["error"])
                promise.nothing = promise.nothing and not entry["maybe"]
            case "given_up":
                promise.given_up = True
            case "cancel":
                promise.cancelled = True
            case "vanished":
                promise.vanished = True
            case "result":
                promise.results.append(entry)
    for key, count in open_attempts.items():
        if count:  # its producer was killed while it submitted
            promises[key].nothing = False
    return promises


def _outcome(record: Record | None) -> Outcome:
    if record is None or not record.state.ended:
        return "lost"
    if record.dead:
        return "dead"
    return {
        JobState.SUCCEEDED: "succeeded",
        JobState.FAILED: "failed",
        JobState.CANCELLED: "cancelled",
        JobState.EXPIRED: "expired",
    }[record.state]  # type: ignore[return-value]


def _faults_of_key(key: str, promise: _Promise, records: list[Record]) -> Iterator[Fault]:
    ids = promise.accepted | {record.job_id for record in records}
    if len(ids) > 1:
        yield Fault(kind="two_jobs", what=key, detail=", ".join(sorted(ids)))
    if records and not promise.accepted and promise.nothing:
        yield Fault(
            kind="phantom",
            what=records[0].job_id,
            detail=f"{key}: its producer was told that nothing was enqueued",
        )
    for code in promise.refused_for - {"redis_unreachable", "redis_refused"}:
        yield Fault(kind="refused", what=key, detail=code)


def _faults_of_job(
    job_id: str,
    promise: _Promise,
    record: Record | None,
    lines: list[Finished],
    evidence: Evidence,
) -> Iterator[Fault]:
    if len(lines) > 1:
        told = ", ".join(f"{line.worker} (attempt {line.attempt})" for line in lines)
        yield Fault(kind="twice", what=job_id, detail=told)
    if record is None:
        yield Fault(kind="lost", what=job_id, detail=f"{promise.kind}: no record")
        return
    if not record.state.ended:
        detail = f"{promise.kind}: {record.state}, attempt {record.attempt}, {record.worker}"
        yield Fault(kind="lost", what=job_id, detail=detail)
        return
    if promise.vanished:
        yield Fault(kind="lost", what=job_id, detail="its producer found no record")
    if job_id in evidence.indexed:
        yield Fault(kind="left", what=job_id, detail=str(record.state))
    yield from _faults_of_end(record, promise, evidence)
    yield from _faults_of_commit(record, lines, evidence)
    for seen in promise.results:
        if _seen(seen) != _as_seen(record):
            yield Fault(
                kind="differs", what=job_id, detail=f"seen {_seen(seen)}, now {_as_seen(record)}"
            )


def _seen(entry: Entry) -> tuple[object, ...]:
    return (entry["job_id"], entry["status"], entry["text"] or "", entry["worker"] or "")


def _as_seen(record: Record) -> tuple[object, ...]:
    return (record.job_id, str(record.state), record.text, record.worker)


def _faults_of_end(record: Record, promise: _Promise, evidence: Evidence) -> Iterator[Fault]:
    def wrong(detail: str) -> Fault:
        return Fault(kind="wrong_end", what=record.job_id, detail=f"{promise.kind}: {detail}")

    match _outcome(record):
        case "succeeded":
            if not record.committed:
                yield wrong("succeeded without a result")
            elif record.text != (expected := evidence.expected.get(record.job_id)):
                detail = f"{record.text!r} by {record.worker}, expected {expected!r}"
                yield Fault(kind="wrong_answer", what=record.job_id, detail=detail)
        case "failed":
            if (promise.kind, record.error) != (Kind.CRASHING, "internal_error"):
                yield wrong(f"failed with {record.error or 'no reason'}")
        case "dead":
            code = record.error if record.committed else "attempts_exhausted"
            if promise.kind not in _DIE_OF.get(code, ()):
                yield wrong(f"dead with {code or 'no reason'}")
        case "cancelled":
            if not promise.cancelled:
                yield wrong("cancelled, and nobody asked for that")
        case "expired":
            if record.finished_at is None or record.finished_at < record.deadline_at:
                yield wrong("expired before its deadline")


def _faults_of_commit(record: Record, lines: list[Finished], evidence: Evidence) -> Iterator[Fault]:
    if lines and not record.committed:
        detail = f"{lines[0].worker} committed {lines[0].status}, the record is {record.state}"
        yield Fault(kind="undone", what=record.job_id, detail=detail)
    elif record.committed and not lines:
        excused = (
            worker_pid(record.worker) in evidence.cut_short or record.job_id in evidence.unsure
        )
        if not excused:
            yield Fault(kind="unlogged", what=record.job_id, detail=record.worker)
    elif len(lines) == 1:
        line = lines[0]
        logged = (line.worker, line.status, line.attempt)
        kept = (record.worker, str(record.state), record.attempt)
        if logged != kept:
            yield Fault(kind="differs", what=record.job_id, detail=f"logged {logged}, kept {kept}")


def faults_of_processes(events: Iterable[Entry]) -> Iterator[Fault]:
    """What is wrong about how the processes ended."""
    for event in events:
        if event["event"] == "hung":
            yield Fault(kind="hung", what=event["actor"], detail="it did not end after SIGTERM")
        if event["event"] != "ended":
            continue
        # -9 is ours or a job's that kills its worker; 3 says that Redis was away at the start;
        # and -15 that it was told to end before it could listen.
        fine = {-9, 3, 0, -15} if event["told"] else {-9, 3}
        if event["code"] not in fine:
            detail = f"exit code {event['code']}" + (", told to end" if event["told"] else "")
            yield Fault(kind="crashed", what=event["actor"], detail=detail)
