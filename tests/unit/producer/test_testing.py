"""The stack in memory that users have for their own tests: what it answers, and how it fails."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from contract.errors import (
    Conflict,
    InvalidInput,
    JobFailed,
    NotFound,
    PrefillqError,
    SpecInvalid,
    TemplateRefused,
)
from contract.pieces import joined
from contract.types import JobState
from producer.testing import Asked, Message, Stack

ROOT = Path(__file__).parents[3]
TRIAGE: dict[str, Any] = {
    "tenant": "acme",
    "name": "triage",
    "model": "any-model",
    "messages": [
        {"role": "system", "content": "You sort tickets."},
        {"role": "user", "content": "Ticket: {{ ticket }}"},
    ],
    "input": {
        "schema": {
            "type": "object",
            "properties": {"ticket": {"type": "string"}, "lines": {"type": "array"}},
            "required": ["ticket"],
            "additionalProperties": False,
        }
    },
}
TICKET = {"ticket": "refund?"}


class Passing(PrefillqError):
    """What may not be met again."""

    code = "device_busy"
    passing = True


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack() as stack:
        stack.publish(TRIAGE)
        yield stack


def test_a_canned_answer(stack: Stack) -> None:
    """One for all jobs, or one after the other; the last one stays."""
    stack.answer("acme/triage", "billing")
    result = stack.producer.submit("acme/triage", TICKET).result()
    assert (result.text, result.status, result.attempt) == ("billing", JobState.SUCCEEDED, 1)
    stack.answer("acme/triage", ["one", "two"])
    handles = stack.producer.submit_many("acme/triage", [TICKET] * 3)
    assert [handle.result().text for handle in handles] == ["one", "two", "two"]


def test_a_function_sees_what_a_model_would_be_asked(stack: Stack) -> None:
    """The prompt with its variables, and who asks."""
    seen: list[Asked] = []

    def answer(asked: Asked) -> str:
        seen.append(asked)
        return asked.variables["ticket"].upper()

    stack.answer("acme/triage", answer)
    handle = stack.producer.submit("acme/triage", TICKET)
    assert handle.result().text == "REFUND?"
    assert seen == stack.asked
    [asked] = seen
    assert asked.messages == (
        Message(role="system", content="You sort tickets."),
        Message(role="user", content="Ticket: refund?"),
    )
    assert (asked.job_id, asked.template, asked.version) == (handle.id, "acme/triage", 1)


def test_what_is_refused_is_refused_here_too(stack: Stack) -> None:
    """Variables, addresses, templates: the same errors, and nothing is asked."""
    for bad in ({}, {"ticket": 3}, {"ticket": 2**70}, {"ticket": "x", "other": 1}):
        with pytest.raises(InvalidInput):
            stack.producer.submit("acme/triage", bad)
    with pytest.raises(NotFound, match="acme/triage"):
        stack.producer.submit("acme/triagee", TICKET)
    with pytest.raises(NotFound, match="versions 1 to 1, labels: production"):
        stack.producer.submit("acme/triage@canary", TICKET)
    with pytest.raises(SpecInvalid):
        stack.publish({**TRIAGE, "messages": []})
    with pytest.raises(TemplateRefused):
        stack.publish({**TRIAGE, "samples": [{"input": {"ticket": 3}}]})
    assert stack.asked == []


def test_a_template_from_a_file(stack: Stack, tmp_path: Path) -> None:
    """As YAML, also the examples that prefillq brings."""
    example = ROOT / "templates" / "examples" / "support-triage.yaml"
    version = stack.publish(example)
    sample = version.spec.samples[0].input
    choice = (version.spec.output.choices or ("",))[0]
    address = f"{version.ref.tenant}/{version.ref.template}"
    stack.answer(address, choice)
    result = stack.producer.submit(address, sample).result()
    assert result.choice == (choice or None)


def test_a_job_fails_as_in_a_worker(stack: Stack) -> None:
    """With the error's code; without an answer; with one that is no choice."""

    def broken(_: Asked) -> str:
        raise ValueError("mine")

    with pytest.raises(JobFailed, match="nobody said"):
        stack.producer.submit("acme/triage", TICKET).result()
    stack.answer("acme/triage", broken)
    outcome = stack.producer.submit("acme/triage", TICKET).outcome()
    assert outcome.status is JobState.FAILED
    assert outcome.error is not None
    assert (outcome.error.code, "mine" in outcome.error.message) == ("internal_error", True)
    stack.publish({**TRIAGE, "name": "choice", "output": {"choices": ["a", "b"]}})
    stack.answer("acme/choice", ["a", "c"])
    results = stack.producer.submit_many("acme/choice", [TICKET] * 2)
    assert results[0].result().choice == "a"
    with pytest.raises(JobFailed, match="none of the choices"):
        results[1].result()


def test_an_answer_with_a_schema_is_data(stack: Stack) -> None:
    """Parsed as by a worker; what does not fit it fails the job, and is not quoted."""
    schema = {
        "type": "object",
        "properties": {
            "order": {"type": "string", "maxLength": 8, "pattern": "^[A-Z][0-9]+$"},
            "price": {"type": "number", "multipleOf": 0.01},
        },
        "required": ["order"],
    }
    stack.publish({**TRIAGE, "name": "extract", "output": {"schema": schema}})
    asked: list[Asked] = []
    answers = iter(
        [
            '{"order": "A17", "price": 0.07}',
            '{"order": "planted"}',
            '{"order": "A17", "other": "planted"}',
            '{"order": 17}',
            "{}",
            '{"order": "A1',
            "planted",
            '{"order": "A17", "price": 1e999}',
        ]
    )

    def answer(one: Asked) -> str:
        asked.append(one)
        return next(answers)

    stack.answer("acme/extract", answer)
    good, *bad = stack.producer.submit_many("acme/extract", [TICKET] * 8)
    result = good.result()
    assert result.data == {"order": "A17", "price": 0.07}
    assert result.choice is None
    for handle in bad:
        error = handle.outcome().error
        assert error is not None
        assert error.code == "answer_invalid"
        assert "planted" not in error.message
    assert asked[0].json_schema == schema
    stack.answer("acme/triage", '{"order": "A17"}')
    assert stack.producer.submit("acme/triage", TICKET).result().data is None


def test_what_may_pass_is_tried_again(stack: Stack) -> None:
    """Until it passes, or the attempts are used up and the job is dead."""

    def answer(asked: Asked) -> str:
        if asked.attempt < 3 or asked.variables["ticket"] == "never":
            raise Passing("busy")
        return "at last"

    stack.answer("acme/triage", answer)
    result = stack.producer.submit("acme/triage", TICKET).result()
    assert (result.text, result.attempt) == ("at last", 3)
    handle = stack.producer.submit("acme/triage", {"ticket": "never"})
    with pytest.raises(JobFailed, match="busy"):
        handle.result()
    view = handle.view()
    assert (view.dead, view.job.attempt) == (True, stack.settings.max_attempts)


def test_held_jobs_wait_and_can_be_cancelled_or_expire(stack: Stack) -> None:
    """States and deadlines can be tested without a race and without waiting."""
    stack.answer("acme/triage", "billing")
    with stack.held():
        first, second, third = stack.producer.submit_many("acme/triage", [TICKET] * 3)
        late = stack.producer.submit("acme/triage", TICKET, deadline_s=60)
        assert first.status() is JobState.QUEUED
        assert stack.run(1) == 1
        assert first.status() is JobState.SUCCEEDED
        assert second.cancel() is JobState.CANCELLED
        stack.pass_time(61)
    assert third.result().text == "billing"
    assert late.status() is JobState.EXPIRED
    with pytest.raises(Conflict):
        first.cancel()
    stack.pass_time(stack.settings.result_ttl_s + 1)
    with pytest.raises(NotFound):
        first.result()


def test_keys_limits_and_scores(stack: Stack) -> None:
    """Idempotency keys, max_queue and scores are the store's own."""
    stack.publish({**TRIAGE, "limits": {"max_queue": 2}})
    stack.registry.set_label("acme", "triage", "production", 2)
    stack.answer("acme/triage", "billing")
    with stack.held():
        one = stack.producer.submit("acme/triage", TICKET, idempotency_key="k")
        assert stack.producer.submit("acme/triage", TICKET, idempotency_key="k") == one
        with pytest.raises(Conflict):
            stack.producer.submit("acme/triage", {"ticket": "x"}, idempotency_key="k")
        stack.producer.submit("acme/triage", TICKET)
        with pytest.raises(Conflict, match="is full"):
            stack.producer.submit("acme/triage", TICKET)
    assert len(stack.asked) == 2
    one.score("quality", 0.5)
    assert one.view().scores == {"quality": 0.5}


def test_versions_labels_and_rollouts(stack: Stack) -> None:
    """A job has the version of its label, or in a rollout that of its key, and keeps it."""
    stack.answer("acme/triage", lambda asked: f"version {asked.version}")
    assert stack.publish(TRIAGE).ref.version == 1
    assert stack.publish({**TRIAGE, "description": "Two."}).ref.version == 2
    assert stack.producer.submit("acme/triage", TICKET).result().text == "version 1"
    assert stack.producer.submit("acme/triage@2", TICKET).result().text == "version 2"
    rollout = stack.registry.roll_out("acme", "triage", 2, share=0.5)
    names = [f"c{n}" for n in range(40)]
    jobs = stack.producer.submit_many("acme/triage", [TICKET] * 40, sticky_keys=names)
    assert [job.view().job.ref.version for job in jobs] == [
        rollout.version_for("acme", name) for name in names
    ]
    assert {job.result().text for job in jobs} == {"version 1", "version 2"}
    with pytest.raises(Conflict):
        stack.registry.retire("acme", "triage", 1)
    stack.registry.promote("acme", "triage")
    stack.registry.retire("acme", "triage", 1)
    assert stack.producer.submit("acme/triage", TICKET).result().text == "version 2"
    with pytest.raises(NotFound, match="retired"):
        stack.producer.submit("acme/triage@1", TICKET)


def test_streams_and_event_loops(stack: Stack) -> None:
    """The pieces that a function gives are those of the stream, for both kinds of producer."""

    def answer(_: Asked) -> Iterator[str]:
        yield "Dear "
        yield "customer"

    stack.answer("acme/triage", answer)
    pieces = list(stack.producer.submit("acme/triage", TICKET, stream=True).stream(timeout=5))
    assert [piece.text for piece in pieces] == ["Dear ", "customer", ""]

    async def scenario() -> str:
        async with stack.async_producer() as producer:
            handles = await producer.submit_many("acme/triage", [TICKET] * 5, stream=True)
            texts = [(await h.result(5)).text async for h in producer.as_completed(handles, 5)]
            assert texts == ["Dear customer"] * 5
            return joined([piece async for piece in handles[0].stream()])

    assert asyncio.run(scenario()) == "Dear customer"


def test_the_fixture_in_a_project_of_its_own(tmp_path: Path) -> None:
    """pytest finds it by its entry point; every test has a stack of its own."""
    (tmp_path / "test_mine.py").write_text(
        f"""
TRIAGE = {TRIAGE!r}

def test_one(prefillq_stack):
    prefillq_stack.publish(TRIAGE)
    prefillq_stack.answer("acme/triage", "billing")
    handle = prefillq_stack.producer.submit("acme/triage", {{"ticket": "x"}})
    assert handle.result().text == "billing"

def test_two(prefillq_stack):
    assert prefillq_stack.asked == []
""",
        "utf-8",
    )
    installed = any(point.name == "prefillq" for point in entry_points(group="pytest11"))
    by_name = [] if installed else ["-p", "producer.pytest_plugin"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *by_name, "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_entry_point_is_declared() -> None:
    """In the file that the package is built from."""
    assert '[project.entry-points.pytest11]\nprefillq = "producer.pytest_plugin"' in (
        ROOT / "pyproject.toml"
    ).read_text("utf-8")
