"""What a reader of an answer's stream is told, whatever was written twice, late or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.errors import InvalidInput
from contract.pieces import Entry, Piece, PieceReader, check_entry, joined, read_entries
from contract.types import JobState, Result, VersionRef

REF = VersionRef(tenant="acme", template="notes", version=1, digest="d" * 64)


def text(words: str, at: int, *, fence: int = 1, turn: int = 0, attempt: int = 1) -> Entry:
    return Entry(kind="text", fence=fence, turn=turn, attempt=attempt, at=at, text=words)


def result(answer: str, **changes: object) -> Result:
    done = Result(job_id="acme.x", ref=REF, status=JobState.SUCCEEDED, text=answer, attempt=1)
    return replace(done, **changes)  # type: ignore[arg-type]


def read(entries: list[Entry], reader: PieceReader | None = None) -> list[Piece]:
    reader = reader or PieceReader()
    return [piece for entry in entries for piece in reader.read(entry)]


def test_pieces_come_in_order_and_once() -> None:
    """An entry that was written twice, as after a lost reply, adds nothing new."""
    pieces = read([text("abc", 0), text("abc", 0), text("bcde", 1), text("f", 5)])
    assert [piece.text for piece in pieces] == ["abc", "de", "f"]


def test_the_end_gives_what_the_stream_lacked() -> None:
    """A gap stops the text until the result is there; then the rest comes, and the end."""
    reader = PieceReader()
    assert joined(read([text("ab", 0), text("ef", 4)], reader)) == "ab"
    pieces = reader.finish(result("abcdef"))
    assert [(p.kind, p.text) for p in pieces] == [("text", "cdef"), ("end", "")]
    assert pieces[-1].status is JobState.SUCCEEDED


def test_another_attempt_begins_anew_and_an_old_worker_is_not_heard() -> None:
    """Its restart says which attempt; what a worker writes that lost the job comes to nothing."""
    reader = PieceReader()
    restart = Entry(kind="restart", fence=2, attempt=2)
    new = text("xy", 0, fence=2, attempt=2)
    late = [text("d", 3), text("z", 0)]  # under the old fence
    pieces = read([text("abc", 0), restart, restart, *late, new], reader)
    assert [(p.kind, p.attempt) for p in pieces] == [("text", 1), ("restart", 2), ("text", 2)]
    assert joined(pieces) == "xy"


def test_a_restart_that_was_lost_is_told_all_the_same() -> None:
    """The first piece of a newer text shows it; where nothing was read there is nothing to void."""
    assert [p.kind for p in read([text("abc", 0), text("x", 0, fence=2)])] == [
        "text",
        "restart",
        "text",
    ]
    assert [p.kind for p in read([text("x", 0, fence=2)])] == ["text"]


def test_a_text_that_is_not_the_results_is_void() -> None:
    """As of a job whose stream is of an attempt before the one that was committed."""
    reader = PieceReader()
    pieces = read([text("abc", 0)], reader) + reader.finish(result("other", attempt=2))
    assert [(p.kind, p.attempt) for p in pieces] == [
        ("text", 1),
        ("restart", 2),
        ("text", 2),
        ("end", 2),
    ]
    assert joined(pieces) == "other"


def test_reading_goes_on_after_an_entry() -> None:
    """Its place says what was read; the end gives the rest, or begins anew for another text."""
    reader = PieceReader(text("cd", 2))
    assert [p.text for p in read([text("cd", 2), text("ef", 4)], reader)] == ["ef"]
    assert [p.text for p in reader.finish(result("abcdefg"))] == ["g", ""]
    reader = PieceReader(text("cd", 2))
    assert [p.kind for p in reader.finish(result("a"))] == ["restart", "text", "end"]


def test_two_attempts_texts_are_not_joined() -> None:
    """Who reads on after a piece has the text before it from elsewhere: only the attempt tells
    whether it is the result's, and where that is the same, the piece itself."""
    reader = PieceReader(text("cd", 2))
    pieces = reader.finish(result("uvcdwxyz", attempt=2))
    assert [(p.kind, p.text) for p in pieces] == [
        ("restart", ""),
        ("text", "uvcdwxyz"),
        ("end", ""),
    ]
    reader = PieceReader(text("cd", 2))
    assert [p.kind for p in reader.finish(result("uvwxyz"))] == ["restart", "text", "end"]
    reader = PieceReader(text("cd", 2))
    pieces = read([text("ef", 4)], reader) + reader.finish(result("abcdEFg"))
    assert [p.text for p in pieces] == ["ef", "", "abcdEFg", ""]
    # What was read from the start is known, whoever computed it.
    reader = PieceReader(text("ab", 0))
    assert [p.text for p in reader.finish(result("abcd", attempt=2))] == ["cd", ""]


def test_nothing_follows_the_end() -> None:
    """Whoever writes it is done."""
    reader = PieceReader()
    read([text("abc", 0), Entry(kind="end", fence=1)], reader)
    assert reader.ended
    assert read([text("d", 3)], reader) == []


def test_a_revived_job_streams_again() -> None:
    """Its dead attempt wrote an end; the next claim has a newer fence, and begins anew."""
    reader = PieceReader()
    dead, end = text("abc", 0), Entry(kind="end", fence=1)
    assert [piece.kind for piece in read([dead, end], reader)] == ["text"]
    again = [Entry(kind="restart", fence=2), text("xy", 0, fence=2), text("z", 2, fence=2)]
    pieces = read([*again, text("late", 3)], reader)
    assert [(p.kind, p.text) for p in pieces] == [("restart", ""), ("text", "xy"), ("text", "z")]
    assert not reader.ended
    assert read([Entry(kind="end", fence=2), again[1], end], reader) == []
    assert reader.ended


def test_an_end_of_a_text_that_was_not_read_ends_it() -> None:
    """What of it was written twice and comes behind begins nothing anew."""
    reader = PieceReader()
    end = Entry(kind="end", fence=2)
    assert [p.text for p in read([text("abc", 0), end, text("x", 0, fence=2)], reader)] == ["abc"]
    assert reader.ended


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {b"k": b"text"},
        {b"k": b"odd", b"f": b"1", b"u": b"0", b"a": b"1"},
        {b"k": b"text", b"f": b"1", b"u": b"0", b"a": b"1", b"o": b"-1", b"t": b"x"},
        {b"k": b"text", b"f": b"1", b"u": b"0", b"a": b"1", b"o": b"0", b"t": b"\xff"},
        {b"k": b"end", b"f": b"1" * 5000, b"u": b"0", b"a": b"1"},
    ],
    ids=["empty", "half", "kind", "place", "bytes", "number"],
)
def test_what_is_no_entry_is_left_out(fields: dict[bytes, bytes]) -> None:
    """And hides no other."""
    good = {b"k": b"end", b"f": b"1", b"u": b"0", b"a": b"1"}
    assert [entry.id for entry in read_entries([(b"1-0", fields), (b"2-0", good)])] == ["2-0"]


@pytest.mark.parametrize("entry", ["", "x", "1", "1-", "1-1-1", "(1-0", "+", "1-0\n", "٣-0"])
def test_an_entry_has_a_form(entry: str) -> None:
    """What is none never reaches Redis."""
    with pytest.raises(InvalidInput):
        check_entry(entry)
