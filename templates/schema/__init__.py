"""The JSON Schema of template files, for editors and for checks outside of prefillq.

Made of the spec's own model, so that the two agree, with the words that editors show. The model
stays the judge: it also knows what no schema can say, such as that messages use only variables
which `input.schema` declares. `python -m templates.schema` writes the file that is shipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contract.ids import NAME
from templates.spec import TemplateSpec

SCHEMA_FILE = Path(__file__).with_name("template.schema.json")

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_VARIABLE = "^[A-Za-z_][A-Za-z0-9_]*$"
# What a model's types do not say: that a text is a name, that choices differ, what input.schema is.
_NARROWED: Mapping[str, Mapping[str, Any]] = {
    "tenant": {"pattern": f"^{NAME}$", "examples": ["acme"]},
    "name": {"pattern": f"^{NAME}$", "examples": ["support-triage"]},
    "model": {"examples": ["smollm2-135m-instruct"]},
    "Message.content": {"examples": ["{{ ticket }}"]},
    "InputSpec.schema": {
        "required": ["type"],
        "properties": {
            "type": {"const": "object"},
            "properties": {"type": "object", "propertyNames": {"pattern": _VARIABLE}},
            "required": {"type": "array", "items": {"type": "string"}},
            "additionalProperties": {"type": ["boolean", "object"]},
        },
        "examples": [
            {
                "type": "object",
                "properties": {"ticket": {"type": "string", "maxLength": 4000}},
                "required": ["ticket"],
                "additionalProperties": False,
            }
        ],
    },
    "OutputSpec.choices": {"examples": [["payment", "error", "login"]]},
    "OutputSpec.schema": {
        "examples": [
            {
                "type": "object",
                "properties": {
                    "category": {"enum": ["payment", "error", "login"]},
                    "summary": {"type": "string", "maxLength": 120},
                },
                "required": ["category", "summary"],
            }
        ]
    },
    "GenerationSpec.stop": {"examples": [["\n"]]},
    "LimitsSpec.deadline_s": {"examples": [60]},
    "LimitsSpec.max_queue": {"examples": [10000]},
    "Sample.input": {"examples": [{"ticket": "I was charged twice in May."}]},
    "Sample.expected": {"examples": ["payment"]},
}
_CHOICES = {"uniqueItems": True, "items": {"type": "string", "pattern": r"\S"}}
_TEXTS: Mapping[str, tuple[str, str]] = {
    "tenant": ("Tenant", "Whose template this is."),
    "name": ("Name", "The template's name; jobs ask for tenant/name."),
    "model": ("Model", "What 'prefillq models fetch' was given: a name, a hub id or a folder."),
    "description": ("Description", "One line for people. A part of the version like all else."),
    "messages": (
        "Messages",
        (
            "The prompt's turns in order. Put what is the same for every job first and the "
            "variables last: up to the first variable all is computed once."
        ),
    ),
    "input": ("Input", "What a job must give."),
    "output": ("Output", "What an answer may be."),
    "generation": ("Generation", "How an answer's tokens are chosen; greedy unless it says more."),
    "limits": ("Limits", "How long a job may take, and how many may wait."),
    "samples": (
        "Samples",
        (
            "Inputs to try the template on: at publish, at a worker's first prefill, and in the "
            "gates of a rollout, which also look at the expected answers."
        ),
    ),
    "strict": ("Strict", "true: a job whose prefix does not verify fails, never runs uncached."),
    "Message.role": ("Role", "Who speaks. Some models know no system role."),
    "Message.content": (
        "Content",
        "Text with {{ name }} for variables; nothing else is evaluated. \\{{ keeps the braces.",
    ),
    "InputSpec.schema": (
        "Schema of the variables",
        (
            "JSON Schema, draft 2020-12, of type object. Each variable that a message uses is one "
            "of its properties, and required."
        ),
    ),
    "OutputSpec.choices": (
        "Choices",
        "The answer is the likeliest of these, and each gets a probability.",
    ),
    "OutputSpec.schema": (
        "Schema of the answer",
        (
            "JSON Schema: the answer is JSON that fits it, with properties in the order of this "
            "file. Not with choices, generation.stop or generation.min_new_tokens."
        ),
    ),
    "GenerationSpec.max_new_tokens": ("Most new tokens", "The answer ends there at the latest."),
    "GenerationSpec.min_new_tokens": ("Fewest new tokens", "At most max_new_tokens."),
    "GenerationSpec.temperature": ("Temperature", "0: greedy, always the likeliest token."),
    "GenerationSpec.top_p": ("Top p", "Only the likeliest tokens of this total probability."),
    "GenerationSpec.top_k": ("Top k", "Only so many of the likeliest tokens; 0: no limit."),
    "GenerationSpec.repetition_penalty": ("Repetition penalty", "Over 1: used tokens count less."),
    "GenerationSpec.seed": ("Seed", "Equal jobs with equal seeds get equal answers."),
    "GenerationSpec.stop": ("Stop", "Texts before which the answer ends."),
    "LimitsSpec.deadline_s": (
        "Deadline in seconds",
        "From submit; a job past it ends as expired. A caller's own goes before it.",
    ),
    "LimitsSpec.max_queue": ("Longest queue", "How many jobs of the template may wait at once."),
    "Sample.input": ("Input", "Values of the variables."),
    "Sample.expected": (
        "Expected answer",
        "To the letter; one of the choices, if there are any; with output.schema as JSON.",
    ),
}


def template_schema() -> dict[str, Any]:
    """The schema as plain data."""
    schema = TemplateSpec.model_json_schema(by_alias=True)
    described = {name: _described(name, part) for name, part in schema["properties"].items()}
    parts = {
        part: {
            **content,
            "properties": {
                name: _described(f"{part}.{name}", value)
                for name, value in content["properties"].items()
            },
        }
        for part, content in schema["$defs"].items()
    }
    parts["OutputSpec"]["properties"]["choices"]["anyOf"][0] |= _CHOICES
    return {
        "$schema": _DRAFT,
        **schema,
        "title": "prefillq template",
        "properties": described,
        "$defs": parts,
    }


def schema_text() -> str:
    """The schema as it is written into its file."""
    return json.dumps(template_schema(), indent=2, ensure_ascii=False) + "\n"


def _described(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A field with its words. What its parts have by default is said there, not here as well."""
    kept = {
        key: value
        for key, value in given.items()
        if not (key == "default" and isinstance(value, dict))
    }
    title, description = _TEXTS[name]
    return {**kept, "title": title, "description": description, **_NARROWED.get(name, {})}
