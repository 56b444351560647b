"""The stack in memory and Redis, each behind both producers: one scenario, the same facts."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from contract import keys
from contract.errors import PrefillqError
from contract.job_store import Claimed, JobStore, PieceWrite
from contract.pieces import Entry
from contract.redis_client import text
from contract.settings import Settings
from contract.types import JobError, JobState, Result, Usage
from producer.async_client import AsyncProducer
from producer.client import Producer
from producer.testing import Asked, Stack
from templates.registry import Registry
from tests.support.published import COMPILED, MODEL, make_spec

LIMITED: dict[str, Any] = {"limits": {"max_queue": 4}}
NOBODY = "acme." + "0" * 32
_IDS = re.compile(r"acme\.[0-9a-f]{32}")
_TIMES = re.compile(r"\d+-\d+")

Facts = dict[str, Any]
Work = Callable[[], object]  # answer all jobs that wait


def answer_to(ticket: str) -> str:
    if ticket == "break":
        raise ValueError("broken")
    return f"echo: {ticket}"


async def scenario(producer: Any, work: Work) -> Facts:
    """What a producer shows of jobs that are refused, wait, are answered, fail, are cancelled."""
    facts: Facts = {}

    async def note(name: str, act: Callable[[], Any]) -> Any:
        try:
            found = await _value(act())
        except (PrefillqError, TypeError, ValueError) as error:
            facts[name] = _plain(error)
            return None
        facts[name] = _plain(found)
        return found

    submit = producer.submit
    for name, template, variables, options in (
        ("no template", "acme/triagee", {"ticket": "x"}, {}),
        ("no tenant", "globex/triage", {"ticket": "x"}, {}),
        ("no address", "acme", {"ticket": "x"}, {}),
        ("no version", "acme/triage@7", {"ticket": "x"}, {}),
        ("no label", "acme/triage@nightly", {"ticket": "x"}, {}),
        ("no variable", "acme/triage", {}, {}),
        ("a variable too many", "acme/triage", {"ticket": "x", "y": 1}, {}),
        ("another type", "acme/triage", {"ticket": 1}, {}),
        ("a float that is none", "acme/triage", {"ticket": float("nan")}, {}),
        ("a lone surrogate", "acme/triage", {"ticket": "\ud800"}, {}),
        ("no deadline", "acme/triage", {"ticket": "x"}, {"deadline_s": -1.0}),
        ("no key", "acme/triage", {"ticket": "x"}, {"idempotency_key": ""}),
    ):
        await note(name, lambda t=template, v=variables, o=options: submit(t, v, **o))
    tickets = [{"ticket": "x"}, {"ticket": 2}]
    await note("a bad item", lambda: producer.submit_many("acme/triage", tickets))
    await note(
        "keys too few",
        lambda: producer.submit_many("acme/triage", tickets[:1], idempotency_keys=["a", "b"]),
    )

    first = await _value(submit("acme/triage", {"ticket": "one"}, idempotency_key="k"))
    again = await _value(submit("acme/triage", {"ticket": "one"}, idempotency_key="k"))
    facts["the same job"] = first == again
    await note("another input", lambda: submit("acme/triage", {"ticket": "2"}, idempotency_key="k"))
    await note("queued", first.status)
    await note("too early", lambda: first.result(timeout=0.02))
    await note("none in time", lambda: _all(producer.as_completed([first], timeout=0.02)))
    await note("scored too early", lambda: first.score("quality", 1.0))
    await note("not streamed", lambda: _all(first.stream()))
    bad, void, streamed = [
        await _value(submit("acme/triage", {"ticket": ticket}, stream=ticket == "three"))
        for ticket in ("break", "two", "three")
    ]
    await note("full", lambda: submit("acme/triage", {"ticket": "x"}))
    await note("cancelled", void.cancel)
    await note("cancelled again", void.cancel)
    await note("what was cancelled", lambda: void.result(timeout=5))
    work()
    await note("one", lambda: first.result(timeout=5))
    await note("failed", lambda: bad.result(timeout=5))
    await note("failed, returned", lambda: bad.outcome(timeout=5))
    await note("cancelled too late", first.cancel)
    ended = await _value(_all(producer.as_completed([first, bad, void, first], timeout=5)))
    facts["as completed"] = len(ended) == 3 and set(ended) == {first, bad, void}
    pieces = await note("pieces", lambda: _all(streamed.stream(timeout=5)))
    await note("from the first", lambda: _all(streamed.stream(after=pieces[0].entry)))
    await note("no entry", lambda: _all(streamed.stream(after="x")))
    await note("an entry that is gone", lambda: _all(streamed.stream(after="7-7")))
    for name, score in {"quality": 0.5, "": 1.0, "nan": float("nan"), "word": "x"}.items():
        await note(f"score {name}", lambda n=name, s=score: first.score(n, s))
    await note("score of a failure", lambda: bad.score("quality", 1.0))
    facts["scores"] = (await _value(first.view())).scores
    await note("no id", lambda: producer.handle("x"))
    nobody = producer.handle(NOBODY)
    for name in ("status", "view", "result", "outcome", "cancel"):
        await note(f"{name} of nobody", getattr(nobody, name))
    await note("stream of nobody", lambda: _all(nobody.stream()))
    await note("score of nobody", lambda: nobody.score("quality", 1.0))
    await note("nobody is over", lambda: _all(producer.as_completed([nobody], timeout=5)))
    await note("none", lambda: producer.submit_many("acme/triage", []))
    late = await _value(submit("acme/triage", {"ticket": "late"}))
    await _value(producer.close())
    await note("closed", lambda: late.result(timeout=5))
    return facts


async def _value(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


def _all(found: Any) -> Any:
    async def items(many: AsyncIterator[Any]) -> list[Any]:
        return [item async for item in many]

    return items(found) if isinstance(found, AsyncIterator) else list(found)


def _plain(value: Any) -> Any:
    """What tells two ways from each other, and not two runs."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, PrefillqError):
        return {"type": type(value).__name__, **_texts(value.to_dict())}
    if isinstance(value, Exception):
        return type(value).__name__
    if isinstance(value, Result):
        error = value.error
        return (value.status, value.text, value.attempt, error and (error.code, error.message))
    if hasattr(value, "to_dict"):
        return _texts(value.to_dict())
    return value if value is None or isinstance(value, str | bool) else type(value).__name__[-9:]


def _texts(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _TIMES.sub("ENTRY", _IDS.sub("ID", value)) if isinstance(value, str) else value
        for name, value in found.items()
    }


def in_memory(made: Callable[[Stack], Any]) -> Iterator[tuple[Callable[[], Any], Work]]:
    with Stack() as stack, stack.held():
        stack.publish(make_spec(**LIMITED).to_plain())

        def answer(asked: Asked) -> Any:
            yield "echo"
            yield answer_to(asked.variables["ticket"]).removeprefix("echo")

        stack.answer("acme/triage", answer)
        yield lambda: made(stack), stack.run


def run_on_redis(store: JobStore, waiting: list[str]) -> None:
    """Answer them, as a worker without a model."""
    for job_id in waiting:
        claim = store.claim(job_id, "w1", 10.0)
        assert isinstance(claim, Claimed)
        job = claim.job
        result = Result(
            job_id=job.id,
            ref=job.ref,
            status=JobState.SUCCEEDED,
            usage=Usage(),
            attempt=job.attempt,
        )
        try:
            result = replace(result, text=answer_to(job.variables["ticket"]))
        except ValueError as error:
            words = f"ValueError in the test's answer: {error}"
            broken = JobError(code="internal_error", message=words)
            result = replace(result, status=JobState.FAILED, error=broken)
        if job.stream:
            ends = (0, 4, len(result.text))
            entries = tuple(
                Entry(kind="text", fence=job.fence, attempt=1, at=at, text=result.text[at:to])
                for at, to in pairwise(ends)
            )
            store.write_pieces([PieceWrite(job_id=job.id, entries=entries, keep_s=60.0)])
        store.commit(result, job.fence)


@pytest.fixture(scope="module")
def expected() -> Facts:
    """Those of the stack's blocking producer."""
    [facts] = [
        asyncio.run(scenario(make(), work))
        for make, work in in_memory(lambda stack: stack.producer)
    ]
    return facts


def test_the_stacks_event_loop(expected: Facts) -> None:
    """The producer of event loops on the same stack."""

    async def run(make: Callable[[], Any], work: Work) -> Facts:
        return await scenario(make(), work)

    for make, work in in_memory(lambda stack: stack.async_producer()):
        assert asyncio.run(run(make, work)) == expected


@pytest.mark.parametrize("kind", [Producer, AsyncProducer], ids=["blocking", "event loop"])
def test_redis(
    expected: Facts,
    kind: Any,
    registry: Registry,
    producer_settings: Settings,
    worker_settings: Settings,
    open_store: Callable[[Settings], JobStore],
    client: Any,
) -> None:
    """What the stack shows is what Redis would."""
    registry.publish(make_spec(**LIMITED), COMPILED, MODEL)
    store = open_store(worker_settings)

    def work() -> None:
        run_on_redis(store, [text(job_id) for job_id in client.zrange(keys.queued("acme"), 0, -1)])

    async def run() -> Facts:
        return await scenario(kind(producer_settings), work)

    found = asyncio.run(run())
    assert expected.keys() == found.keys()
    for name, fact in expected.items():
        assert found[name] == fact, name
