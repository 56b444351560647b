"""Template files made to cost more than their length, or to end PyYAML in ways of its own."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from contract.errors import SpecInvalid
from templates.lint import lint_spec
from templates.spec import load_spec, parse_spec
from templates.yaml_source import MAX_NODES, MAX_SPEC_BYTES, load_documents, parse_documents
from tests.fuzz.judge import bounded
from tests.support.published import make_spec

SIZE = MAX_SPEC_BYTES // 4  # time grows with it, and a quarter shows how
CPU_SECONDS = 5.0  # the slowest takes a second or two


@contextmanager
def _cheap() -> Iterator[None]:
    """By the thread's own time, for others may take the clock's; and without a tracer's share."""
    tracer = sys.gettrace()
    sys.settrace(None)
    started = time.thread_time()
    try:
        with bounded(seconds=120, mib=400):
            yield
        spent = time.thread_time() - started
    finally:
        sys.settrace(tracer)
    assert spent < CPU_SECONDS


def _repeat(text: str, head: str = "", tail: str = "") -> str:
    return head + text * ((SIZE - len(head) - len(tail)) // len(text)) + tail


BOMBS = {
    "a list of two million": (_repeat("1,", "[", "]"), f"more than {MAX_NODES} values"),
    "a block list": (_repeat("- a\n"), f"more than {MAX_NODES} values"),
    "a mapping": ("\n".join(f"k{n}: v" for n in range(100_000)), f"more than {MAX_NODES} values"),
    "empty documents": (_repeat("---\n"), f"more than {MAX_NODES} values"),
    "deep lists": ("[" * SIZE, "recursion"),
    "deep mappings": (_repeat("{a: "), "recursion"),
    "deep block lists": (_repeat("- "), "recursion"),
    "a number to base 60": (_repeat(":1", "a: 1"), "a number of"),
    "a float to base 60": (_repeat(":1", "a: 1", ":1.5"), "a number of"),
    "a long number": ("9" * SIZE, "a number of"),
    "a long hexadecimal number": ("0x" + "f" * (SIZE - 2), "a number of"),
    "aliases": ("a: &a [x, x]\nb: &b [*a, *a]\n", "aliases"),
    "an alias to itself": ("&a [*a]", "aliases"),
    "merged mappings": ("a: &a {x: 1}\nb: {<<: *a}", "aliases"),
    "an integer that is none": ("!!int ''", "tags"),
    "a boolean that is none": ("!!bool maybe", "tags"),
    "a time that is none": ("!!timestamp x", "tags"),
    "an object": ("!!python/object/apply:os.system [touch x]", "tags"),
    "a tag of one's own": ("!mine x", "tags"),
    "a tag with a handle": ("%TAG ! tag:x,2000:\n---\n!mine x", "tags"),
    "a control character": ("a: \x07", "unacceptable character"),
    "a lone surrogate": ("a: \ud800", "unacceptable character"),
    "a month that is none": ("a: 2001-99-99", "month"),
    "a key that is a list": ("{[a]: b}", "unhashable"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_time(name: str) -> None:
    """With words that say why, and memory that the file's size explains."""
    text, word = BOMBS[name]
    with pytest.raises(SpecInvalid, match=word) as caught, _cheap():
        parse_documents(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        _repeat("x"),
        _repeat(" ", tail="x"),
        _repeat("\n", tail="x"),
        _repeat("#", tail="\nx"),
        _repeat("\\n", '"', '"'),
        _repeat("a ", "|\n "),
        _repeat("'", "'", "'"),
    ],
    ids=["one word", "blanks", "empty lines", "a comment", "escapes", "a block", "quotes"],
)
def test_what_is_only_long_is_read_in_time(text: str) -> None:
    """A megabyte of one text is a template's right."""
    with _cheap():
        assert len(parse_documents(text)) == 1


def test_text_may_be_tagged_as_text() -> None:
    """The one tag with a use: a number that is meant as text."""
    assert parse_documents("a: !!str 12\nb: ! x\n") == ({"a": "12", "b": "x"},)


def test_the_place_is_named_and_the_line_is_not_quoted(tmp_path: Path) -> None:
    """A syntax error may stand amid a prompt."""
    path = tmp_path / "t.yaml"
    path.write_text("a: planted secret: x\n", "utf-8")
    with pytest.raises(SpecInvalid, match="line 1, column 18") as caught:
        load_documents(path)
    assert "planted" not in str(caught.value).replace(str(path), "")


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    """Some editors write one."""
    path = tmp_path / "t.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load_documents(path) == ({"a": 1},)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "huge", "utf16", "latin1"])
def test_files_that_are_none_are_refused_at_once(tmp_path: Path, kind: str) -> None:
    """Nothing is waited for, and no more read than a template may have."""
    path = tmp_path / "t.yaml"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "huge":
            with path.open("wb") as file:
                file.truncate(2**40)
        case "utf16":
            path.write_text("a: 1", "utf-16")
        case "latin1":
            path.write_bytes(b"a: \xe9")
    words = {"pipe": "a pipe", "device": "a device", "huge": "more than", "folder": "folder"}
    with pytest.raises(SpecInvalid, match=words.get(kind, "UTF-8")):
        load_spec(path)


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"(": {}}},
        {"properties": {"a": {"type": "string", "pattern": "(" * 400}}},
        {"properties": {"a": {"pattern": "(?P<x>a)(?P<x>b)"}}},
        {"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}},
        {"properties": 5},
        {"type": "strang"},
    ],
    ids=["pattern property", "deep pattern", "group twice", "elsewhere", "no object", "no type"],
)
def test_schemas_that_cannot_be_applied_are_refused(schema: dict[str, Any]) -> None:
    """At publish, and not at the first job."""
    plain = make_spec().to_plain()
    whole = {"type": "object", "required": ["ticket"], **schema}
    whole["properties"] = (
        {"ticket": {}, **whole["properties"]}
        if isinstance(whole.get("properties", {}), dict) and "properties" in whole
        else whole.get("properties", {"ticket": {}})
    )
    with pytest.raises(SpecInvalid):
        parse_spec({**plain, "input": {"schema": whole}})


@pytest.mark.parametrize("where", ["input", "output"])
@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": [*range(12_000), "object"]}, "12001 types"),
        ({"type": "object", "allOf": [True] * 12_000}, "too large"),
        ({"type": "object", "properties": {f"a{n}": {} for n in range(12_000)}}, "too large"),
        ({"dependentRequired": {f"a{n}": [] for n in range(60_000)}}, "too large"),
        ({"type": "object", "required": [f"a{n}" for n in range(100_000)]}, "too large"),
    ],
    ids=["types", "schemas", "properties", "dependent", "required"],
)
def test_schemas_that_take_minutes_to_check_are_refused(
    where: str, schema: dict[str, Any], word: str
) -> None:
    """Workers check what any tenant's admin may have stored, in the process that serves others."""
    plain = make_spec().to_plain()
    plain[where] = {"schema": schema}
    with pytest.raises(SpecInvalid, match=f"{word}|bytes"), _cheap():
        parse_spec(plain)


def test_a_schema_of_a_thousand_fields_is_read() -> None:
    """And data within it that looks like a schema."""
    plain = make_spec().to_plain()
    fields: dict[str, Any] = {f"a{n}": {"type": ["string", "null"]} for n in range(1000)}
    fields["ticket"] = {"type": "string", "examples": [{"type": ["x"] * 20}]}
    schema = {"type": "object", "properties": fields, "required": ["ticket"]}
    assert parse_spec({**plain, "input": {"schema": schema}}).input.json_schema == schema


def test_a_sample_that_does_not_fit_is_not_quoted() -> None:
    """Samples are what users wrote; lint says where and what kind."""
    spec = make_spec(samples=[{"input": {"ticket": ["planted"]}}, {"input": {"planted": 1}}])
    found = [finding for finding in lint_spec(spec) if finding.code == "sample_invalid"]
    assert re.search(r"\$\.ticket does not fit.*a list of 1.*type: 'string'", found[0].message)
    assert "planted" not in found[0].message
    assert any("$.ticket is missing" in finding.message for finding in found)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"generation": {"temperature": "hot"}}, "'hot'"),
        ({"limits": {"max_queue": 0}}, "0"),
        ({"messages": [{"role": "user", "content": ["planted"]}]}, "a list of 1"),
        ({"samples": [{"input": "planted"}]}, "text of 7 characters"),
    ],
    ids=["setting", "limit", "content", "sample"],
)
def test_settings_are_shown_and_prompts_are_not(change: dict[str, Any], word: str) -> None:
    """A wrong temperature is seen at once; a wrong content may be anybody's text."""
    with pytest.raises(SpecInvalid) as caught:
        parse_spec({**make_spec().to_plain(), **change})
    assert word in str(caught.value)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert "planted" not in str(chain)
        chain = chain.__cause__
