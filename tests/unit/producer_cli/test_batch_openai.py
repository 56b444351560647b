"""Lines of OpenAI's Batch API: a template for a model, variables for a prompt, and back."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from contract.errors import Conflict, InvalidInput
from contract.types import JobError, JobState, Result, Usage, VersionRef
from producer.batch.flight import run_batch
from producer.batch.lines import BadLine, BatchLine, batch_name, read_lines
from producer.batch.openai_lines import OPENAI
from producer.batch.results import Output

BATCH = "0123456789abcdef"
REF = VersionRef(tenant="acme", template="triage", version=3, digest="d" * 64)
USAGE = Usage(prompt_tokens=10, completion_tokens=2, cached_tokens=7)


def request(custom_id: str = "a", **body: Any) -> dict[str, Any]:
    if not body:
        body = {"model": "acme/triage", "prompt": {"variables": {"ticket": "x"}}}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def check(_template: str, variables: Mapping[str, Any], _key: str | None) -> None:
    if set(variables) != {"ticket"}:
        raise InvalidInput("$.ticket is missing")


def only_variable(template: str) -> str:
    if template != "acme/triage":
        raise InvalidInput("it has two variables", given=template)
    return "ticket"


def read(*lines: Any, template: str | None = None) -> list[BatchLine | BadLine]:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return list(
        read_lines(
            io.BytesIO(text.encode()),
            template=template,
            check=check,
            format_=OPENAI,
            only_variable=only_variable,
        )
    )


@pytest.mark.parametrize(
    ("body", "template", "text"),
    [
        (
            {"prompt": {"id": "acme/triage", "variables": {"ticket": "x"}}},
            "acme/triage",
            "x",
        ),
        (
            {"prompt": {"id": "acme/triage", "version": "canary", "variables": {"ticket": "x"}}},
            "acme/triage@canary",
            "x",
        ),
        (
            {"prompt": {"id": "acme/triage", "version": 3, "variables": {"ticket": "x"}}},
            "acme/triage@3",
            "x",
        ),
        (
            {"model": "acme/triage@production", "prompt": {"variables": {"ticket": "x"}}},
            "acme/triage@production",
            "x",
        ),
        (
            {"model": "acme/triage", "messages": [{"role": "user", "content": "hello"}]},
            "acme/triage",
            "hello",
        ),
        (
            {
                "model": "acme/triage",
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                    }
                ],
                "n": 1,
                "stream": False,
            },
            "acme/triage",
            "ab",
        ),
        ({"prompt": {"variables": {"ticket": "x"}}}, "acme/default", "x"),
    ],
    ids=["prompt id", "label", "number", "model", "message", "parts", "--template"],
)
def test_a_body_names_a_template_and_its_variables(
    body: dict[str, Any], template: str, text: str
) -> None:
    """In each of the ways that a client has."""
    [line] = read(request(**body), template="acme/default")
    assert isinstance(line, BatchLine), line
    assert (line.template, dict(line.variables), line.id) == (template, {"ticket": text}, "a")


def test_a_user_is_the_sticky_key() -> None:
    """Jobs of one user get one version during a rollout; metadata does nothing."""
    body = {"model": "acme/triage", "prompt": {"variables": {"ticket": "x"}}}
    [line] = read(request(**body, user="u-7", metadata={"ours": "yes"}))
    assert isinstance(line, BatchLine)
    assert line.sticky_key == "u-7"


_VARIABLES = {"prompt": {"variables": {"ticket": "planted"}}}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({**request(), "custom_id": None}, "custom_id is missing"),
        ({**request(), "custom_id": 7}, "custom_id is missing"),
        ({**request(), "custom_id": "x" * 600}, "custom_id is missing"),
        ({**request(), "url": "/v1/embeddings"}, "request for a chat completion"),
        ({**request(), "method": "GET"}, "request for a chat completion"),
        ({**request(), "more": 1}, "the line has fields"),
        ({**request(), "body": "planted"}, "body is no object"),
        (request(model="acme/triage", temperature=0.5, **_VARIABLES), "'temperature'"),
        (request(model="acme/triage", n=2, **_VARIABLES), "'n'"),
        (request(model="acme/triage", stream=True, **_VARIABLES), "'stream'"),
        (request(model="acme/triage", tools=[], **_VARIABLES), "'tools'"),
        (request(model="gpt-4o-mini", **_VARIABLES), "template"),
        (request(**_VARIABLES), "template is missing"),
        (request(model="acme/triage"), "body.prompt.variables is no object"),
        (request(model="acme/triage", prompt={"variables": {}}), "ticket is missing"),
        (request(model="acme/triage", prompt={"id": "acme/other"}), "two templates"),
        (request(prompt={"id": "acme/triage", "version": [1]}), "neither text nor number"),
        (request(prompt={"id": "acme/triage", "more": 1}), "'more'"),
        (
            request(model="acme/triage", messages=[], **_VARIABLES),
            "both messages and prompt.variables",
        ),
        (
            request(
                model="acme/triage",
                messages=[
                    {"role": "system", "content": "planted"},
                    {"role": "user", "content": "x"},
                ],
            ),
            "not one user's message",
        ),
        (
            request(model="acme/pair", messages=[{"role": "user", "content": "planted"}]),
            "two variables",
        ),
        (
            request(
                model="acme/triage",
                messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
            ),
            "not one user's message",
        ),
        (request(model="acme/triage", user={"a": 1}, **_VARIABLES), "sticky_key"),
    ],
    ids=[
        "no id", "a number for an id", "a long id", "another url", "another method",
        "another field", "no body", "temperature", "n", "stream", "tools", "no address",
        "no template", "no variables", "not its variables", "two templates",
        "a version of another kind", "a field of the prompt", "messages and variables",
        "a system message", "too many variables", "an image", "a user of another kind",
    ],
)  # fmt: skip
def test_what_is_not_obeyed_is_refused(line: Any, problem: str) -> None:
    """With its line number, and without a word of the prompt."""
    bad = read(request("ok"), line)[1]
    assert isinstance(bad, BadLine)
    assert str(bad).startswith("line 2: ")
    assert problem in str(bad)
    assert "planted" not in str(bad)


def test_an_id_is_there_once() -> None:
    """Results are told apart by it."""
    first, _, third = read(request("a"), request("b"), request("a"))
    assert isinstance(first, BatchLine)
    assert isinstance(third, BadLine)
    assert "that of line 1" in str(third)


@dataclass(slots=True)
class Handle:
    id: str
    status: JobState

    def outcome(self, timeout: float | None = None) -> Result:  # noqa: ARG002
        error = None
        if self.status is not JobState.SUCCEEDED:
            error = JobError(code="answer_incomplete", message="Half of it.", remedy="More.")
        return Result(
            job_id=self.id,
            ref=REF,
            status=self.status,
            text='{"a": 1}',
            finish_reason="stop_string",
            usage=USAGE,
            error=error,
            model="m",
        )


class Jobs:
    """Ends jobs in turn: well, failed, cancelled, expired."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def submit(self, line: BatchLine, idempotency_key: str) -> Handle:  # noqa: ARG002
        self.keys.append(idempotency_key)
        states = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED)
        return Handle(f"acme.{len(self.keys)}", states[(len(self.keys) - 1) % 4])

    def ended(self, handles: Collection[Handle], timeout: float | None) -> Iterator[Handle]:  # noqa: ARG002
        yield from list(handles)


def test_results_are_lines_of_the_batch_api() -> None:
    """Each custom_id comes back, usage has the cached tokens, a failure a code and a message."""
    file = io.BytesIO()
    output = Output(file, BATCH, OPENAI)
    lines = read(*(request(name) for name in "abcd"), {**request("e"), "method": "GET"})
    run_batch(lines, output, Jobs(), window=1)
    a, b, c, d, e = (json.loads(line) for line in file.getvalue().splitlines())
    assert a.keys() == {"id", "custom_id", "response", "error"}
    assert (a["id"], a["custom_id"], a["error"]) == (f"batch_req_{BATCH}_0", "a", None)
    assert (a["response"]["status_code"], a["response"]["request_id"]) == (200, "acme.1")
    body = a["response"]["body"]
    assert body.pop("created") > 1_600_000_000
    assert body == {
        "id": "chatcmpl-acme.1",
        "object": "chat.completion",
        "model": "acme/triage@3",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": '{"a": 1}', "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 2,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 7},
        },
        "system_fingerprint": "m-dddddddddddd",
    }
    assert [line["response"] for line in (b, c, d)] == [None] * 3
    codes = [line["error"]["code"] for line in (b, c, d)]
    assert codes == ["answer_incomplete", "cancelled", "expired"]
    assert b["error"]["message"] == "Half of it. More."
    assert e["response"]["status_code"] == 400
    assert e["response"]["body"]["error"]["code"] == "invalid_input"
    assert dict(output.summary.statuses) == dict.fromkeys(
        ("succeeded", "failed", "cancelled", "expired", "invalid"), 1
    )
    assert output.summary.cached_tokens == 7


@pytest.mark.parametrize("lost", [1, 40, 200])
def test_an_interrupted_batch_goes_on(lost: int) -> None:
    """A torn last line is dropped; only what is missing runs, under the keys it had."""
    lines = read(*(request(str(n)) for n in range(9)))
    file, first = io.BytesIO(), Jobs()
    run_batch(lines[:5], Output(file, BATCH, OPENAI), first, window=1)
    file.truncate(len(file.getvalue()) - lost)
    file.seek(0)
    again = Jobs()
    output = Output(file, BATCH, OPENAI)
    run_batch(lines, output, again, window=3)
    assert again.keys == [f"batch:{BATCH}:{n}" for n in range(4, 9)]
    written = [json.loads(line)["custom_id"] for line in file.getvalue().splitlines()]
    assert sorted(written) == [str(n) for n in range(9)]


@pytest.mark.parametrize(
    "line",
    [
        {"index": 0, "id": None, "batch": BATCH, "status": "succeeded"},
        {"id": "batch_req_ffffffffffffffff_0", "response": None, "error": {"code": "x"}},
        {"id": f"batch_req_{BATCH}_0", "response": {"status_code": 200, "body": {}}},
        {"id": 7, "response": None, "error": None},
        [],
        None,
    ],
    ids=["ours", "another batch", "no usage", "no id", "a list", "null"],
)
def test_an_output_of_somebody_else_is_left_alone(line: Any) -> None:
    """Also one that prefillq wrote in its own format."""
    content = json.dumps(line).encode() + b"\n"
    file = io.BytesIO(content)
    with pytest.raises(Conflict):
        Output(file, BATCH, OPENAI)
    assert file.getvalue() == content


def test_a_format_is_part_of_what_a_batch_is() -> None:
    """The same bytes in another format are another batch; in our own they are what they were."""
    asked: Any = {"template": None, "use_cache": True, "run": ""}
    own = batch_name([b"{}"], **asked)
    assert own == batch_name([b"{", b"}"], **asked)
    assert own != batch_name([b"{}"], **asked, format_=OPENAI)
