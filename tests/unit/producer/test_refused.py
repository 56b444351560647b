"""What a canary alone refuses at submit is told to its rollout; no Redis needed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from contract.errors import CodecError, Conflict, InvalidInput, PrefillqError, RedisUnreachable
from contract.types import VersionRef
from producer.async_client import AsyncProducer
from producer.client import Producer
from producer.desk import Parts
from templates.rollouts.split import WHOLE
from tests.support.producer_rig import TICKET, Rig
from tests.support.published import make_spec, make_version
from tests.support.rollouts import ID, make_plan, make_rollout

NARROW = {
    "type": "object",
    "properties": {"ticket": {"type": "string", "enum": ["refund?"]}},
    "required": ["ticket"],
}
OTHER_TICKET = {"ticket": "parcel?"}


class Told:
    """Remembers what was told; fails on request."""

    def __init__(self) -> None:
        self.of: list[tuple[VersionRef, str]] = []
        self.error: PrefillqError | None = None

    async def refused(self, ref: VersionRef, rollout: str) -> None:
        if self.error is not None:
            raise self.error
        self.of.append((ref, rollout))


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    with rig.producer:
        yield rig


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def parts(rig: Rig, told: Told) -> Parts:
    return Parts(
        store=rig.store,
        undo_store=rig.store,
        versions=rig.shelf,
        bell=rig.bell,
        outcomes=told,
    )


@pytest.fixture
def producer(parts: Parts) -> Iterator[Producer]:
    with Producer(parts=parts) as producer:
        yield producer


def lead(rig: Rig, *, weight: int = WHOLE, **changes: Any) -> VersionRef:
    """A rollout to a version 2 that differs so."""
    rig.shelf.versions[2] = make_version(make_spec(text="Two: ", **changes), number=2)
    rig.shelf.rollout = make_rollout(plan=make_plan(steps=(weight,)), step=0)
    return rig.shelf.versions[2].ref


def test_variables_that_the_canary_alone_refuses_are_told(
    rig: Rig, producer: Producer, told: Told
) -> None:
    """Once for each submit; what both take and what neither takes is not."""
    canary = lead(rig, schema=NARROW)
    producer.submit("acme/triage", TICKET)
    with pytest.raises(InvalidInput):
        producer.submit("acme/triage", {"ticket": 7})
    assert told.of == []
    for times in (1, 2):
        with pytest.raises(InvalidInput, match="ticket"):
            producer.submit("acme/triage", OTHER_TICKET)
        assert told.of == [(canary, ID)] * times


def test_the_producer_of_event_loops_tells_too(rig: Rig, parts: Parts, told: Told) -> None:
    """The same."""
    canary = lead(rig, schema=NARROW)

    async def scenario() -> None:
        async with AsyncProducer(parts=parts) as producer:
            with pytest.raises(InvalidInput):
                await producer.submit("acme/triage", OTHER_TICKET)

    asyncio.run(scenario())
    assert told.of == [(canary, ID)]


def test_what_the_stable_version_refuses_is_its_own(
    rig: Rig, producer: Producer, told: Told
) -> None:
    """A job that it was to take, whatever the canary would say; and any outside of a rollout."""
    lead(rig, schema=NARROW)
    rig.shelf.versions[1] = make_version(make_spec(schema=NARROW))
    rig.shelf.versions[2] = make_version(make_spec(text="Two: "), number=2)
    rig.shelf.rollout = make_rollout(plan=make_plan(steps=(1,)), step=-1)
    with pytest.raises(InvalidInput):
        producer.submit("acme/triage", OTHER_TICKET, sticky_key="x")
    with pytest.raises(InvalidInput):
        producer.submit("acme/triage@1", OTHER_TICKET)
    assert told.of == []


def test_what_is_wrong_with_a_submit_is_not_the_canarys_fault(
    rig: Rig, producer: Producer, told: Told
) -> None:
    """No key, no deadline: either version would be refused so."""
    lead(rig)
    with pytest.raises(InvalidInput):
        producer.submit("acme/triage", TICKET, idempotency_key="")
    with pytest.raises(InvalidInput):
        producer.submit("acme/triage", TICKET, deadline_s=-1.0)
    assert told.of == []


def test_a_canary_that_cannot_be_read_is_told(
    rig: Rig, producer: Producer, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a newer release perhaps; if the stable one can be."""
    canary, get = lead(rig), rig.shelf.get
    broken = {canary.version}

    def get_or_fail(ref: VersionRef) -> Any:
        if ref.version in broken:
            raise CodecError("cannot be read")
        return get(ref)

    monkeypatch.setattr(rig.shelf, "get", get_or_fail)
    with pytest.raises(CodecError):
        producer.submit("acme/triage", TICKET)
    assert told.of == [(canary, ID)]
    broken.add(1)
    with pytest.raises(CodecError):
        producer.submit("acme/triage", TICKET)
    assert len(told.of) == 1


@pytest.mark.parametrize(("longest", "times"), [(None, 1), (9, 1), (2, 0), (1, 0)])
def test_a_queue_that_is_full_for_the_canary_alone_is_told(
    rig: Rig, producer: Producer, told: Told, longest: int | None, times: int
) -> None:
    """Its `limits.max_queue` is 2; once a call, not once an item."""
    limits = {} if longest is None else {"max_queue": longest}
    rig.shelf.versions[1] = make_version(make_spec(limits=limits))
    canary = lead(rig, limits={"max_queue": 2})
    producer.submit("acme/triage", TICKET, idempotency_key="k")
    with pytest.raises(Conflict, match="other input"):
        producer.submit("acme/triage", OTHER_TICKET, idempotency_key="k")
    assert told.of == []
    with pytest.raises(Conflict, match="is full"):
        producer.submit_many("acme/triage", [TICKET] * 9)
    assert told.of == [(canary, ID)] * times


def test_a_job_that_was_enqueued_under_its_key_is_not_refused(
    rig: Rig, producer: Producer, told: Told
) -> None:
    """It is found, whatever its version is by now."""
    first = producer.submit("acme/triage", OTHER_TICKET, idempotency_key="k")
    lead(rig, schema=NARROW)
    assert producer.submit("acme/triage", OTHER_TICKET, idempotency_key="k").id == first.id
    assert told.of == []


def test_many_that_are_refused_are_told_once_a_call(
    rig: Rig, producer: Producer, told: Told
) -> None:
    """The call ends with the first."""
    lead(rig, schema=NARROW)
    with pytest.raises(InvalidInput, match="item 1"):
        producer.submit_many("acme/triage", [TICKET, OTHER_TICKET, OTHER_TICKET])
    assert len(told.of) == 1


def test_what_goes_wrong_with_telling_hides_nothing(
    rig: Rig, producer: Producer, told: Told
) -> None:
    """The caller learns what is wrong with its variables."""
    lead(rig, schema=NARROW)
    told.error = RedisUnreachable("away")
    with pytest.raises(InvalidInput):
        producer.submit("acme/triage", OTHER_TICKET)
