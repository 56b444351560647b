"""The account of a chaos run finds what is wrong: evidence that is wrong in each way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from contract.types import JobState
from tests.chaos.accounting import Account, faults_of_processes, judge
from tests.chaos.evidence import Evidence, Finished, Record, key_in, worker_pid

KEY = "producer-1-7"
JOB = "acme.0000000000070000000000000000000a"
WORKER = "host-4711-ab12"


@dataclass(kw_only=True)
class Case:
    """One job that was submitted, committed once and seen, with nothing wrong about it."""

    ledger: list[dict[str, Any]] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    finished: list[Finished] = field(default_factory=list)
    expected: dict[str, str] = field(default_factory=dict)
    cut_short: set[int] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    indexed: set[str] = field(default_factory=set)

    def enter(self, event: str, **fields: Any) -> None:
        self.ledger.append({"event": event, "at": 0.0, "key": KEY, "number": 7, **fields})

    def record(self, **changes: Any) -> None:
        self.records[JOB] = replace(self.records[JOB], **changes)

    def judge(self) -> Account:
        return judge(
            Evidence(
                ledger=self.ledger,
                records=self.records,
                finished=self.finished,
                unsure=frozenset(self.unsure),
                cut_short=frozenset(self.cut_short),
                expected=self.expected,
                indexed=frozenset(self.indexed),
            )
        )


def good(kind: str = "plain") -> Case:
    case = Case()
    case.enter("attempt", kind=kind, template="acme/notes")
    case.enter("accepted", job_id=JOB)
    case.enter("result", job_id=JOB, status="succeeded", text="yes", worker=WORKER, attempt=1)
    case.records[JOB] = Record(
        job_id=JOB,
        key=KEY,
        state=JobState.SUCCEEDED,
        committed=True,
        dead=False,
        cancel_requested=False,
        error="",
        text="yes",
        attempt=1,
        worker=WORKER,
        deadline_at=100.0,
        finished_at=50.0,
    )
    case.finished.append(Finished(job_id=JOB, worker=WORKER, status="succeeded", attempt=1))
    case.expected[JOB] = "yes"
    return case


def ended(state: JobState, *, kind: str = "plain", **changes: Any) -> Case:
    """The same job, ended without a worker's result and not seen by its producer."""
    case = good(kind)
    case.finished.clear()
    case.ledger.pop()
    case.record(state=state, committed=False, text="", **changes)
    return case


def test_job_done_once_is_accounted_for() -> None:
    """One submit, one job, one commit, the answer that was expected."""
    account = good().judge()
    assert account.faults == []
    assert (account.submits, account.accepted) == (1, 1)
    assert account.outcomes == {"succeeded": 1}


def test_every_end_has_its_place() -> None:
    """Dead with a reason, cancelled on request, expired in time, failed as meant: no fault."""
    dead = ended(JobState.FAILED, kind="poison", dead=True, attempt=4)
    cancelled = ended(JobState.CANCELLED, kind="cancelled")
    cancelled.enter("cancel", job_id=JOB)
    expired = ended(JobState.EXPIRED, kind="hasty", finished_at=100.5)
    crashed = good("crashing")
    crashed.record(state=JobState.FAILED, error="internal_error", text="")
    crashed.finished = [replace(crashed.finished[0], status="failed")]
    crashed.ledger[-1] |= {"status": "failed", "text": ""}
    cases = {"dead": dead, "cancelled": cancelled, "expired": expired, "failed": crashed}
    for outcome, case in cases.items():
        account = case.judge()
        assert account.faults == [], outcome
        assert account.outcomes == {outcome: 1}
    assert dead.judge().dead_by == {"poison": 1}


def no_record(case: Case) -> None:
    case.records.clear()


def still_queued(case: Case) -> None:
    case.record(state=JobState.QUEUED, committed=False, finished_at=None)
    case.finished.clear()
    case.ledger.pop()


def still_running(case: Case) -> None:
    case.record(state=JobState.RUNNING, committed=False, finished_at=None)
    case.finished.clear()
    case.ledger.pop()


def vanished_for_its_producer(case: Case) -> None:
    case.ledger.pop()
    case.enter("vanished", job_id=JOB)


def committed_by_two(case: Case) -> None:
    case.finished.append(replace(case.finished[0], worker="host-4712-cd34", attempt=2))


def committed_twice_by_one(case: Case) -> None:
    case.finished.append(case.finished[0])


def record_forgot_the_commit(case: Case) -> None:
    case.record(committed=False, state=JobState.CANCELLED)
    case.enter("cancel", job_id=JOB)
    case.ledger = [entry for entry in case.ledger if entry["event"] != "result"]


def nobody_logged_it(case: Case) -> None:
    case.finished.clear()


def logged_by_another(case: Case) -> None:
    case.finished = [replace(case.finished[0], worker="host-4712-cd34")]


def logged_another_end(case: Case) -> None:
    case.finished = [replace(case.finished[0], status="failed")]


def seen_another_answer(case: Case) -> None:
    case.ledger[-1]["text"] = "no"


def anothers_answer(case: Case) -> None:
    case.record(text="no")
    case.ledger[-1]["text"] = "no"


def answer_to_nothing_known(case: Case) -> None:
    case.expected.clear()


def failed_for_no_reason(case: Case) -> None:
    case.record(state=JobState.FAILED, error="internal_error", text="")
    case.finished = [replace(case.finished[0], status="failed")]
    case.ledger.pop()


def dead_for_another_jobs_reason(case: Case) -> None:
    case.record(state=JobState.FAILED, dead=True, error="non_finite_logits", text="")
    case.finished = [replace(case.finished[0], status="failed")]
    case.ledger.pop()


def cancelled_by_nobody(case: Case) -> None:
    case.record(state=JobState.CANCELLED, committed=False, text="")
    case.finished.clear()
    case.ledger.pop()


def expired_early(case: Case) -> None:
    case.record(state=JobState.EXPIRED, committed=False, text="", finished_at=99.0)
    case.finished.clear()
    case.ledger.pop()


def second_job_accepted(case: Case) -> None:
    other = f"{JOB[:-1]}b"
    case.ledger.pop()
    case.enter("accepted", job_id=other)
    case.records[other] = replace(case.records[JOB], job_id=other)
    case.finished.append(replace(case.finished[0], job_id=other))
    case.expected[other] = "yes"


def second_record_of_the_key(case: Case) -> None:
    other = f"{JOB[:-1]}b"
    case.records[other] = replace(case.records[JOB], job_id=other)


def told_that_there_is_none(case: Case) -> None:
    case.ledger = [entry for entry in case.ledger if entry["event"] == "attempt"]
    case.enter("refused", error="redis_unreachable", maybe=False)
    case.enter("given_up")


def submitted_by_nobody(case: Case) -> None:
    case.records["x"] = replace(case.records[JOB], job_id="x", key="producer-9-1")


def refused_as_a_conflict(case: Case) -> None:
    case.enter("attempt", kind="plain")
    case.enter("refused", error="conflict", maybe=False)


def still_listed_as_running(case: Case) -> None:
    case.indexed.add(JOB)


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (no_record, "lost"),
        (still_queued, "lost"),
        (still_running, "lost"),
        (vanished_for_its_producer, "lost"),
        (committed_by_two, "twice"),
        (committed_twice_by_one, "twice"),
        (record_forgot_the_commit, "undone"),
        (nobody_logged_it, "unlogged"),
        (logged_by_another, "differs"),
        (logged_another_end, "differs"),
        (seen_another_answer, "differs"),
        (anothers_answer, "wrong_answer"),
        (answer_to_nothing_known, "wrong_answer"),
        (failed_for_no_reason, "wrong_end"),
        (dead_for_another_jobs_reason, "wrong_end"),
        (cancelled_by_nobody, "wrong_end"),
        (expired_early, "wrong_end"),
        (second_job_accepted, "two_jobs"),
        (second_record_of_the_key, "two_jobs"),
        (told_that_there_is_none, "phantom"),
        (submitted_by_nobody, "phantom"),
        (refused_as_a_conflict, "refused"),
        (still_listed_as_running, "left"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_what_is_wrong_is_found(spoil: Callable[[Case], None], kind: str) -> None:
    """One thing is spoilt, and that one fault is found."""
    case = good()
    spoil(case)
    assert {fault.kind for fault in case.judge().faults} == {kind}


@pytest.mark.parametrize("lost", [no_record, still_queued, still_running])
def test_lost_job_is_counted_as_lost(lost: Callable[[Case], None]) -> None:
    """It is accepted and has no other outcome."""
    case = good()
    lost(case)
    account = case.judge()
    assert account.accepted == 1
    assert account.outcomes == {"lost": 1}


def test_commit_need_not_be_logged_by_a_worker_that_was_killed() -> None:
    """Between the commit and the line it may have died; the same of one that is not sure."""
    killed, unsure, other = good(), good(), good()
    for case in (killed, unsure, other):
        case.finished.clear()
    killed.cut_short.add(4711)
    unsure.unsure.add(JOB)
    other.cut_short.add(4712)
    assert killed.judge().faults == []
    assert unsure.judge().faults == []
    assert [fault.kind for fault in other.judge().faults] == ["unlogged"]


@pytest.mark.parametrize("last", ["maybe", "killed"])
def test_producer_that_does_not_know_is_told_nothing_wrong(last: str) -> None:
    """The job may exist when the error said so, or when the producer died in the call."""
    case = good()
    case.ledger = [entry for entry in case.ledger if entry["event"] == "attempt"]
    if last == "maybe":
        case.enter("refused", error="redis_unreachable", maybe=True)
    account = case.judge()
    assert account.faults == []
    assert account.outcomes == {"succeeded": 1}, "a job that exists is accounted for all the same"


def test_key_that_was_given_up_is_no_lost_job() -> None:
    """Nothing was accepted and nothing exists."""
    case = good()
    told_that_there_is_none(case)
    case.records.clear()
    case.finished.clear()
    account = case.judge()
    assert account.faults == []
    assert (account.accepted, account.given_up, account.refusals.total()) == (0, 1, 1)


@pytest.mark.parametrize(
    ("code", "told", "kinds"),
    [
        (0, True, []),
        (-9, False, []),
        (3, False, []),
        (-15, True, []),
        (0, False, ["crashed"]),
        (1, True, ["crashed"]),
        (9, False, ["crashed"]),
        (-15, False, ["crashed"]),
        (-11, False, ["crashed"]),
    ],
)
def test_processes_end_as_they_should(code: int, told: bool, kinds: list[str]) -> None:
    """With 0 when told to, or killed; a Redis away at the start is 3."""
    event = {"event": "ended", "actor": "worker-1", "code": code, "told": told}
    assert [fault.kind for fault in faults_of_processes([event])] == kinds


def test_hung_process_is_a_fault() -> None:
    """It had to be killed at the end."""
    assert [f.kind for f in faults_of_processes([{"event": "hung", "actor": "worker-1"}])] == [
        "hung"
    ]


def test_key_and_pid_are_read_from_what_carries_them() -> None:
    """The key stands in the job's input, the pid in the worker's id."""
    assert key_in("work=0.20 [producer-2-31] quicksand") == "producer-2-31"
    assert worker_pid("a-host-name-812-1f2e") == 812
    assert worker_pid("") == 0
