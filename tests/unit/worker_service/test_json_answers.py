"""Jobs of a template with `output.schema`: data, or a failure that says why; never half of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.codec import pack, unpack
from contract.types import JobState, Result
from templates.rollouts.rollout import Outcome
from tests.unit.worker_service.test_gates import Scripted, found, on_engine
from worker import grammars
from worker.engine.base import Generation, GenerationRequest, GrammarFailed
from worker.engine.fake import FakeEngine

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"label": {"enum": ["red", "blue"]}, "n": {"type": "integer"}},
    "required": ["label"],
}
WHOLE = '{"label": "red", "n": 3}'

__all__ = ["on_engine"]


def ran(make_stack: Any, text: str, **changes: Any) -> Result:
    """The result of one job whose engine says `text`; fields of its generation may be changed."""

    def say(_: GenerationRequest, generation: Generation) -> Generation:
        return Generation(
            **{
                "token_ids": generation.token_ids,
                "text": text,
                "finish_reason": "stop",
                **changes,
            }
        )

    stack = make_stack(engine=Scripted(say))
    version = stack.publish(output={"schema": SCHEMA}, generation={"max_new_tokens": 7})
    result: Result | None = stack.runner.run(stack.submit(version=version))
    assert result is not None
    assert stack.engine.requests[-1].grammar is not None
    return result


def test_a_result_carries_the_data_beside_its_text(make_stack: Any) -> None:
    """In the record, in JSON, and for who reads it back; results without one have none."""
    result = ran(make_stack, WHOLE)
    assert (result.status, result.data) == (JobState.SUCCEEDED, {"label": "red", "n": 3})
    assert Result.from_dict(unpack(pack(result.to_dict()))) == result
    assert json.loads(json.dumps(result.to_dict()))["data"] == {"label": "red", "n": 3}
    older = {key: value for key, value in result.to_dict().items() if key != "data"}
    assert Result.from_dict(older).data is None


def test_tokens_that_run_out_are_a_failure_that_says_what_to_do(make_stack: Any) -> None:
    """With its token counts; it is not tried again, since the same tokens would come."""
    result = ran(make_stack, '{"label": "re', finish_reason="length")
    assert (result.status, result.data) == (JobState.FAILED, None)
    assert result.finish_reason == "length"
    assert result.usage.completion_tokens > 0
    assert result.attempt == 1
    assert result.error is not None
    assert result.error.code == "answer_incomplete"
    assert "max_new_tokens=7" in result.error.message
    assert "maxLength" in result.error.remedy


@pytest.mark.parametrize("text", ['{"label": "green"}', '{"label": "re', "secret"])
def test_an_answer_that_does_not_fit_is_a_failure(make_stack: Any, text: str) -> None:
    """The belt beside the grammar; what the model said is not quoted."""
    result = ran(make_stack, text)
    assert result.status is JobState.FAILED
    assert result.error is not None
    assert result.error.code == "answer_invalid"
    assert "secret" not in result.error.message
    assert "green" not in result.error.message


def test_a_cancelled_job_is_cancelled_not_incomplete(make_stack: Any) -> None:
    """Whatever it had written by then."""
    result = ran(make_stack, '{"la', finish_reason="cancelled")
    assert result.status is JobState.CANCELLED


def test_a_grammar_that_does_not_compile_fails_its_jobs_and_its_gate(
    make_stack: Any, on_engine: None
) -> None:
    """Another release may have published it; no job of it reaches the engine."""
    stack = make_stack()
    schema = {"type": "string", "format": "date", "pattern": "^x"}
    samples = [{"input": {"note": "hello"}}]
    version = stack.publish(output={"schema": schema}, samples=samples)
    result = stack.runner.run(stack.submit(version=version))
    assert result.status is JobState.FAILED
    assert result.error.code == "grammar_refused"
    assert result.attempt == 1
    assert not stack.engine.requests
    finding = found(stack, version)["runs"]
    assert finding.outcome is Outcome.FAIL
    assert "output.schema cannot be made into a grammar" in finding.message


def test_a_grammar_that_gives_up_fails_the_job(make_stack: Any) -> None:
    """With its code, once."""

    def give_up(_: GenerationRequest, __: Generation) -> Generation:
        raise GrammarFailed("no next token")

    stack = make_stack(engine=Scripted(give_up))
    version = stack.publish(output={"schema": SCHEMA})
    result = stack.runner.run(stack.submit(version=version))
    assert (result.status, result.attempt) == (JobState.FAILED, 1)
    assert result.error.code == "grammar_failed"


def test_templates_without_a_schema_load_no_grammars(
    make_stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does anything of theirs change."""
    monkeypatch.delattr(grammars, "Grammars")
    stack = make_stack()
    result = stack.runner.run(stack.submit())
    assert (result.status, result.data) == (JobState.SUCCEEDED, None)
    assert stack.engine.requests[-1].grammar is None


@pytest.mark.parametrize(
    ("says", "expected", "gate", "outcome"),
    [
        (WHOLE, '{"n":3,"label":"red"}', "expected", Outcome.PASS),
        (WHOLE, '{"label": "blue"}', "expected", Outcome.FAIL),
        ('{"label"', None, "runs", Outcome.FAIL),
    ],
    ids=["equal as JSON", "another", "half"],
)
def test_gates_look_at_the_data(
    make_stack: Any, on_engine: None, says: str, expected: str | None, gate: str, outcome: Outcome
) -> None:
    """Half of a JSON is a fault even where no sample expects an answer."""
    stack = make_stack(engine=FakeEngine(answer=lambda _: says))
    samples = [{"input": {"note": "hello"}, "expected": expected}]
    canary = stack.publish(output={"schema": SCHEMA}, samples=samples)
    assert found(stack, canary)[gate].outcome is outcome
