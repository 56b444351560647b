"""What messages may say of values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator

from contract.described import cut, describe, place_and_rule


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "null"),
        (True, "a boolean"),
        (1234, "a number"),
        (0.5, "a number"),
        ("secret", "text of 6 characters"),
        (["secret"], "a list of 1"),
        ({}, "an object with no fields"),
        ({"b": "secret", "a": 1}, "an object with the fields a, b"),
        ({str(n): n for n in range(100)}, "and 92 more"),
        (b"secret", "a value of type bytes"),
    ],
)
def test_kind_and_size_are_said(value: object, said: str) -> None:
    """Names of fields too, of a few."""
    assert said in describe(value)
    assert "secret" not in describe(value)


@given(st.recursive(st.text() | st.integers(), lambda inner: st.dictionaries(st.text(), inner)))
def test_descriptions_are_short(value: object) -> None:
    """Whatever is described."""
    assert len(describe(value)) < 800


@pytest.mark.parametrize(
    "schema",
    [
        {"const": 1},
        {"enum": ["a", "b"]},
        {"type": "integer"},
        {"pattern": "^x$"},
        {"maxLength": 2},
        {"properties": {"a": {"type": "integer"}}},
        {"additionalProperties": False},
        {"required": ["b"]},
        {"minItems": 9},
        {"uniqueItems": True},
        {"items": {"type": "integer"}},
        {"not": {}},
        {"anyOf": [{"type": "integer"}, {"maxLength": 1}]},
        {"propertyNames": {"maxLength": 0}},
        {"contains": {"type": "integer"}},
        {"dependentRequired": {"a": ["z"]}},
        {"unevaluatedProperties": False},
        {"unevaluatedItems": False},
        {"minProperties": 9},
    ],
)
def test_no_keyword_quotes_a_value(schema: Any) -> None:
    """The library's own words do, for nearly all of them."""
    secrets: tuple[Any, ...] = (
        "secret words",
        ["secret words", "secret words"],
        {"a": "secret words"},
    )
    seen = 0
    for value in secrets:
        for error in Draft202012Validator(schema).iter_errors(value):
            seen += 1
            assert not any("secret" in text for text in place_and_rule(error))
    assert seen


def test_names_are_cut() -> None:
    """At sixty characters, unless told otherwise."""
    assert cut("x" * 60) == "x" * 60
    assert cut("x" * 61) == "x" * 60 + "..."
    assert cut(5, 1) == "5"
