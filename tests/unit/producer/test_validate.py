"""Variables are checked in the producer, and what is wrong is named."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import urllib.request
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, strategies as st

from contract.errors import InvalidInput, SpecInvalid
from producer.validate import VariablesChecker
from tests.support.published import make_spec, make_version

LIMIT = 10_000
PRIORITY = {
    "type": "object",
    "properties": {
        "ticket": {"type": "string", "maxLength": 5000},
        "priority": {"enum": ["low", "high"]},
        "lines": {"type": "array", "items": {"type": "object", "required": ["sku"]}},
    },
    "required": ["ticket"],
    "additionalProperties": False,
}
VERSION = make_version(make_spec(schema=PRIORITY))


def check(variables: Any) -> dict[str, Any]:
    return VariablesChecker(LIMIT).check(VERSION, variables)


@pytest.mark.parametrize(
    ("variables", "parts"),
    [
        ({}, ["$.ticket is missing", "the fields ticket"]),
        ({"ticket": 7}, ["$.ticket", "a number", "type: 'string'"]),
        ({"ticket": None}, ["$.ticket", "null", "'string'"]),
        ({"ticket": True}, ["$.ticket", "a boolean"]),
        ({"ticket": "x" * 5001}, ["$.ticket", "text of 5001 characters", "maxLength: 5000"]),
        ({"ticket": "x", "prio": 1}, ["$.prio is not a field", "lines, priority, ticket"]),
        ({"ticket": "x", "priority": "urgent"}, ["$.priority", "text of 6", "['low', 'high']"]),
        ({"ticket": "x", "lines": {}}, ["$.lines", "an object", "'array'"]),
        ({"ticket": "x", "lines": [{"sku": 1}, {}]}, ["$.lines[1].sku is missing"]),
        ({"ticket": dt.date(2026, 1, 1)}, ["$.ticket", "type date", ".isoformat()"]),
        ({"ticket": b"raw"}, ["$.ticket", "type bytes"]),
        ({"ticket": 2**70}, ["$.ticket", "over 64 bits", "string"]),
        ({"ticket": math.nan}, ["$.ticket", "nan", "finite"]),
        ({"ticket": {1: "x"}}, ["$.ticket", "the key 1 of type int"]),
        ({"ticket": "\ud800"}, ["$.ticket", "lone surrogate"]),
        (["x"], ["variables are no object", "a list of 1"]),
    ],
)
def test_the_field_its_value_and_the_remedy_are_named(variables: Any, parts: list[str]) -> None:
    """Case Q10, and every way not to fit the schema: the message leads to the mistake."""
    with pytest.raises(InvalidInput) as caught:
        check(variables)
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert caught.value.remedy or caught.value.expected
    assert "urgent" not in str(caught.value)  # values are prompt text


@pytest.mark.parametrize("value", ["x" * 9000, ["x"] * 900, {"k": "x" * 9000}, 10**18])
def test_messages_stay_short_whatever_the_value(value: object) -> None:
    """A long value is shown by its beginning: prompts do not end up in logs."""
    with pytest.raises(InvalidInput) as caught:
        check({"ticket": "x", "priority": value})
    assert len(str(caught.value)) < 500


def test_the_size_limit_names_the_largest_field() -> None:
    """Case Q19: a variable over the limit is refused with both numbers and the setting."""
    check({"ticket": "x" * 4900})
    version = make_version()
    with pytest.raises(InvalidInput) as caught:
        VariablesChecker(LIMIT).check(version, {"ticket": "x" * LIMIT, "a": 1})
    message = str(caught.value)
    assert "$.ticket" in message
    assert "at most 10000 bytes" in message
    assert "PREFILLQ_MAX_VARIABLES_BYTES" in message


def test_a_megabyte_passes_below_the_limit() -> None:
    """Case Q19: size alone is no reason to refuse what the settings allow."""
    text = "x" * 1_000_000
    assert VariablesChecker(2**21).check(make_version(), {"ticket": text}) == {"ticket": text}


def test_variables_are_returned_as_a_worker_sees_them() -> None:
    """Any mapping goes in; tuples come out as lists, and the caller's object is not kept."""
    given: dict[str, Any] = {"ticket": "x", "lines": ({"sku": 1},)}
    checked = check(MappingProxyType(given))
    assert checked == {"ticket": "x", "lines": [{"sku": 1}]}
    given["lines"][0]["sku"] = 2
    assert checked["lines"] == [{"sku": 1}]


def test_a_schema_is_compiled_once_per_version() -> None:
    """The second check of a version uses the first one's validator; versions do not share."""
    checker = VariablesChecker(LIMIT)
    for _ in range(3):
        checker.check(VERSION, {"ticket": "x"})
    assert len(checker._compiled) == 1
    checker.check(make_version(), {"ticket": "x"})
    assert len(checker._compiled) == 2


@pytest.mark.parametrize(
    "ticket",
    [{"$ref": "http://127.0.0.1:9/schema.json"}, {"$ref": "#/$defs/none"}, {"pattern": "("}],
    ids=["other_host", "dangling", "bad_pattern"],
)
def test_a_schema_that_cannot_be_applied_is_the_templates_fault(
    ticket: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference to another host is never fetched; it and a bad pattern name the template."""
    asked: list[object] = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **_: asked.append(args))
    schema = {"type": "object", "properties": {"ticket": ticket}, "required": ["ticket"]}
    broken = VERSION.spec.input.model_copy(update={"json_schema": schema})
    version = replace(VERSION, spec=VERSION.spec.model_copy(update={"input": broken}))
    with pytest.raises(SpecInvalid, match="acme/triage@1"):
        VariablesChecker(LIMIT).check(version, {"ticket": "x"})
    assert asked == []


@given(st.dictionaries(st.text(max_size=5), st.one_of(st.text(), st.integers(), st.none())))
def test_anything_either_fits_or_is_invalid_input(variables: dict[str, Any]) -> None:
    """No variables make the check raise anything else."""
    with contextlib.suppress(InvalidInput):
        assert check(variables) == variables
