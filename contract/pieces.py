"""A job's answer as it is written, piece by piece: the entries of its stream in Redis.

An entry is a piece of text with its place in the answer, or the begin of another try, or the end.
The record stays the truth: what a stream lacks (pieces may be dropped, streams are cut to a length
and expire) its reader fills in from the result. So nothing here needs to be repeated until it is
written, and a reader can tell by the places what it has seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from contract.errors import InvalidInput, NotFound
from contract.logs import get_logger
from contract.types import JobState, Result

Kind = Literal["text", "restart", "end"]

BEGIN = "0-0"  # before the first entry
MAX_ENTRIES = 4096  # kept in Redis of one job; about that many
_ENTRY = re.compile(r"[0-9]{1,20}-[0-9]{1,20}", re.ASCII)
_KINDS: dict[bytes, Kind] = {b"text": "text", b"restart": "restart", b"end": "end"}
_WHOLE = re.compile(rb"[0-9]{1,18}")

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a stream, as a worker wrote it."""

    kind: Kind
    fence: int  # of the claim under which it was written
    turn: int = 0  # counts the starts of the text under one fence
    attempt: int = 1
    at: int = 0  # characters of the answer before `text`
    text: str = ""
    id: str = ""  # Redis's; "" before it is written

    @property
    def order(self) -> tuple[int, int]:
        """The newest text of a job has the highest."""
        return (self.fence, self.turn)

    def fields(self) -> list[str | int]:
        """As XADD takes it."""
        common = ["k", self.kind, "f", self.fence, "u", self.turn, "a", self.attempt]
        return [*common, "o", self.at, "t", self.text] if self.kind == "text" else common


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a reader of a stream gets.

    `text`: the next characters of the answer. `restart`: what came so far is void, the text begins
    anew. `end`: the last; `status` says how the job ended, and its result is there to be read.
    """

    kind: Kind
    text: str = ""
    attempt: int = 0
    entry: str = ""  # where to go on after this piece; "" for text that the stream lacked
    status: JobState | None = None

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The piece as plain data, for JSON."""
        found: dict[str, Any] = {"event": self.kind, "attempt": self.attempt}
        if self.kind == "text":
            found["text"] = self.text
        if self.status is not None:
            found["status"] = str(self.status)
        return found | ({"entry": self.entry} if self.entry else {})


class PieceReader:
    """From entries to pieces: each character once and in order, whatever was written twice or lost.

    Holds the text so far, which is no longer than the result.
    """

    def __init__(self, resumed: Entry | None = None) -> None:
        """`resumed`: the entry after which reading goes on."""
        self._order = (0, 0) if resumed is None else resumed.order
        self._attempt = 0 if resumed is None else resumed.attempt
        # What was read, of the characters from `_from` on; those before were read by somebody else.
        self._from = 0 if resumed is None else resumed.at
        self._seen = [] if resumed is None else [resumed.text]
        self._at = self._from + sum(map(len, self._seen))
        self.ended = False  # the text that was read last

    @property
    def fence(self) -> int:
        """The newest that was read; 0 before the first entry."""
        return self._order[0]

    def read(self, entry: Entry) -> list[Piece]:
        """The pieces that an entry comes to."""
        if entry.fence > self.fence:
            self.ended = False  # it was the end of a dead job, which was revived
        if entry.order < self._order or self.ended:
            return []  # of a worker that lost the job
        if entry.kind == "end":
            # Its number counts: a piece of that text which was written twice begins nothing anew.
            self._order, self.ended = entry.order, True
            return []
        pieces = []
        if entry.order > self._order:
            # A worker says that it begins anew; its word may have been lost.
            anew = self._at > 0 or entry.kind == "restart"
            self._order, self._attempt = entry.order, entry.attempt
            self._from, self._at, self._seen = 0, 0, []
            if anew:
                pieces.append(Piece(kind="restart", attempt=entry.attempt, entry=entry.id))
        if entry.kind != "text" or entry.at > self._at:
            return pieces  # a gap: the rest comes with the result
        if new := entry.text[self._at - entry.at :]:
            pieces.append(self._next(new, entry.id))
        return pieces

    def finish(self, result: Result) -> list[Piece]:
        """The rest of the text, and the end."""
        pieces, whole = [], result.text
        seen = whole.startswith("".join(self._seen), self._from)
        if self._from and result.attempt != self._attempt:
            seen = False  # what is before is not known here, and was another text
        if not seen:
            pieces.append(Piece(kind="restart", attempt=result.attempt))
            self._from, self._at, self._seen = 0, 0, []
        self._attempt = result.attempt
        if rest := whole[self._at :]:
            pieces.append(self._next(rest, ""))
        pieces.append(Piece(kind="end", attempt=result.attempt, status=result.status))
        return pieces

    def _next(self, new: str, entry: str) -> Piece:
        self._at += len(new)
        self._seen.append(new)
        return Piece(kind="text", text=new, attempt=self._attempt, entry=entry)


def check_entry(entry: str) -> str:
    """The entry's id. Raises InvalidInput for what is none."""
    if not _ENTRY.fullmatch(entry):
        raise InvalidInput(
            "not an entry of a stream",
            given=f"{entry!r:.40}",
            expected="the `entry` of a piece, such as 1718000000000-0",
        )
    return entry


def entry_gone(job_id: str, entry: str) -> NotFound:
    """The error for a stream that cannot be resumed there."""
    return NotFound(
        "the stream cannot be resumed there",
        given=f"entry {entry} of {job_id}",
        expected="an entry that is still kept",
        remedy="Read it from its start.",
    )


def read_entries(found: Any) -> list[Entry]:
    """What XRANGE replied; what is no entry of ours is left out and logged."""
    entries = []
    for entry_id, fields in found or ():
        try:
            entries.append(replace(_read(dict(fields)), id=entry_id.decode("ascii")))
        except (KeyError, ValueError, TypeError, AttributeError):
            _log.warning("piece_unreadable")
    return entries


def _read(fields: Mapping[bytes, bytes]) -> Entry:
    kind = _KINDS[fields[b"k"]]
    text = kind == "text"
    return Entry(
        kind=kind,
        fence=_whole(fields[b"f"]),
        turn=_whole(fields[b"u"]),
        attempt=_whole(fields[b"a"]),
        at=_whole(fields[b"o"]) if text else 0,
        text=fields[b"t"].decode("utf-8") if text else "",
    )


def _whole(value: bytes) -> int:
    if not _WHOLE.fullmatch(value):
        raise ValueError("no whole number")
    return int(value)


def joined(pieces: Iterable[Piece]) -> str:
    """The answer that the pieces come to."""
    text = ""
    for piece in pieces:
        text = "" if piece.kind == "restart" else text + piece.text
    return text
