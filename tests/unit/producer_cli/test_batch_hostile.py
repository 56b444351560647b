"""Batch files from hostile hands: endless lines, marks, surrogates, outputs of somebody else."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pytest

from contract.errors import Conflict
from producer.batch.lines import (
    BadLine,
    BatchLine,
    batch_name,
    chunks_of,
    lines_of,
    read_lines,
)
from producer.batch.results import Output
from tests.fuzz.judge import bounded

BATCH = "0" * 16
LIMIT = 1000


def _anything(_template: str, _variables: Mapping[str, Any], _key: str | None) -> None:
    """A template that takes all."""


def _read(content: bytes) -> list[BatchLine | BadLine]:
    lines = lines_of(io.BytesIO(content), max_bytes=LIMIT)
    return list(read_lines(lines, template="acme/x", check=_anything, max_bytes=LIMIT))


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    """Where it stands elsewhere, the line is no JSON; a file of nothing else is empty."""
    good = b'{"variables": {"a": 1}}'
    first, second = _read(b"\xef\xbb\xbf" + good + b"\n\xef\xbb\xbf" + good)
    assert isinstance(first, BatchLine)
    assert first.variables == {"a": 1}
    assert isinstance(second, BadLine)
    assert _read(b"\xef\xbb\xbf") == []
    assert _read(b"\xef\xbb\xbf\n" + good)[0].index == 1


def test_a_line_without_end_is_one_bad_line() -> None:
    """The lines around it are read, under their own numbers; memory is that of the limit."""
    good = b'{"variables": {}}\n'
    content = good + b"x" * (64 * 2**20) + b"\n" + good
    with bounded(seconds=30, mib=300):
        found = _read(content)
    assert [(type(line), line.index) for line in found] == [
        (BatchLine, 0),
        (BadLine, 1),
        (BatchLine, 2),
    ]
    assert isinstance(found[1], BadLine)
    assert "too long" in str(found[1].error)


@pytest.mark.parametrize("length", [LIMIT - 1, LIMIT, LIMIT + 1, LIMIT + 2, 2 * LIMIT + 1])
def test_lines_around_the_limit_are_cut_nowhere_else(length: int) -> None:
    """A line's end belongs to it, and no piece of one is taken for a line."""
    content = b"a\n" + b"x" * (length - 1) + b"\nb\n"
    found = list(lines_of(io.BytesIO(content), max_bytes=LIMIT))
    assert (found[0], found[2:]) == (b"a\n", [b"b\n"])
    assert len(found[1]) == min(length, LIMIT + 1)


def test_the_name_of_a_batch_is_that_of_its_bytes() -> None:
    """However they are cut into pieces."""
    content = b"a\nb" * (2**20)
    asked: dict[str, Any] = {"template": None, "use_cache": True, "run": ""}
    assert batch_name([content], **asked) == batch_name(chunks_of(io.BytesIO(content)), **asked)


@pytest.mark.parametrize(
    "line",
    [
        b'{"variables": {}, "\\ud800": 1}',
        b'{"variables": {}, "id": "\\ud800"}',
        b'{"variables": {}, "id": [[["planted"]]]}',
        b'{"variables": {}, "template": "\\ud800"}',
        b'{"variables": {}, "template": {"a": "planted"}}',
        b'{"variables": "planted"}',
        b'{"variables": {"a": 1e999}, "id": 1e999}',
        b'["planted"]',
        b'{"variables": planted}',
        b"[" * 900,
        b"\xff\xfe",
        b'{"variables": {}, "id": ' + b"9" * 500 + b"}",
    ],
)
def test_bad_lines_can_be_written_and_quote_no_value(line: bytes) -> None:
    """As `--skip-invalid` does, which puts the error into the output file."""
    [bad] = _read(line)
    assert isinstance(bad, BadLine)
    file = io.BytesIO()
    output = Output(file, BATCH)
    output.refuse(bad)
    written = json.loads(file.getvalue())
    assert written["error"]["error"] == "invalid_input"
    assert b"planted" not in file.getvalue()


@pytest.mark.parametrize(
    "line",
    [
        b"planted",
        b'{"planted": 1}',
        b"[]",
        b"[" * 100_000,
        b'{"index": "0", "batch": "%s", "status": "succeeded"}' % BATCH.encode(),
        b'{"index": 0, "batch": "%s", "status": ["planted"]}' % BATCH.encode(),
        b'{"index": 0, "batch": "%s", "status": "failed", "usage": [1]}' % BATCH.encode(),
        b'{"index": 0, "batch": 5, "status": "failed"}',
        b'{"index": 0, "batch": "' + b"planted" * 9 + b'", "status": "failed"}',
    ],
)
def test_outputs_of_somebody_else_are_left_alone_and_not_quoted(line: bytes) -> None:
    """The file may be a user's, given to -o by mistake."""
    file = io.BytesIO(line + b"\n")
    with pytest.raises(Conflict) as caught:
        Output(file, BATCH)
    assert file.getvalue() == line + b"\n"
    assert len(str(caught.value)) < 400
    assert str(caught.value).count("planted") <= 6  # the batch's name, and no more of it
