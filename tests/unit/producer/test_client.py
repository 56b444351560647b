"""What a producer enqueues, announces and takes back; no Redis needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from contract import keys
from contract.errors import (
    Conflict,
    InvalidInput,
    JobFailed,
    NotFound,
    RedisRefused,
    RedisUnreachable,
    TemplateMoved,
    TimedOut,
)
from contract.ids import new_job_id
from contract.job_store import Submission
from contract.settings import Settings
from contract.types import JobError, JobState
from producer.bell import Ring
from producer.client import Producer
from producer.desk import Parts
from producer.handle import JobHandle
from templates.rollouts.rollout import Rollout
from tests.support.producer_rig import TICKET, Rig
from tests.support.published import MODEL, make_spec, make_version
from tests.support.rollouts import make_plan, make_rollout


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    with rig.producer:
        yield rig


def test_submit_writes_the_record_and_rings_once(rig: Rig) -> None:
    """The record holds the resolved version and the input; the ring carries only the id."""
    handle = rig.producer.submit("acme/triage", TICKET, use_cache=False)
    view = handle.view()
    assert (view.state, view.job.ref, view.job.variables) == (
        JobState.QUEUED,
        rig.shelf.versions[1].ref,
        TICKET,
    )
    assert view.job.use_cache is False
    queue = keys.queue("acme", "triage", MODEL.model_digest)
    assert rig.bell.rung == [Ring(queue=queue, job_id=handle.id)]


def test_repeated_submit_rings_where_the_first_job_waits(rig: Rig) -> None:
    """A new version may need another model; the job found by its key keeps its own queue."""
    first = rig.producer.submit("acme/triage", TICKET, idempotency_key="k")
    other = replace(rig.shelf.versions[1], model_digest="9" * 64)
    rig.shelf.versions[1] = other
    assert rig.producer.submit("acme/triage", TICKET, idempotency_key="k").id == first.id
    assert rig.bell.rung[1] == rig.bell.rung[0]


def test_the_version_is_resolved_at_submit_and_stays(rig: Rig) -> None:
    """A label that moves later changes no job; the next submit sees it moved."""
    before = rig.producer.submit("acme/triage", TICKET)
    rig.shelf.labels["production"] = 2
    after = rig.producer.submit("acme/triage", TICKET)
    assert (before.view().job.ref.version, after.view().job.ref.version) == (1, 2)
    assert rig.producer.submit("acme/triage@1", TICKET).view().job.ref.version == 1


@pytest.mark.parametrize("address", ["acme/triage@7", "acme/triage@canary", "acme/nothing"])
def test_an_unknown_template_is_not_found_and_nothing_is_enqueued(rig: Rig, address: str) -> None:
    """Case Q12: exit code 4 at submit."""
    with pytest.raises(NotFound) as caught:
        rig.producer.submit(address, TICKET)
    assert caught.value.exit_code == 4
    assert rig.bell.rung == []
    assert rig.store._records == {}


@pytest.mark.parametrize(
    ("given", "template_limit", "expected"), [(5.0, 50.0, 5), (None, 50.0, 50), (None, None, 1000)]
)
def test_the_callers_deadline_goes_before_the_templates(
    rig: Rig, given: float | None, template_limit: float | None, expected: float
) -> None:
    """Then the template's, then the setting's."""
    rig.shelf.versions[1] = make_version(make_spec(limits={"deadline_s": template_limit}))
    job = rig.producer.submit("acme/triage", TICKET, deadline_s=given).view().job
    assert job.deadline_at is not None
    assert job.deadline_at - job.created_at == pytest.approx(expected)


def test_the_same_key_and_input_gives_the_same_job_and_rings_while_it_waits(rig: Rig) -> None:
    """Case Q17; the second ring mends a first one that was lost, and a job that ran needs none."""
    first = rig.producer.submit("acme/triage", TICKET, idempotency_key="k")
    rig.shelf.labels["production"] = 2  # a retry after a move is still the same request
    assert rig.producer.submit("acme/triage@production", TICKET, idempotency_key="k") == first
    assert len(rig.bell.rung) == 2
    rig.run(first.id)
    assert rig.producer.submit("acme/triage", TICKET, idempotency_key="k") == first
    assert len(rig.bell.rung) == 2


@pytest.mark.parametrize(
    "other",
    [
        {"variables": {"ticket": "another"}},
        {"template": "acme/triage@1"},
        {"use_cache": False},
    ],
)
def test_the_same_key_and_other_input_is_a_conflict(rig: Rig, other: dict[str, Any]) -> None:
    """Case Q17: other variables, another address or other options; the first id is named."""
    asked: dict[str, Any] = {"template": "acme/triage", "variables": TICKET, "idempotency_key": "k"}
    first = rig.producer.submit(**asked)
    with pytest.raises(Conflict, match=first.id):
        rig.producer.submit(**asked | other)
    assert len(rig.bell.rung) == 1


def test_a_submit_that_cannot_ring_leaves_nothing(rig: Rig) -> None:
    """Case Q7: the record is taken back, and the error says that nothing was enqueued."""
    rig.bell.works_for = 0
    with pytest.raises(RedisUnreachable, match="Nothing was enqueued") as caught:
        rig.producer.submit("acme/triage", TICKET, idempotency_key="k")
    assert caught.value.exit_code == 3
    assert rig.store._records == {}
    rig.bell.works_for = 1
    rig.producer.submit("acme/triage", {"ticket": "other"}, idempotency_key="k")


def test_what_a_worker_took_meanwhile_is_named(rig: Rig) -> None:
    """A job that runs already cannot be taken back; its id is in the message."""
    ring = rig.bell.ring

    def claimed_first(rings: Iterable[Ring]) -> None:
        for one in rings:
            rig.store.claim(one.job_id, "w1", 60)
        rig.bell.works_for = 0
        ring([Ring(queue="acme/triage/x", job_id="any")])

    rig.bell.ring = claimed_first  # type: ignore[method-assign]
    with pytest.raises(RedisUnreachable, match="may have been enqueued") as caught:
        rig.producer.submit("acme/triage", TICKET)
    [job_id] = rig.store._records
    assert job_id in str(caught.value)


@pytest.mark.parametrize("kind", [RedisUnreachable, RedisRefused])
def test_a_lost_reply_says_that_the_job_may_exist(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, kind: type[RedisUnreachable | RedisRefused]
) -> None:
    """Redis goes away after the record was written: the truth is unknown, and that is said."""
    submit_many = rig.store.submit_many

    def written_but_lost(submissions: list[Submission]) -> None:
        submit_many(submissions)
        raise kind("gone")

    def gone(*_: object, **__: object) -> bool:
        raise RedisUnreachable("gone")

    monkeypatch.setattr(rig.store, "submit_many", written_but_lost)
    monkeypatch.setattr(rig.store, "withdraw", gone)
    with pytest.raises(kind, match="may have been enqueued") as caught:
        rig.producer.submit("acme/triage", TICKET)
    assert "same idempotency key" in str(caught.value)


def test_submit_many_keeps_the_order_and_one_version(rig: Rig) -> None:
    """Handles come in the order of the inputs, any iterable goes in."""
    handles = rig.producer.submit_many("acme/triage", ({"ticket": str(n)} for n in range(300)))
    assert [h.view().job.variables["ticket"] for h in handles] == [str(n) for n in range(300)]
    assert [ring.job_id for ring in rig.bell.rung] == [handle.id for handle in handles]
    assert rig.producer.submit_many("acme/triage", []) == []


def test_submit_many_checks_all_before_it_enqueues_one(rig: Rig) -> None:
    """One bad input in the middle: it is named by its place and nothing was enqueued."""
    with pytest.raises(InvalidInput, match=r"item 2: \$\.ticket does not fit"):
        rig.producer.submit_many("acme/triage", [TICKET, TICKET, {"ticket": 7}, TICKET])
    assert rig.store._records == {}


def test_submit_many_takes_back_all_when_one_is_refused(rig: Rig) -> None:
    """A queue that fills up half-way leaves none of this call's jobs behind."""
    rig.shelf.versions[1] = make_version(make_spec(limits={"max_queue": 3}))
    kept = rig.producer.submit("acme/triage", TICKET)
    with pytest.raises(Conflict, match="full"):
        rig.producer.submit_many("acme/triage", [TICKET] * 3)
    assert list(rig.store._records) == [kept.id]
    assert len(rig.bell.rung) == 1


def test_submit_many_takes_back_all_when_ringing_stops(rig: Rig) -> None:
    """Also those that were rung already, as no worker has taken them."""
    rig.bell.works_for = 2
    with pytest.raises(RedisUnreachable, match="Nothing was enqueued"):
        rig.producer.submit_many("acme/triage", [TICKET] * 4)
    assert rig.store._records == {}


@pytest.mark.parametrize("keys", [["a"], ["a", "a"], ["a", "b", "c"]])
def test_submit_many_wants_one_key_per_input(rig: Rig, keys: list[str]) -> None:
    """Too few, too many or repeated idempotency keys are InvalidInput."""
    with pytest.raises(InvalidInput, match="idempotency keys"):
        rig.producer.submit_many("acme/triage", [TICKET] * 2, idempotency_keys=keys)


def test_submit_many_with_keys_can_be_repeated(rig: Rig) -> None:
    """The second call finds the first one's jobs and makes only what is new."""
    first = rig.producer.submit_many("acme/triage", [TICKET] * 2, idempotency_keys=["a", "b"])
    again = rig.producer.submit_many("acme/triage", [TICKET] * 3, idempotency_keys=["a", "b", "c"])
    assert again[:2] == first
    assert len(rig.store._records) == 3


def test_a_result_is_waited_for(rig: Rig) -> None:
    """`result` returns once the job has succeeded, at once if it has already."""
    handle = rig.producer.submit("acme/triage", TICKET)
    with pytest.raises(TimedOut, match=handle.id) as caught:
        handle.result(timeout=0.05)
    assert caught.value.exit_code == 6
    rig.run(handle.id)
    assert handle.result().text == "billing"
    assert rig.producer.handle(handle.id).result(timeout=0).text == "billing"


def test_a_timeout_is_one_however_often_a_notice_lies(rig: Rig) -> None:
    """Anybody may publish a job's id; its end is in the record alone."""
    handle, over = rig.producer.submit("acme/triage", TICKET), threading.Event()

    def cry() -> None:
        for _ in range(80):
            if over.wait(0.05):
                return
            rig.producer._watcher._tell(handle.id)

    crying = threading.Thread(target=cry)
    crying.start()
    started = time.monotonic()
    try:
        with pytest.raises(TimedOut):
            handle.outcome(timeout=0.3)
        assert time.monotonic() - started < 2
    finally:
        over.set()
        crying.join()


def test_a_job_that_failed_raises_with_its_result(rig: Rig) -> None:
    """JobFailed, exit code 8, says why; `outcome` returns the same Result instead."""
    handle = rig.producer.submit("acme/triage", TICKET)
    error = JobError(code="too_long", message="the prompt has 9 tokens too many")
    rig.run(handle.id, status=JobState.FAILED, error=error)
    with pytest.raises(JobFailed, match="9 tokens too many") as caught:
        handle.result()
    assert caught.value.exit_code == 8
    assert caught.value.result == handle.outcome()
    assert handle.outcome().status is JobState.FAILED


def test_a_cancelled_job_raises_too(rig: Rig) -> None:
    """A cancel that ends a queued job is told to whoever waits for its result."""
    handle = rig.producer.submit("acme/triage", TICKET)
    assert handle.cancel() is JobState.CANCELLED
    assert handle.status() is JobState.CANCELLED
    with pytest.raises(JobFailed, match="cancelled"):
        handle.result()
    with pytest.raises(Conflict):
        handle.cancel()


def test_an_unknown_job_is_not_found_and_a_bad_id_is_invalid(rig: Rig) -> None:
    """Case Q18: neither looks pending."""
    handle = rig.producer.handle(new_job_id("acme"))
    for read in (handle.result, handle.status, handle.cancel, handle.view, handle.outcome):
        with pytest.raises(NotFound):
            read()
    with pytest.raises(InvalidInput):
        rig.producer.handle("acme.123")


def test_wait_yields_each_handle_as_it_ends(rig: Rig) -> None:
    """Finished ones first, those without a record too; at the timeout TimedOut counts the rest."""
    handles = rig.producer.submit_many("acme/triage", [TICKET] * 3)
    unknown = rig.producer.handle(new_job_id("acme"))
    rig.run(handles[2].id)
    waiting = rig.producer.wait([*handles, handles[2], unknown], timeout=0.5)
    assert {next(waiting), next(waiting)} == {handles[2], unknown}
    rig.run(handles[0].id)
    assert next(waiting) == handles[0]
    with pytest.raises(TimedOut, match="1 of 4"):
        next(waiting)
    assert list(rig.producer.wait([])) == []


def test_handles_are_equal_by_id(rig: Rig) -> None:
    """Two handles of one job are one member of a set, and print their id."""
    handle = rig.producer.submit("acme/triage", TICKET)
    assert {handle, rig.producer.handle(handle.id)} == {handle}
    assert handle != handle.id
    assert repr(handle) == f"JobHandle({handle.id!r})"
    assert isinstance(handle, JobHandle)


def test_a_closed_producer_does_not_wait(rig: Rig) -> None:
    """Waiting on a closed producer is an error, not a hang; closing twice is fine."""
    handle = rig.producer.submit("acme/triage", TICKET)
    rig.producer.close()
    with pytest.raises(Exception, match="closed"):
        handle.result(timeout=5)


def test_a_patient_submit_enqueues_once_whatever_was_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record's reply is lost, then the ring fails twice: one job, with one record, rung for."""
    monkeypatch.setattr("producer.patience.RETRY_S", 0.0)
    submit_many, ring = rig.store.submit_many, rig.bell.ring
    losses = ["record", "ring", "ring"]

    def submits(submissions: Any) -> Any:
        outcomes = submit_many(submissions)
        if losses[:1] == ["record"]:
            losses.pop(0)
            raise RedisUnreachable("the reply was lost")
        return outcomes

    def rings(all_rings: Any) -> None:
        if losses:
            losses.pop(0)
            raise RedisUnreachable("no bell")
        ring(all_rings)

    monkeypatch.setattr(rig.store, "submit_many", submits)
    monkeypatch.setattr(rig.bell, "ring", rings)
    parts = Parts(store=rig.store, undo_store=rig.store, versions=rig.shelf, bell=rig.bell)
    with Producer(Settings(), parts=parts, patience_s=20.0) as patient:
        [handle] = patient.submit_many("acme/triage", [TICKET], idempotency_keys=["k"])
        assert [one.job_id for one in rig.bell.rung] == [handle.id]
        assert list(rig.store._records) == [handle.id]


def test_an_impatient_submit_takes_back_what_it_wrote(rig: Rig) -> None:
    """Without patience nothing is tried twice, and nothing is left."""
    rig.bell.works_for = 0
    with pytest.raises(RedisUnreachable, match="Nothing was enqueued"):
        rig.producer.submit("acme/triage", TICKET)
    assert not rig.store._records


# --- rollouts


def _in_rollout(rig: Rig, **changes: Any) -> Rollout:
    rig.shelf.rollout = make_rollout(plan=make_plan(steps=(5000, 10_000), **changes), step=0)
    return rig.shelf.rollout


def test_each_job_of_a_call_has_the_version_of_its_key(rig: Rig) -> None:
    """And its rollout; the same key always the same one."""
    rollout = _in_rollout(rig)
    names = [f"c{n % 10}" for n in range(40)]
    jobs = rig.producer.submit_many("acme/triage", [TICKET] * 40, sticky_keys=names)
    versions = [job.view().job.ref.version for job in jobs]
    assert versions == [rollout.version_for("acme", name) for name in names]
    assert set(versions) == {1, 2}
    assert {job.view().job.rollout for job in jobs} == {rollout.id}


def test_a_key_goes_before_the_variable_and_that_before_the_id(rig: Rig) -> None:
    """None among the keys of many leaves it to the variable."""
    rollout = _in_rollout(rig, sticky_key="ticket")
    for n in range(10):
        ticket = {"ticket": f"t{n}"}
        own, other = rig.producer.submit_many("acme/triage", [ticket] * 2, sticky_keys=["k", None])
        assert own.view().job.ref.version == rollout.version_for("acme", "k")
        assert other.view().job.ref.version == rollout.version_for("acme", f"t{n}")
    rollout = _in_rollout(rig)
    for job in rig.producer.submit_many("acme/triage", [TICKET] * 10):
        assert job.view().job.ref.version == rollout.version_for("acme", job.id)


def test_a_template_that_moved_is_looked_at_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written stays, the rest is chosen anew, and all are rung for once."""
    submit_many, calls = rig.store.submit_many, []

    def halves(submissions: Any) -> Any:
        calls.append(len(submissions))
        if len(calls) > 1:
            return submit_many(submissions)
        first = submit_many(submissions[:2])
        rig.store.template_moved("acme", "triage", 1)
        rig.shelf.labels["production"], rig.shelf.revision = 2, 1
        return first + submit_many(submissions[2:])

    monkeypatch.setattr(rig.store, "submit_many", halves)
    jobs = rig.producer.submit_many("acme/triage", [TICKET] * 5)
    assert [job.view().job.ref.version for job in jobs] == [1, 1, 2, 2, 2]
    assert calls == [5, 3]
    assert [ring.job_id for ring in rig.bell.rung] == [job.id for job in jobs]


def test_a_retired_number_is_refused_by_the_store(rig: Rig) -> None:
    """Again and again, for a registry that has not heard of it; nothing is left."""
    rig.store.template_moved("acme", "triage", 4, retired=[2])
    with pytest.raises(TemplateMoved):
        rig.producer.submit("acme/triage@2", TICKET)
    assert not rig.store._records
    assert rig.producer.submit("acme/triage@1", TICKET)


def test_a_job_is_found_by_its_key_when_its_template_is_gone(rig: Rig) -> None:
    """Only by the same input, and rung for again."""
    job = rig.producer.submit("acme/triage", TICKET, idempotency_key="k")
    del rig.shelf.labels["production"]
    assert rig.producer.submit("acme/triage", TICKET, idempotency_key="k") == job
    assert len(rig.bell.rung) == 2
    with pytest.raises(Conflict):
        rig.producer.submit("acme/triage", {"ticket": "other"}, idempotency_key="k")
    with pytest.raises(NotFound):
        rig.producer.submit("acme/triage", TICKET, idempotency_key="new")
    assert list(rig.store._records) == [job.id]


def test_an_answer_is_scored_through_its_handle(rig: Rig) -> None:
    """As the store says."""
    job = rig.producer.submit("acme/triage", TICKET)
    with pytest.raises(Conflict, match="queued"):
        job.score("quality", 1.0)
    rig.run(job.id)
    job.score("quality", 0.5)
    assert job.view().scores == {"quality": 0.5}
