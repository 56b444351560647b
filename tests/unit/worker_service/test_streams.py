"""What is written of answers while they are made, and what happens while it cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from contract.errors import PrefillqError, RedisFull, RedisRefused, RedisUnreachable
from contract.job_checks import MAX_DEADLINE_S
from contract.job_store import COMMIT_GRACE_S, PieceWrite
from contract.pieces import Entry, PieceReader, joined
from contract.settings import Settings
from contract.types import Job, JobState, Result, VersionRef
from tests.support.waiting import until
from worker import streams as streams_module
from worker.streams import AnswerStreams

REF = VersionRef(tenant="acme", template="notes", version=1, digest="d" * 64)


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def job(name: str = "a", *, fence: int = 1, stream: bool = True) -> Job:
    return Job(
        id=f"acme.{name}",
        ref=REF,
        variables={},
        stream=stream,
        fence=fence,
        first_claim=fence == 1,
        attempt=fence,
        created_at=1000.0,
        deadline_at=1060.0,
    )


def result(of: Job, text: str, status: JobState = JobState.SUCCEEDED) -> Result:
    return Result(job_id=of.id, ref=REF, status=status, text=text, attempt=of.attempt)


class Pages:
    """Remembers what was written, in calls; fails on request."""

    def __init__(self) -> None:
        self.calls: list[list[PieceWrite]] = []
        self.error: PrefillqError | None = None
        self.refused: dict[str, PrefillqError] = {}  # by job id
        self.breaks_on = ""  # a job id

    def write_pieces(self, writes: Sequence[PieceWrite]) -> list[PrefillqError | None]:
        if self.error is not None:
            raise self.error
        if self.breaks_on in [write.job_id for write in writes]:
            raise UnicodeError("broken")
        self.calls.append(list(writes))
        return [self.refused.get(write.job_id) for write in writes]

    def entries(self, of: Job) -> list[Entry]:
        return [e for call in self.calls for w in call if w.job_id == of.id for e in w.entries]

    def read(self, of: Job, end: Result) -> str:
        """What a reader makes of it."""
        reader = PieceReader()
        pieces = [piece for entry in self.entries(of) for piece in reader.read(entry)]
        return joined([*pieces, *reader.finish(end)])


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def streams(pages: Pages) -> AnswerStreams:
    return AnswerStreams(pages, Settings(result_ttl_s=100.0))


def test_a_job_that_did_not_ask_has_no_stream(streams: AnswerStreams, pages: Pages) -> None:
    """And costs nothing."""
    with streams.open(job(stream=False)) as stream:
        assert stream is None
        streams.flush()
    assert pages.calls == []


def test_all_jobs_of_a_step_share_one_write(streams: AnswerStreams, pages: Pages) -> None:
    """However many rows the batch has; what came since the last one is one piece of each."""
    jobs = [job(f"j{n}") for n in range(32)]
    opened = [streams.open(each) for each in jobs]
    tokens = [stream.__enter__().begin((), decode) for stream in opened]  # type: ignore[union-attr]
    for on_token in tokens:
        for id_ in b"hello":
            on_token(id_)
    streams.flush()
    streams.flush()
    assert [len(call) for call in pages.calls] == [32]
    assert [entry.text for entry in pages.entries(jobs[7])] == ["hello"]
    for stream in opened:
        stream.__exit__(None, None, None)


def test_an_answer_comes_to_its_result(streams: AnswerStreams, pages: Pages) -> None:
    """Piece by piece, at last what was held back and the end, kept as long as the result."""
    it = job()
    with streams.open(it) as stream:
        assert stream is not None
        on_token = stream.begin(["###"], decode)
        for id_ in "né #".encode():
            on_token(id_)
            streams.flush()
        stream.result = result(it, "né #")
    streams.flush()
    assert [(e.kind, e.text) for e in pages.entries(it)] == [
        ("text", "n"),
        ("text", "é"),
        ("text", " "),
        ("text", "#"),
        ("end", ""),
    ]
    assert [call[0].keep_s for call in pages.calls] == [60 + 100 + 3600] * 3 + [100]
    assert pages.read(it, stream.result) == "né #"
    assert streams.flush()
    assert not streams._open


def test_while_redis_is_away_pieces_grow_and_nothing_is_lost(
    streams: AnswerStreams, pages: Pages
) -> None:
    """The engine's side never fails; the end waits for Redis too."""
    it = job()
    pages.error = RedisUnreachable("away")
    with streams.open(it) as stream:
        assert stream is not None
        on_token = stream.begin((), decode)
        for id_ in b"some words":
            on_token(id_)
            assert streams.flush() is False
        stream.result = result(it, "some words")
    assert streams.flush() is False
    pages.error = None
    assert streams.flush()
    assert [(e.kind, e.text) for e in pages.entries(it)] == [("text", "some words"), ("end", "")]


def test_ends_that_cannot_be_written_are_kept_up_to_a_number(
    streams: AnswerStreams, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more than that the oldest are dropped: the result has it all."""
    monkeypatch.setattr(streams_module, "MAX_ENDED", 3)
    pages.error = RedisUnreachable("away")
    jobs = [job(f"j{n}") for n in range(10)]
    for it in jobs:
        with streams.open(it) as stream:
            assert stream is not None
            stream.begin((), decode)(65)
            stream.result = result(it, "A")
        streams.flush()
    pages.error = None
    streams.flush()
    assert [bool(pages.entries(it)) for it in jobs] == [False] * 7 + [True] * 3
    assert pages.read(jobs[0], result(jobs[0], "A")) == "A"


def test_another_attempt_says_that_it_begins_anew(streams: AnswerStreams, pages: Pages) -> None:
    """Before its first text, with its number."""
    it = job(fence=2)
    with streams.open(it) as stream:
        assert stream is not None
        on_token = stream.begin((), decode)
        streams.flush()
        on_token(65)
        stream.result = result(it, "A")
    streams.flush()
    assert [(e.kind, e.attempt) for e in pages.entries(it)] == [
        ("restart", 2),
        ("text", 2),
        ("end", 2),
    ]


def test_an_attempt_without_a_result_has_no_end(streams: AnswerStreams, pages: Pages) -> None:
    """It was given back: the next one goes on."""
    it = job()
    with streams.open(it) as stream:
        assert stream is not None
        stream.begin((), decode)(65)
        streams.flush()
    streams.flush()
    assert [e.kind for e in pages.entries(it)] == ["text"]
    assert not streams._open


def test_a_second_text_of_an_attempt_voids_the_first(streams: AnswerStreams, pages: Pages) -> None:
    """As when the cached way failed and the plain one answers."""
    it = job()
    with streams.open(it) as stream:
        assert stream is not None
        stream.begin((), decode)(65)
        streams.flush()
        on_token = stream.begin((), decode)
        on_token(66)
        streams.flush()
        stream.result = result(it, "B")
    streams.flush()
    assert [(e.kind, e.text) for e in pages.entries(it)] == [
        ("text", "A"),
        ("restart", ""),
        ("text", "B"),
        ("end", ""),
    ]


@pytest.mark.parametrize("answer", ["", "other"])
def test_a_result_with_another_text_wins(streams: AnswerStreams, pages: Pages, answer: str) -> None:
    """As when a job failed in the midst of its answer, or the result was too large."""
    it = job()
    end = replace(result(it, answer), status=JobState.FAILED)
    with streams.open(it) as stream:
        assert stream is not None
        stream.begin((), decode)(65)
        streams.flush()
        stream.result = end
    streams.flush()
    assert pages.entries(it)[1].kind == "restart"
    assert pages.read(it, end) == answer


def test_the_thread_writes_what_is_left_before_it_ends(
    streams: AnswerStreams, pages: Pages
) -> None:
    """And sleeps while no job asks for it."""
    it = job()
    streams.start()
    with streams.open(it) as stream:
        assert stream is not None
        stream.begin((), decode)(65)
        stream.result = result(it, "A")
    streams.stop()
    assert pages.read(it, stream.result) == "A"
    assert pages.entries(it)[-1].kind == "end"


def test_a_crash_of_the_decoder_stops_no_other_stream(streams: AnswerStreams, pages: Pages) -> None:
    """That one is given up, and the result says all."""

    def broken(_: Any) -> str:
        raise RuntimeError("broken")

    bad, good = job("bad"), job("good")
    with streams.open(bad) as first, streams.open(good) as second:
        assert first is not None
        assert second is not None
        first.begin((), broken)(65)
        second.begin((), decode)(65)
        streams.flush()
        second.result = result(good, "A")
    streams.flush()
    assert pages.entries(bad) == []
    assert pages.read(good, second.result) == "A"


def test_a_refused_stream_is_dropped_and_stops_no_other(
    streams: AnswerStreams, pages: Pages
) -> None:
    """Its pieces are offered once; the others are written at their pace, and it is logged once."""
    bad, good = job("bad"), job("good")
    pages.refused[bad.id] = RedisRefused("wrong kind of value")
    with streams.open(bad) as first, streams.open(good) as second, capture_logs() as logs:
        assert first is not None
        assert second is not None
        tokens = [first.begin((), decode), second.begin((), decode)]
        for id_ in b"ABC":
            for on_token in tokens:
                on_token(id_)
            assert streams.flush()
        first.result, second.result = result(bad, "ABC"), result(good, "ABC")
    assert streams.flush()
    assert [entry.text for entry in pages.entries(bad)] == ["A"]
    assert [entry.text for entry in pages.entries(good)] == ["A", "B", "C", ""]
    assert [log["job_id"] for log in logs if log["event"] == "answer_stream_refused"] == [bad.id]
    assert not streams._open


@pytest.mark.parametrize("error", [RedisFull("no memory"), RedisUnreachable("loading")], ids=repr)
def test_what_may_pass_is_waited_for(
    streams: AnswerStreams, pages: Pages, error: PrefillqError
) -> None:
    """Also when Redis says so of one piece."""
    it = job()
    pages.refused[it.id] = error
    with streams.open(it) as stream:
        assert stream is not None
        stream.begin((), decode)(65)
        assert not streams.flush()
        pages.calls, pages.refused = [], {}
        stream.result = result(it, "A")
    assert streams.flush()
    assert [(e.kind, e.text) for e in pages.entries(it)] == [("text", "A"), ("end", "")]


def test_a_piece_that_cannot_be_sent_stops_no_other(streams: AnswerStreams, pages: Pages) -> None:
    """The call fails as a whole: each is tried alone, and the one that fails then is dropped."""
    bad, good = job("bad"), job("good")
    pages.breaks_on = bad.id
    with streams.open(bad) as first, streams.open(good) as second:
        assert first is not None
        assert second is not None
        first.begin((), decode)(65)
        second.begin((), decode)(65)
        assert streams.flush()
        second.result = result(good, "A")
    assert streams.flush()
    assert [(e.kind, e.text) for e in pages.entries(good)] == [("text", "A"), ("end", "")]
    assert not streams._open


def test_the_thread_outlives_what_nobody_thought_of(
    streams: AnswerStreams, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives up what is open then, and writes what is opened later."""
    monkeypatch.setattr(streams_module, "RETRY_S", 0.0)
    crash = Mock(side_effect=RuntimeError("broken"))
    lost, it = job("lost"), job("later")
    with monkeypatch.context() as patch:
        patch.setattr(streams, "_note", crash)
        streams.start()
        with streams.open(lost) as stream:
            assert stream is not None
            stream.begin((), decode)(65)
            stream.result = result(lost, "A")
        until(lambda: crash.called and not streams._open)
    with streams.open(it) as stream:
        assert stream is not None
        stream.begin((), decode)(65)
        stream.result = result(it, "A")
    streams.stop()
    assert pages.entries(it)[-1].kind == "end"


@pytest.mark.parametrize(
    ("deadline_at", "life_s"),
    [(9e60, MAX_DEADLINE_S), (-9e60, 0.0), (None, 0.0)],
    ids=["far", "past", "none"],
)
def test_what_redis_is_asked_to_keep_has_a_bound(
    streams: AnswerStreams, pages: Pages, deadline_at: float | None, life_s: float
) -> None:
    """A producer can write any deadline into its record."""
    with streams.open(replace(job(), deadline_at=deadline_at)) as stream:
        assert stream is not None
        stream.begin((), decode)(65)
        streams.flush()
    assert pages.calls[0][0].keep_s == life_s + 100 + COMMIT_GRACE_S
