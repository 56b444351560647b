"""Batch files of OpenAI's Batch API: the lines that clients write for it, and its answers.

A line is `{"custom_id", "method": "POST", "url": "/v1/chat/completions", "body": {...}}`. A body
here names a template in place of a model, and gives variables in place of a prompt:

- `body.prompt`: `{"id": "acme/support-triage", "version": "production", "variables": {...}}`, the
  API's own shape for prompts that are stored; `version` is a number or a label, and optional.
- or `body.model` with the address, `acme/support-triage@production`, and `body.prompt.variables`;
- or `body.model` and `body.messages` with one user's message, which becomes the only variable of a
  template that has one.

`user` (or `safety_identifier`) is the sticky key of a rollout, and `metadata` is only echoed. How
tokens are chosen is settled by the template's version, so that a body with a temperature or tools
of its own is refused, not half obeyed.

Sources: https://platform.openai.com/docs/api-reference/batch and the chat completion object there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from contract.described import describe
from contract.errors import InvalidInput, PrefillqError
from contract.types import JobState, Result, Usage
from producer.batch.formats import INVALID, MAX_ID, Asked, OnlyVariable, Written, address_of

URL = "/v1/chat/completions"
_LINE = {"custom_id", "method", "url", "body"}
_BODY = {"model", "messages", "prompt", "user", "safety_identifier", "metadata"}
_PROMPT = {"id", "version", "variables"}
# Fields that may stand in a body as long as they ask for what is done anyway.
_NEUTRAL: Mapping[str, object] = {"n": 1, "stream": False, "store": False}
_ID = re.compile(r"batch_req_([0-9a-f]{16})_(\d{1,18})")
_FINISH = {"stop": "stop", "stop_string": "stop", "length": "length"}


class OpenAIFormat:
    """See `producer.batch.formats.Format`. The output's `id` says the batch and the line."""

    name = "openai"
    unique_ids = True
    beginning = b'{"id": "batch_req_'

    def id_of(self, data: Mapping[str, Any]) -> str:
        value = data.get("custom_id")
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID:
            raise InvalidInput(
                "custom_id is missing",
                given="nothing" if value is None else describe(value),
                expected=f"text of 1 to {MAX_ID} characters",
                remedy="Give each line one of its own: results come in another order.",
            )
        return value

    def read(
        self, data: Mapping[str, Any], *, template: str | None, only_variable: OnlyVariable
    ) -> Asked:
        _only(data, _LINE, "the line")
        if data.get("method") != "POST" or data.get("url") != URL:
            raise InvalidInput(
                "a line is a request for a chat completion",
                given=f"{_shown(data.get('method'))} {_shown(data.get('url'))}",
                expected=f'"method": "POST", "url": "{URL}"',
            )
        body = _object(data.get("body"), "body")
        settings = {k: v for k, v in body.items() if k not in _NEUTRAL or v != _NEUTRAL[k]}
        _only(settings, _BODY, "body", remedy="Set it in the template, under generation or output.")
        prompt = _object(body.get("prompt", {}), "body.prompt")
        _only(prompt, _PROMPT, "body.prompt")
        address = address_of(_address(body, prompt, template))
        if "variables" in prompt and "messages" in body:
            raise InvalidInput(
                "body has both messages and prompt.variables", remedy="Give one of them."
            )
        if "messages" in body:
            variables = {only_variable(address): _one_message(body["messages"])}
        else:
            variables = _object(prompt.get("variables"), "body.prompt.variables")
        key = body.get("safety_identifier", body.get("user"))
        return Asked(template=address, variables=variables, sticky_key=key)

    def result(self, result: Result, *, batch: str, index: int, id_: str | int | None) -> Any:
        line = {"id": _name(batch, index), "custom_id": id_, "response": None, "error": None}
        if result.status is not JobState.SUCCEEDED:
            error = result.error
            code = str(result.status) if error is None else error.code
            if result.status is not JobState.FAILED:
                code = str(result.status)  # cancelled and expired, which clients know
            return {**line, "error": {"code": code, "message": str(error or code)}}
        response = {"status_code": 200, "request_id": result.job_id, "body": _completion(result)}
        return {**line, "response": response}

    def failed(
        self,
        error: PrefillqError,
        *,
        job_id: str | None,  # noqa: ARG002 - it is in the message, and has no field
        batch: str,
        index: int,
        id_: str | int | None,
    ) -> Any:
        problem = {"code": error.code, "message": str(error)}
        return {"id": _name(batch, index), "custom_id": id_, "response": None, "error": problem}

    def refused(
        self, error: PrefillqError, *, batch: str, index: int, id_: str | int | None
    ) -> Any:
        problem = {
            "message": str(error),
            "type": "invalid_request_error",
            "param": None,
            "code": error.code,
        }
        name = _name(batch, index)
        return {
            "id": name,
            "custom_id": id_,
            "response": {"status_code": 400, "request_id": name, "body": {"error": problem}},
            "error": None,
        }

    def written(self, line: Any) -> Written:
        found = _ID.fullmatch(line["id"])
        if found is None:
            raise ValueError("an id of somebody else's")
        response, usage = line["response"], None
        if response is None:
            code = line["error"]["code"]
            known = (JobState.CANCELLED, JobState.EXPIRED)
            status = str(code) if code in known else str(JobState.FAILED)
        elif response["status_code"] == 200:
            status, usage = str(JobState.SUCCEEDED), Usage.from_dict(response["body"]["usage"])
        else:
            status = INVALID
        return Written(index=int(found[2]), batch=found[1], status=status, usage=usage)


def _completion(result: Result) -> dict[str, Any]:
    """The job's answer as a chat completion object."""
    return {
        "id": f"chatcmpl-{result.job_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": str(result.ref),
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": result.text if result.choice is None else result.choice,
                    "refusal": None,
                },
                "logprobs": None,
                "finish_reason": _FINISH.get(result.finish_reason, "stop"),
            }
        ],
        "usage": result.usage.to_dict(),
        "system_fingerprint": f"{result.model}-{result.ref.digest[:12]}",
    }


def _address(body: Mapping[str, Any], prompt: Mapping[str, Any], template: str | None) -> object:
    """The template's address, of whichever field has it."""
    if "id" not in prompt:
        return body.get("model", template)
    if "model" in body and body["model"] != prompt["id"]:
        raise InvalidInput(
            "body.model and body.prompt.id name two templates",
            given=f"{_shown(body['model'])}, {_shown(prompt['id'])}",
            remedy="Leave body.model out.",
        )
    version = prompt.get("version")
    if version is None:
        return prompt["id"]
    if not isinstance(version, str | int) or isinstance(version, bool):
        raise InvalidInput(
            "body.prompt.version is neither text nor number",
            given=describe(version),
            expected='such as "3" or "production"',
        )
    return f"{prompt['id']}@{version}"


def _one_message(messages: object) -> str:
    """The text of the one message there is."""
    parts: list[Any] = messages if isinstance(messages, list) else []
    first = parts[0] if len(parts) == 1 and isinstance(parts[0], dict) else {}
    content = first.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        words = [text for text in texts if isinstance(text, str)]
        if len(words) == len(content):
            content = "".join(words)
    if first.get("role") != "user" or not isinstance(content, str):
        raise InvalidInput(
            "body.messages is not one user's message of text",
            given=describe(messages),
            expected='[{"role": "user", "content": "..."}]',
            remedy="The template holds the rest of the prompt; give its variables in "
            "body.prompt.variables.",
        )
    return content


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(
            f"{name} is no object",
            given="nothing" if value is None else describe(value),
            expected="a JSON object, in braces",
        )
    return value


def _only(data: Mapping[str, Any], known: set[str], name: str, *, remedy: str = "") -> None:
    if unknown := sorted(set(data) - known):
        raise InvalidInput(
            f"{name} has fields that are not obeyed",
            given=", ".join(map(ascii, unknown))[:120],
            expected=", ".join(sorted(known)),
            remedy=remedy,
        )


def _name(batch: str, index: int) -> str:
    return f"batch_req_{batch}_{index}"


def _shown(value: object) -> str:
    """A method, a URL or an address as it is, if it is short text."""
    return ascii(value) if isinstance(value, str) and len(value) <= 80 else describe(value)


OPENAI = OpenAIFormat()
