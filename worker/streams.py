"""Writes the answers of running jobs to Redis while they are made, for jobs that asked for it.

The engine's thread does no more than append an id to a list. Another thread looks at all such lists
a few times a second, turns new ids into text and writes what all jobs have new in one pipeline.
Nothing is queued beside the ids: while Redis is slow or away the next piece of a job becomes
longer, and the engine never notices. What is held is at most the answers of the running jobs, and
the ends of MAX_ENDED others; of more than those the oldest are dropped, and their readers take the
rest from the result. So is a stream whose pieces Redis refuses for a reason that does not pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from contract.errors import PrefillqError, RedisFull, RedisUnreachable
from contract.job_checks import MAX_DEADLINE_S
from contract.job_store import COMMIT_GRACE_S, PieceWrite
from contract.logs import get_logger
from contract.pieces import Entry, Kind
from contract.settings import Settings
from contract.types import Job, Result
from worker.engine.stopping import Decode
from worker.safe_text import SafeText

log = get_logger(__name__)

INTERVAL_S = 0.04
RETRY_S = 0.5  # after a write that failed
MAX_ENDED = 1024

OnToken = Callable[[int], None]


class PieceStore(Protocol):
    """Where pieces are written; a job store is one."""

    def write_pieces(self, writes: Sequence[PieceWrite]) -> list[PrefillqError | None]: ...


class TokenSink(Protocol):
    """Where an answer goes while it is made."""

    def begin(self, stop: Sequence[str], decode: Decode) -> OnToken:
        """A text begins, which voids the one before; what is returned takes its ids."""


class _Turn:
    """One text of a job, from its first id on. Ids are added by the engine's thread, all else is
    the writer's.
    """

    def __init__(self, number: int, safe: SafeText | None, *, announced: bool) -> None:
        self.number = number
        self.ids: list[int] = []
        self.announced = announced  # readers know that it has begun
        self.text = ""
        self.written = 0  # characters
        self._safe = safe
        self._read = 0  # ids

    def advance(self) -> None:
        """Turn new ids into text."""
        count = len(self.ids)
        if self._safe is not None and count > self._read:
            self.text += self._safe.add(self.ids[self._read : count])
            self._read = count


class AnswerStream:
    """One attempt at a job; see `AnswerStreams.open`."""

    def __init__(self, job: Job, settings: Settings) -> None:
        self.job = job
        self.result: Result | None = None  # once it is committed
        self.ended = False  # and readers know
        self._ttl_s = settings.result_ttl_s
        # A producer can write both times: what Redis is asked to keep has a bound.
        life_s = (job.deadline_at or job.created_at) - job.created_at
        life_s = min(max(0.0, life_s), MAX_DEADLINE_S)
        self._keep_s = life_s + settings.result_ttl_s + COMMIT_GRACE_S
        # Under an older fence there may be text of an attempt that came to nothing.
        self._turn = _Turn(0, None, announced=job.first_claim)
        self._began = False

    def begin(self, stop: Sequence[str], decode: Decode) -> OnToken:
        """See `TokenSink`."""
        last, safe = self._turn, SafeText(stop, decode)
        if self._began:
            self._turn = _Turn(last.number + 1, safe, announced=False)
        else:
            self._turn = _Turn(last.number, safe, announced=last.announced)
        self._began = True
        return self._turn.ids.append

    def due(self) -> tuple[PieceWrite, _Turn] | None:
        """What is to be written now, and of which text."""
        result, turn = self.result, self._turn
        turn.advance()
        if result is not None:
            if not result.text.startswith(turn.text):
                self._turn = turn = _Turn(turn.number + 1, None, announced=False)
            turn.text = result.text
        entries = []
        if not turn.announced:
            entries.append(self._entry("restart", turn))
        if len(turn.text) > turn.written:
            entries.append(self._entry("text", turn))
        if result is not None:
            entries.append(self._entry("end", turn))
        if not entries:
            return None
        keep_s = self._keep_s if result is None else self._ttl_s
        return PieceWrite(job_id=self.job.id, entries=tuple(entries), keep_s=keep_s), turn

    def was_written(self, write: PieceWrite, turn: _Turn) -> None:
        """Redis has it."""
        turn.announced = True
        for entry in write.entries:
            turn.written = max(turn.written, entry.at + len(entry.text))
            self.ended = self.ended or entry.kind == "end"

    def _entry(self, kind: Kind, turn: _Turn) -> Entry:
        entry = Entry(kind=kind, fence=self.job.fence, turn=turn.number, attempt=self.job.attempt)
        if kind != "text":
            return entry
        return replace(entry, at=turn.written, text=turn.text[turn.written :])


class AnswerStreams:
    """All that are written now, and the thread that does it."""

    def __init__(self, store: PieceStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._lock = threading.Lock()
        self._open: dict[int, AnswerStream] = {}  # by identity
        self._some = threading.Event()
        self._stop = threading.Event()
        self._fails = False
        self._thread = threading.Thread(target=self._loop, name="answer-streams", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is left, unless Redis is away, and end the thread."""
        self._stop.set()
        self._some.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    @contextmanager
    def open(self, job: Job) -> Iterator[AnswerStream | None]:
        """The stream of an attempt at a job; None for a job that asked for none.

        Its `result` must be set in the block once it is committed. Without it readers are told of
        no end: another attempt goes on.
        """
        if not job.stream:
            yield None
            return
        stream = AnswerStream(job, self._settings)
        with self._lock:
            self._open[id(stream)] = stream
            self._some.set()
        try:
            yield stream
        finally:
            if stream.result is None:
                self._close([stream])

    def flush(self) -> bool:
        """Write what all have new, in one pipeline; False when Redis is away or full.

        A stream that is refused for another reason is dropped: it would be refused for ever.
        """
        due = [
            (stream, *found)
            for stream in self._streams()
            if (found := self._due(stream)) is not None
        ]
        if not due:
            return True
        waits, over = None, []
        outcomes = self._write([write for _, write, _ in due])
        for (stream, write, turn), outcome in zip(due, outcomes, strict=True):
            match outcome:
                case None:
                    stream.was_written(write, turn)
                    if stream.ended:
                        over.append(stream)
                case RedisUnreachable() | RedisFull():
                    waits = outcome
                case _:
                    log.warning("answer_stream_refused", job_id=stream.job.id, error=str(outcome))
                    over.append(stream)
        self._note(waits)
        self._close(over)
        return waits is None

    def _write(self, writes: Sequence[PieceWrite]) -> Sequence[Exception | None]:
        """What became of each."""
        try:
            return self._store.write_pieces(writes)
        except (RedisUnreachable, RedisFull) as error:
            return [error] * len(writes)
        except Exception as error:  # noqa: BLE001 - its stream is dropped with it
            if len(writes) == 1:
                return [error]
            # It may be about one of them: the others are not to suffer for it.
            return [outcome for write in writes for outcome in self._write([write])]

    def _due(self, stream: AnswerStream) -> tuple[PieceWrite, _Turn] | None:
        try:
            return stream.due()
        except Exception:
            # A decoder that fails on one job's ids: the others go on, and the result has it all.
            log.exception("answer_stream_crashed", job_id=stream.job.id)
            self._close([stream])
            return None

    def _streams(self) -> list[AnswerStream]:
        with self._lock:
            streams = list(self._open.values())
        ended = [stream for stream in streams if stream.result is not None]
        if len(ended) > MAX_ENDED:
            dropped = ended[: len(ended) - MAX_ENDED]
            log.warning("answer_streams_dropped", count=len(dropped))
            self._close(dropped)
            streams = [stream for stream in streams if stream not in dropped]
        return streams

    def _close(self, streams: Sequence[AnswerStream]) -> None:
        with self._lock:
            for stream in streams:
                self._open.pop(id(stream), None)
            if not self._open and not self._stop.is_set():
                self._some.clear()

    def _note(self, refused: PrefillqError | None) -> None:
        if refused is not None and not self._fails:
            log.warning("answer_streams_wait", error=str(refused))
        elif refused is None and self._fails:
            log.info("answer_streams_written_again")
        self._fails = refused is not None

    def _loop(self) -> None:
        while not self._stop.is_set():
            self._some.wait()
            self._stop.wait(INTERVAL_S if self._flushed() else RETRY_S)
        if not self._fails:
            self._flushed()

    def _flushed(self) -> bool:
        """As `flush`, whatever happens: without this thread what is open would grow for ever."""
        try:
            return self.flush()
        except Exception:
            log.exception("answer_streams_crashed")
            with self._lock:
                streams = list(self._open.values())
            self._close(streams)
            return False
