"""The JSON Schema of template files: as the model has it, and with words for every field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from contract.errors import SpecInvalid
from templates.examples import example_paths
from templates.schema import SCHEMA_FILE, schema_text, template_schema
from templates.spec import parse_spec
from tests.support import published, specs, templates

SCHEMA = Draft202012Validator(template_schema())
PLAIN = published.make_spec().to_plain()
ONE = {"type": "object", "properties": {"ticket": {}}, "required": ["ticket"]}


def _changed(**fields: Any) -> dict[str, Any]:
    return {**PLAIN, **fields}


def _without(field: str) -> dict[str, Any]:
    return {name: value for name, value in PLAIN.items() if name != field}


VALID = {
    **{path.name: yaml.safe_load(path.read_text("utf-8")) for path in example_paths()},
    "all defaults written out": PLAIN,
    "only what must be": _changed(output={}, generation={}, limits={}, samples=[]),
    "another tenant and text": published.make_spec("globex", "a", text="").to_plain(),
    "a system message": templates.make_spec().to_plain(),
    "several variables": specs.make_spec(
        ("user", "{{ a }} {{ b }}"), samples=[{"a": 1, "b": []}]
    ).to_plain(),
    "choices": _changed(output={"choices": ["yes", "no"]}),
    "null for what is not set": _changed(
        output={"choices": None}, limits={"deadline_s": None, "max_queue": None}
    ),
    "every setting": _changed(
        generation={
            "max_new_tokens": 32_768,
            "min_new_tokens": 1,
            "temperature": 0.7,
            "top_p": 1,
            "top_k": 50,
            "repetition_penalty": 1.1,
            "seed": 2**63 - 1,
            "stop": ["\n", "END"],
        },
        limits={"deadline_s": 0.5, "max_queue": 1},
        strict=True,
        description="x",
    ),
    "a schema with more than it needs": _changed(
        input={"schema": {**ONE, "additionalProperties": False, "$defs": {"a": {}}, "title": "x"}}
    ),
}

# Refused by both, for the same reason.
BROKEN = {
    "no mapping": [],
    **{f"no {part}": _without(part) for part in ("tenant", "name", "model", "messages", "input")},
    "a field too many": _changed(prompt="x"),
    "a tenant that is no name": _changed(tenant="Acme Ltd"),
    "a name with a slash": _changed(name="a/b"),
    "no messages": _changed(messages=[]),
    "a role of its own": _changed(messages=[{"role": "tool", "content": "{{ ticket }}"}]),
    "no content": _changed(messages=[{"role": "user"}]),
    "content that is a list": _changed(messages=[{"role": "user", "content": ["x"]}]),
    "a message field too many": _changed(
        messages=[{"role": "user", "content": "{{ ticket }}", "name": "x"}]
    ),
    "no schema": _changed(input={}),
    "a schema of another type": _changed(input={"schema": {"type": "array"}}),
    "a schema without a type": _changed(
        input={"schema": {"properties": {"ticket": {}}, "required": ["ticket"]}}
    ),
    "a variable that is no name": _changed(
        input={"schema": {**ONE, "properties": {"ticket": {}, "a b": {}}}}
    ),
    "one choice": _changed(output={"choices": ["yes"]}),
    "equal choices": _changed(output={"choices": ["yes", "yes"]}),
    "a blank choice": _changed(output={"choices": ["yes", " "]}),
    "no new tokens": _changed(generation={"max_new_tokens": 0}),
    "a hot temperature": _changed(generation={"temperature": 11}),
    "top_p of nothing": _changed(generation={"top_p": 0}),
    "an empty stop": _changed(generation={"stop": [""]}),
    "an unknown setting": _changed(generation={"beams": 4}),
    "a seed that is too large": _changed(generation={"seed": 2**63}),
    "a deadline of nothing": _changed(limits={"deadline_s": 0}),
    "a queue of nothing": _changed(limits={"max_queue": 0}),
    "a sample without input": _changed(samples=[{"expected": "x"}]),
    "a sample that is text": _changed(samples=["x"]),
    "an expected number": _changed(samples=[{"input": {"ticket": "x"}, "expected": 3}]),
    "strict by a word": _changed(strict="often"),
}

# What only the model knows; an editor cannot say it.
UNSAYABLE = {
    "a variable that is not declared": _changed(
        messages=[{"role": "user", "content": "{{ ticket }} {{ more }}"}]
    ),
    "a variable that is not required": _changed(input={"schema": {**ONE, "required": []}}),
    "fewest over most": _changed(generation={"max_new_tokens": 1, "min_new_tokens": 2}),
    "a pattern that is none": _changed(
        input={"schema": {**ONE, "properties": {"ticket": {"pattern": "("}}}}
    ),
}


def test_the_shipped_file_is_current() -> None:
    """`python -m templates.schema` writes it anew."""
    assert json.loads(SCHEMA_FILE.read_text("utf-8")) == template_schema()
    assert json.loads(schema_text()) == template_schema()


def test_it_is_a_schema_and_takes_nothing_unknown() -> None:
    """Of the draft that it names; every object of ours refuses fields that it does not know."""
    Draft202012Validator.check_schema(template_schema())
    schema = template_schema()
    for name, part in {"": schema, **schema["$defs"]}.items():
        assert part["additionalProperties"] is False, name


def _fields(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for part, content in {"": schema, **schema["$defs"]}.items():
        for name, value in content["properties"].items():
            yield f"{part}.{name}", value


def test_every_field_has_words() -> None:
    """A title, and a sentence that is not the title again."""
    for name, field in _fields(template_schema()):
        assert field["title"] != field["description"], name
        assert field["description"].endswith("."), name


@pytest.mark.parametrize("name", VALID)
def test_what_the_model_takes_the_schema_takes(name: str) -> None:
    """Examples, the specs of other tests, and every setting at its bounds."""
    parse_spec(VALID[name])
    assert [error.message for error in SCHEMA.iter_errors(VALID[name])] == []


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_both_refuse(name: str) -> None:
    """Seen in the editor, and not only at publish."""
    with pytest.raises(SpecInvalid):
        parse_spec(BROKEN[name])
    assert not SCHEMA.is_valid(BROKEN[name])


@pytest.mark.parametrize("name", UNSAYABLE)
def test_what_no_schema_can_say_the_model_knows(name: str) -> None:
    """A file that an editor is content with may still be refused."""
    with pytest.raises(SpecInvalid):
        parse_spec(UNSAYABLE[name])
    assert SCHEMA.is_valid(UNSAYABLE[name])
