"""JSON answers through Redis and a real worker process: whole, parsed, or a clear failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from contract.model_folder import ModelFolder
from contract.pieces import joined
from contract.types import CacheState, JobState
from local.workers import WorkerProcess
from producer.client import Producer
from templates.registry import Registry
from tests.support.templates import make_spec, publish

Start = Callable[..., WorkerProcess]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "category": {"enum": ["payment", "error", "login"]},
        "urgent": {"type": "boolean"},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["category", "urgent", "words"],
}


def _spec(name: str, max_new_tokens: int) -> Any:
    return make_spec(
        name,
        output={"schema": SCHEMA},
        generation={"max_new_tokens": max_new_tokens, "temperature": 1.0, "seed": 7},
        samples=[{"input": {"note": "x"}}],
    )


def test_jobs_with_a_schema_and_without_share_a_worker(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Each answer of the one fits, is parsed in the result, and is what its stream said; on the
    cached prefix."""
    publish(registry, _spec("sorted", 96), tiny_llama)
    publish(registry, make_spec("notes"), tiny_llama)
    start_worker("--warm", "all")
    notes = [{"note": f"note {number}"} for number in range(12)]
    fitting = producer.submit_many("acme/sorted", notes, stream=True)
    others = producer.submit_many("acme/notes", notes)
    results = [job.result(timeout=120) for job in fitting]
    assert {result.status for result in results} == {JobState.SUCCEEDED}
    for job, result in zip(fitting, results, strict=True):
        assert json.loads(result.text) == result.data
        assert set(result.data) == set(SCHEMA["required"])
        assert result.data["category"] in SCHEMA["properties"]["category"]["enum"]
        assert result.cache.state is CacheState.HIT
        assert joined(list(job.stream(timeout=30))) == result.text
    assert len({result.text for result in results}) > 1
    assert {job.result(timeout=120).data for job in others} == {None}


def test_half_of_a_json_is_a_failure_that_says_why(
    producer: Producer, registry: Registry, tiny_llama: ModelFolder, start_worker: Start
) -> None:
    """Not tried again: the same tokens would come."""
    publish(registry, _spec("sorted", 5), tiny_llama)
    start_worker()
    job = producer.submit("acme/sorted", {"note": "x"})
    result = job.outcome(timeout=60)
    assert result.status is JobState.FAILED
    assert result.error is not None
    assert result.error.code == "answer_incomplete"
    assert "max_new_tokens=5" in result.error.message
    assert (result.finish_reason, result.attempt, result.data) == ("length", 1, None)
