"""Damaged records: named, never quoted, never an error of Python's own."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from contract import keys
from contract.codec import pack
from contract.console import json_line
from contract.errors import CodecError, RecordDamaged
from contract.ids import check_name
from contract.record_hash import job_of, state_of, view_of
from contract.tracing import format_traceparent
from contract.types import Result
from tests.fuzz.target_redis import _ID, _RECORD, _RESULT
from worker.identity import new_worker_id


def test_a_whole_record_is_read() -> None:
    """The one that the others are changes of."""
    view = view_of(_ID, _RECORD)
    assert view.result is not None
    assert view.result.text == "yes"
    assert view.result.timings.commit_s == 0.001
    assert view.finished_at == 1790000001.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"version", b"planted"),
        (b"version", b"1_0"),
        (b"shadow", b"planted"),
        (b"attempt", b"1.5"),
        (b"created_at", b"nan"),
        (b"deadline_at", b"inf"),
        (b"finished_at", b""),
        (b"commit_s", b"nan"),
        (b"state", b"planted"),
        (b"state", b"\xff"),
        (b"input", b"planted"),
        (b"input", pack(["planted"])),
        (b"result", b"planted"),
        (b"result", pack([])),
        (b"result", pack({**_RESULT.to_dict(), "timings": ["planted"]})),
        (b"result", pack({**_RESULT.to_dict(), "text": 5})),
        (b"result", pack({**_RESULT.to_dict(), "token_ids": "planted"})),
        (b"result", pack({**_RESULT.to_dict(), "status": "planted"})),
        (b"result", pack({**_RESULT.to_dict(), "error": "planted"})),
    ],
)
def test_a_damaged_field_is_named_and_not_quoted(field: bytes, value: bytes) -> None:
    """A record holds what users wrote, also where it does not belong."""
    with pytest.raises(RecordDamaged) as caught:
        view_of(_ID, {**_RECORD, field: value})
    assert "planted" not in str(caught.value)
    assert _ID in str(caught.value)


def test_a_worker_is_told_which_job_it_was() -> None:
    """It reads no result, but the input."""
    with pytest.raises(RecordDamaged, match=_ID):
        job_of(_ID, {**_RECORD, b"input": b"\xc1"})


@pytest.mark.parametrize("field", sorted(set(_RECORD) - {b"worker", b"commit_s", b"result"}))
def test_a_missing_field_is_named(field: bytes) -> None:
    """Those that every record has."""
    with pytest.raises(CodecError, match=f"no {field.decode()}"):
        view_of(_ID, {name: value for name, value in _RECORD.items() if name != field})


@pytest.mark.parametrize(
    "field", [b"template", b"digest", b"queue", b"rollout", b"traceparent", b"worker"]
)
def test_a_text_longer_than_ours_is_damage(field: bytes) -> None:
    """Workers hand these on to logs and results; a tenant's producer may write them by hand."""
    with pytest.raises(CodecError, match=f"{field.decode()} has more than") as caught:
        view_of(_ID, {**_RECORD, field: b"planted" * 100_000})
    assert "planted" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_the_longest_that_prefillq_writes_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each text; and no limit has more room than that, but a worker's for its process id."""
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 255)
    monkeypatch.setattr(os, "getpid", lambda: 2**22)
    name = "n" * 64
    check_name("template", name)
    longest = {
        b"template": name,
        b"digest": "d" * 64,
        b"queue": keys.queue(name, name, "m" * 64),
        b"rollout": "a" * 16,
        b"traceparent": format_traceparent(2**128 - 1, 2**64 - 1, 255),
        b"worker": new_worker_id(),
    }
    record = {field: value.encode() for field, value in longest.items()}
    assert view_of(_ID, {**_RECORD, **record}).job.queue == longest[b"queue"]
    for field, value in record.items():
        if field != b"worker":
            with pytest.raises(CodecError):
                view_of(_ID, {**_RECORD, field: value + b"x"})


def test_a_state_that_none_has_is_damage() -> None:
    """Scripts reply with what the record says."""
    assert state_of(_ID, b"queued") == "queued"
    with pytest.raises(CodecError, match=_ID):
        state_of(_ID, b"planted")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("probabilities", {"a": "b"}),
        ("probabilities", []),
        ("token_ids", [1, "b"]),
        ("token_ids", [True]),
        ("usage", {"prompt_tokens": 1.5}),
        ("cache", {"state": "warm", "reason": ""}),
        ("cache", None),
        ("attempt", None),
        ("choice", 5),
        ("error", {"code": "x", "message": None, "remedy": ""}),
        ("version", True),
    ],
)
def test_a_result_has_the_types_it_says(field: str, value: Any) -> None:
    """What was read can be printed, stored and counted."""
    right = _RESULT.to_dict()
    json_line(Result.from_dict(right).to_dict())
    if (field, value) == ("probabilities", []):
        assert Result.from_dict({**right, field: value}).probabilities == {}
        return
    with pytest.raises((TypeError, KeyError, ValueError)):
        Result.from_dict({**right, field: value})
