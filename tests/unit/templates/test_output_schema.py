"""`output.schema`: what can be enforced is taken, all else is refused at once and by name."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bench.schemas import SCHEMAS
from contract.codec import pack, unpack
from contract.errors import SpecInvalid
from contract.model_folder import ModelFolder
from templates.diff import Side, diff_sides
from templates.lint import lint_spec
from templates.output_schema import (
    MAX_NUMBER,
    check_output_schema,
    endless_places,
    for_grammar,
    without_costly,
)
from templates.spec import TemplateSpec, parse_spec
from templates.transfer import spec_text
from templates.version import version_digest
from templates.yaml_source import parse_documents

TEXT = {"type": "string", "maxLength": 10}
MODEL = ModelFolder(
    name="m",
    path=Path("nowhere"),
    model_digest="m",
    tokenizer_digest="t",
    chat_template="",
    bos_token="",
    eos_token="",
    eos_ids=(2,),
    max_positions=None,
    architecture="llama",
)


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def spec(schema: Any = None, **changes: Any) -> TemplateSpec:
    data: dict[str, Any] = {
        "tenant": "acme",
        "name": "extract",
        "model": "m",
        "messages": [{"role": "user", "content": "{{ note }}"}],
        "input": {
            "schema": {
                "type": "object",
                "properties": {"note": {"type": "string"}},
                "required": ["note"],
            }
        },
        "samples": [{"input": {"note": "hello"}}],
    }
    if schema is not None:
        data["output"] = {"schema": schema}
    return parse_spec(data | changes)


def doubling(levels: int) -> dict[str, Any]:
    """A page of text that stands for 2 ** levels parts."""
    defs: dict[str, Any] = {"d0": {"type": "null"}}
    for level in range(1, levels + 1):
        defs[f"d{level}"] = {"anyOf": [{"$ref": f"#/$defs/d{level - 1}"}] * 2}
    return {"$ref": f"#/$defs/d{levels}", "$defs": defs}


@pytest.mark.parametrize("name", SCHEMAS)
def test_common_schemas_are_taken(name: str) -> None:
    """And come back from the registry's encoding and from an exported file as they were."""
    one = spec(SCHEMAS[name])
    assert parse_spec(unpack(pack(one.to_plain()))) == one
    exported = parse_documents(spec_text(one), source="the export")[0]
    assert json.dumps(parse_spec(exported).output.json_schema) == json.dumps(SCHEMAS[name])


REFUSED: dict[str, tuple[Any, str]] = {
    "no schema": ({"type": "strin"}, "no JSON Schema"),
    "anything": (an_object(a=True), "lets anything pass"),
    "anything by silence": (an_object(a={}), "none of type, enum"),
    "items of any kind": ({"type": "array"}, "without items"),
    "an empty object": ({"type": "object"}, "without properties"),
    "a map": ({**an_object(a=TEXT), "additionalProperties": TEXT}, "additionalProperties"),
    "a required stranger": ({**an_object(a=TEXT), "required": ["b"]}, "requires 'b'"),
    "oneOf": ({"oneOf": [TEXT]}, "use anyOf"),
    "allOf": (an_object(a={"allOf": [TEXT]}), "'allOf'"),
    "not": ({**TEXT, "not": {"const": "a"}}, "'not'"),
    "if": ({**an_object(a=TEXT), "if": {}}, "'if'"),
    "uniqueItems": ({"type": "array", "items": TEXT, "uniqueItems": True}, "uniqueItems"),
    "prefixItems": ({"type": "array", "items": TEXT, "prefixItems": [TEXT]}, "prefixItems"),
    "patternProperties": (
        {**an_object(a=TEXT), "patternProperties": {"^b": TEXT}},
        "patternProperties",
    ),
    "a keyword of llguidance": ({**TEXT, "x-guidance": {"lenient": True}}, "'x-guidance'"),
    "a keyword of another type": ({"type": "integer", "maxLength": 3}, "'maxLength'"),
    "a sibling of anyOf": ({"anyOf": [TEXT], "maxLength": 3}, "'maxLength'"),
    "an unknown format": ({"type": "string", "format": "iban"}, "the format 'iban'"),
    "a value of another type": ({"type": "string", "enum": ["a", 1]}, "not of its type"),
    "no values": ({"enum": []}, "0 values"),
    "bounds the wrong way": ({"type": "string", "minLength": 3, "maxLength": 2}, "no answer"),
    "numbers the wrong way": ({"type": "integer", "minimum": 3, "maximum": 2}, "no answer"),
    "definitions elsewhere": (an_object(a={**TEXT, "$defs": {}}), "the whole schema"),
    "a remote $ref": ({"$ref": "https://example.org/schema"}, "use a place inside it"),
    "a file's $ref": ({"$ref": "file:///etc/passwd"}, "use a place inside it"),
    "a $ref to nowhere": ({"$ref": "#/$defs/a"}, "use a place inside it"),
    "a $ref into a property": (an_object(a={"$ref": "#/properties/a"}), "use a place inside it"),
    "a $ref to itself": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        "refers to itself (a -> a)",
    ),
    "a $ref in a circle": (
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
        },
        "refers to itself (a -> b -> a)",
    ),
    "a tree": (
        {
            "$ref": "#/$defs/node",
            "$defs": {"node": an_object(next={"$ref": "#/$defs/node"}, name=TEXT)},
        },
        "refers to itself",
    ),
    "an unused circle": ({**TEXT, "$defs": {"a": {"$ref": "#/$defs/a"}}}, "refers to itself"),
    "looking ahead": ({"type": "string", "pattern": "^(?=a)b"}, "look around"),
    "looking back": ({"type": "string", "pattern": r"(a)\1"}, "look around"),
    "no pattern": ({"type": "string", "pattern": "(a"}, "not a 'regex'"),
    "too long a repetition": ({"type": "string", "pattern": "a{99999999999999}"}, "too much"),
    "too deep a pattern": ({"type": "string", "pattern": "(" * 5000}, "too much"),
    "a long pattern": ({"type": "string", "pattern": "a" * 300}, "300 characters"),
    "a long repetition": ({"type": "string", "pattern": "a{99999}"}, "repeats over"),
    "a long text": ({"type": "string", "maxLength": 10**6}, "at most 4096"),
    "many items": ({"type": "array", "items": TEXT, "minItems": 10**6}, "at most 4096"),
    "a large number": ({"type": "integer", "maximum": 10**18}, "beyond"),
    "a large enum": ({"enum": list(range(5000))}, "5000 values"),
    "a large schema": ({"enum": ["a" * 200 + str(n) for n in range(900)]}, "bytes; at most"),
    "many parts": (an_object(**{f"p{n}": {"type": "null"} for n in range(2100)}), "over 2000"),
    "parts that double": (doubling(60), "over 2000"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_enforced_is_refused_by_name(name: str) -> None:
    """At once, and whatever the size of what it stands for."""
    schema, reason = REFUSED[name]
    began = time.process_time()
    with pytest.raises(SpecInvalid, match=r"output\.schema") as refused:
        spec(schema)
    assert reason in str(refused.value)
    # Seconds for what is just too large, under coverage's tracer; ages for what doubles 60 times.
    assert time.process_time() - began < 10
    assert len(str(refused.value)) < 1000


def test_deep_nesting_is_refused_with_the_file() -> None:
    """As anywhere in a template."""
    schema: Any = TEXT
    for _ in range(500):
        schema = {"type": "array", "items": schema, "maxItems": 1}
    with pytest.raises(SpecInvalid, match="deeper nesting"):
        spec(schema)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"output": {"schema": TEXT, "choices": ["a", "b"]}}, "both choices and schema"),
        ({"generation": {"stop": ["\n"]}}, "would cut JSON short"),
        ({"generation": {"min_new_tokens": 3}}, "min_new_tokens"),
    ],
    ids=["choices", "stop", "min_new_tokens"],
)
def test_what_contradicts_a_schema_is_refused(changes: Any, reason: str) -> None:
    """Each would make half of a JSON, or none."""
    with pytest.raises(SpecInvalid, match=reason):
        spec(TEXT, **changes)


def test_silence_is_spelled_out_for_the_grammar() -> None:
    """No unnamed properties, no numbers that readers disagree on, no words."""
    number = {"minimum": -MAX_NUMBER, "maximum": MAX_NUMBER}
    assert for_grammar(
        {
            "title": "An order",
            "$defs": {"n": {"type": ["integer", "null"], "minimum": 1}},
            **an_object(a={"$ref": "#/$defs/n"}, title={"anyOf": [{"type": "number"}]}),
        }
    ) == {
        "$defs": {"n": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_NUMBER}},
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/n"},
            "title": {"anyOf": [{"type": "number", **number}]},
        },
        "additionalProperties": False,
    }


def test_a_validator_is_not_given_what_it_checks_badly() -> None:
    """But keeps properties that are called so."""
    schema = an_object(pattern={"type": "string", "pattern": "^(a+)+$"})
    assert without_costly(schema) == an_object(pattern={"type": "string"})


def test_places_that_never_end_are_told() -> None:
    """Also behind a $ref and in an array."""
    schema = {
        "$defs": {"s": {"type": "string"}},
        **an_object(
            a={"$ref": "#/$defs/s"},
            b={"type": "array", "items": an_object(c={"type": "string"}, d=TEXT)},
            e={"type": "string", "pattern": "^a$"},
        ),
    }
    assert endless_places(schema) == [
        "$.a has no maxLength",
        "$.b has no maxItems",
        "$.b[].c has no maxLength",
    ]
    check_output_schema(schema)
    assert [f.code for f in lint_spec(spec(schema))] == ["answer_endless"]
    assert not list(lint_spec(spec(SCHEMAS["order"])))


@pytest.mark.parametrize(
    ("expected", "fits"),
    [('{"a":  "x"}', True), ('{"a": 1}', False), ("x", False), ("[" * 100_000, False)],
    ids=["other spaces", "other type", "no JSON", "deep"],
)
def test_an_expected_answer_must_fit(expected: str, fits: bool) -> None:
    """As JSON, not to the letter."""
    one = spec(an_object(a=TEXT), samples=[{"input": {"note": "x"}, "expected": expected}])
    assert [f.code for f in lint_spec(one)] == ([] if fits else ["expected_impossible"])


def test_the_order_of_properties_is_part_of_a_version() -> None:
    """It is the order of the answer: a reason before a verdict is another template."""
    one, other = spec(an_object(a=TEXT, b=TEXT)), spec(an_object(b=TEXT, a=TEXT))
    assert version_digest(one, MODEL) != version_digest(other, MODEL)
    assert version_digest(one, MODEL) == version_digest(spec(an_object(a=TEXT, b=TEXT)), MODEL)
    found = diff_sides(Side(name="one", spec=one), Side(name="other", spec=other))
    assert found.settings.keys() == {"output.schema"}
    assert found.text


def test_a_version_without_a_schema_keeps_its_digest() -> None:
    """Of the day before there were schemas: what is published stays what it is."""
    assert spec().to_plain()["output"] == {"choices": None}
    found = diff_sides(Side(name="one", spec=spec()), Side(name="other", spec=spec(TEXT)))
    assert found.settings["output.schema"] == (None, '{"type":"string","maxLength":10}')
