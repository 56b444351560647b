"""A batch: lines are checked first, jobs in flight are bounded, and output can be resumed."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from contract.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    OverLimit,
    PrefillqError,
    QueueFull,
    RedisUnreachable,
    SpecInvalid,
    TemplateMoved,
    TimedOut,
)
from contract.types import JobState, Result, Usage, VersionRef
from producer.batch.flight import run_batch
from producer.batch.formats import INVALID
from producer.batch.lines import BadLine, BatchLine, batch_name, read_line, read_lines
from producer.batch.results import Output
from producer.batch.seen import Indexes

REF = VersionRef(tenant="acme", template="triage", version=1, digest="d" * 64)


def _check(_template: str, variables: Mapping[str, Any], _key: str | None) -> None:
    if "ticket" not in variables:
        raise InvalidInput("$.ticket is missing", remedy="Give it.")


def _lines(count: int) -> list[BatchLine | BadLine]:
    text = b"".join(b'{"variables": {"ticket": "t%d"}}\n' % n for n in range(count))
    return list(read_lines(io.BytesIO(text), template="acme/triage", check=_check))


@dataclass(slots=True)
class _Handle:
    id: str

    def outcome(self, timeout: float | None = None) -> Result:  # noqa: ARG002
        status = JobState.FAILED if self.id == "job-13" else JobState.SUCCEEDED
        usage = Usage(prompt_tokens=10, completion_tokens=2, cached_tokens=7)
        return Result(job_id=self.id, ref=REF, status=status, usage=usage)


@dataclass(slots=True)
class _MemorySubmitter:
    """Jobs end last in, first out: never in the order of the file."""

    jobs: dict[str, str] = field(default_factory=dict)  # idempotency key -> job id
    queue_limit: int | None = None
    in_flight: set[str] = field(default_factory=set)
    most: int = 0
    waits: int = 0
    interrupt_after: int | None = None
    refuse_after: int | None = None  # jobs, whereupon a rate limit refuses all others
    retry_after_s: float = 30.0
    refused: int = 0
    never_end: bool = False
    timeouts: list[float | None] = field(default_factory=list)

    def submit(self, line: BatchLine, idempotency_key: str) -> _Handle:  # noqa: ARG002
        if self.refuse_after is not None and len(self.jobs) >= self.refuse_after:
            self.refused += 1
            assert self.refused < 1000, "it is tried for ever"
            raise OverLimit("over the rate", retry_after_s=self.retry_after_s)
        if self.queue_limit is not None and len(self.in_flight) >= self.queue_limit:
            raise QueueFull("the queue is full")
        job_id = self.jobs.setdefault(idempotency_key, f"job-{len(self.jobs)}")
        self.in_flight.add(job_id)
        self.most = max(self.most, len(self.in_flight))
        return _Handle(job_id)

    def ended(self, handles: Collection[_Handle], timeout: float | None) -> Iterator[_Handle]:
        self.waits += 1
        self.timeouts.append(timeout)
        if self.never_end:
            assert timeout is not None
            raise TimedOut("still waiting")
        for handle in reversed(list(handles)):
            if self.interrupt_after is not None:
                self.interrupt_after -= 1
                if self.interrupt_after < 0:
                    raise KeyboardInterrupt
            self.in_flight.remove(handle.id)
            yield handle


def _written(file: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def test_every_line_gets_one_result() -> None:
    """Each input's index occurs once, whatever the order in which jobs end."""
    file = io.BytesIO()
    run_batch(_lines(20), Output(file, "b"), _MemorySubmitter(), window=4)
    assert sorted(line["index"] for line in _written(file)) == list(range(20))
    assert all(line["job_id"] == f"job-{line['index']}" for line in _written(file))


@pytest.mark.parametrize("window", [1, 2, 5, 100])
def test_jobs_in_flight_stay_within_the_window(window: int) -> None:
    """Never more than `window`, and the window is used in full."""
    jobs = _MemorySubmitter()
    run_batch(_lines(23), Output(io.BytesIO(), "b"), jobs, window=window)
    assert jobs.most == min(window, 23)


def test_waiting_is_renewed_per_half_window_only() -> None:
    """A subscription for each of 1,000 jobs would cost more than the jobs."""
    jobs = _MemorySubmitter()
    run_batch(_lines(1000), Output(io.BytesIO(), "b"), jobs, window=100)
    assert jobs.waits <= 1000 / 50 + 1


def test_full_queue_waits_for_room() -> None:
    """A template's max_queue under the window slows a batch down, and does not end it."""
    file, jobs = io.BytesIO(), _MemorySubmitter(queue_limit=3)
    run_batch(_lines(10), Output(file, "b"), jobs, window=8)
    assert len(_written(file)) == 10
    assert jobs.most == 3


def test_a_queue_filled_by_others_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing of its own to wait for, a batch says so and tries now and then; its end is told
    what it waited for."""
    monkeypatch.setattr("producer.batch.flight._FULL_PAUSE_S", 0.05)
    jobs, told = _MemorySubmitter(queue_limit=0), list[str]()

    def on_wait(error: PrefillqError) -> None:
        told.append(error.problem)
        if len(told) == 3:
            jobs.queue_limit = 5

    file = io.BytesIO()
    run_batch(_lines(4), Output(file, "b"), jobs, window=8, on_wait=on_wait)
    assert told == ["the queue is full"] * 3
    assert len(_written(file)) == 4
    jobs.queue_limit = 0
    with pytest.raises(TimedOut, match="enqueued in time; given: the queue is full"):
        run_batch(_lines(1), Output(io.BytesIO(), "c"), jobs, window=8, timeout=0.2)


def test_a_template_that_is_always_moving_is_an_error() -> None:
    """Of conflicts only a full queue passes by itself."""

    class Moving(_MemorySubmitter):
        def submit(self, line: BatchLine, idempotency_key: str) -> _Handle:  # noqa: ARG002
            raise TemplateMoved("it was changed")

    with pytest.raises(TemplateMoved):
        run_batch(_lines(1), Output(io.BytesIO(), "b"), Moving(), window=8)


def test_a_rate_limit_is_waited_for_no_longer_than_the_batch() -> None:
    """However long it asks to wait; what has ended meanwhile is written."""
    file, jobs = io.BytesIO(), _MemorySubmitter(refuse_after=3)
    started = time.monotonic()
    with pytest.raises(TimedOut, match="enqueued in time"):
        run_batch(_lines(5), Output(file, "b"), jobs, window=100, timeout=0.2)
    assert 0.15 < time.monotonic() - started < 3
    assert sorted(line["index"] for line in _written(file)) == [0, 1, 2]
    jobs.refuse_after = None
    run_batch(_lines(5), Output(file, "b"), jobs, window=100, timeout=5)
    assert sorted(line["index"] for line in _written(file)) == [0, 1, 2, 3, 4]
    assert len(jobs.jobs) == 5


def test_nothing_ends_while_a_rate_limit_is_waited_for() -> None:
    """Then there is nothing to write, and the time is up all the same."""
    jobs = _MemorySubmitter(refuse_after=3, never_end=True)
    file = io.BytesIO()
    with pytest.raises(TimedOut, match="enqueued in time"):
        run_batch(_lines(5), Output(file, "b"), jobs, window=100, timeout=0.2)
    assert _written(file) == []
    assert all(timeout is not None and timeout <= 0.2 for timeout in jobs.timeouts)


def test_short_pauses_do_not_look_each_time() -> None:
    """A limit of hundreds a second has as many pauses, and a look reads all jobs in flight."""
    jobs = _MemorySubmitter(refuse_after=3, retry_after_s=0.002, never_end=True)
    with pytest.raises(TimedOut):
        run_batch(_lines(5), Output(io.BytesIO(), "b"), jobs, window=100, timeout=0.2)
    assert jobs.refused > 5
    assert jobs.waits <= 2


def test_interrupted_batch_goes_on_where_it_stopped() -> None:
    """The second run submits what is missing, under the keys of the first: no job twice."""
    file, jobs = io.BytesIO(), _MemorySubmitter(interrupt_after=7)
    with pytest.raises(KeyboardInterrupt):
        run_batch(_lines(20), Output(file, "b"), jobs, window=4)
    assert len(_written(file)) == 7
    jobs.interrupt_after = None
    jobs.in_flight.clear()
    file.seek(0)
    done: list[None] = []
    run_batch(_lines(20), Output(file, "b"), jobs, window=4, on_done=lambda: done.append(None))
    assert sorted(line["index"] for line in _written(file)) == list(range(20))
    assert len(jobs.jobs) == 20
    assert len(done) == 13


def test_torn_last_line_is_dropped_and_done_again() -> None:
    """A process killed while it wrote leaves half a line; it must not spoil the file."""
    whole = io.BytesIO()
    run_batch(_lines(3), Output(whole, "b"), _MemorySubmitter(), window=1)
    file = io.BytesIO(whole.getvalue()[:-9])
    output = Output(file, "b")
    assert [index for index in range(3) if index in output.indexes] == [0, 1]
    run_batch(_lines(3), output, _MemorySubmitter(), window=1)
    assert sorted(line["index"] for line in _written(file)) == [0, 1, 2]


@pytest.mark.parametrize(
    "content",
    [
        b'{"index": 0, "batch": "another", "status": "succeeded"}\n',
        b'{"variables": {}}\n',
        b"my notes\n",
        b"my notes",
        b"[1]\n",
        b'{"index": 0, "batch": "b"}\n',
        b'{"index": 0, "batch": "b", "status"\n{"index": 1, "batch": "b", "status": "failed"}\n',
    ],
)
def test_file_of_another_kind_is_left_alone(content: bytes) -> None:
    """Conflict, and not one byte changed."""
    file = io.BytesIO(content)
    with pytest.raises(Conflict, match="output file"):
        Output(file, "b")
    assert file.getvalue() == content


def test_summary_covers_earlier_runs() -> None:
    """Counts and tokens are those of the whole file."""
    file = io.BytesIO()
    run_batch(_lines(14), Output(file, "b"), _MemorySubmitter(), window=1)
    file.seek(0)
    summary = Output(file, "b").summary
    assert summary.statuses == {"succeeded": 13, "failed": 1}
    assert (summary.prompt_tokens, summary.cached_tokens) == (140, 98)
    assert summary.completion_tokens == 28
    assert not summary.succeeded


def test_bad_lines_become_error_lines() -> None:
    """With its number, its id and the remedy; the others run."""
    text = b'{"id": 7, "variables": {}}\n\n{"id": "a", "variables": {"ticket": "x"}}\n'
    file = io.BytesIO()
    lines = list(read_lines(io.BytesIO(text), template="acme/triage", check=_check))
    run_batch(lines, Output(file, "b"), _MemorySubmitter(), window=1)
    first, second = _written(file)
    assert (first["index"], first["id"], first["status"]) == (0, 7, INVALID)
    assert first["error"]["remedy"] == "Give it."
    assert (second["index"], second["id"], second["status"]) == (2, "a", "succeeded")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"{", "not a line of JSON"),
        (b"\xff", "not a line of JSON"),
        (b'{"variables": {"ticket": NaN}}', "NaN is not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"ticket": "x"}', "unknown fields"),
        (b'{"template": "acme/triage"}', "variables is no object"),
        (b'{"variables": []}', "variables is no object"),
        (b'{"variables": {}, "template": 3}', "template is missing"),
        (b'{"variables": {}, "template": "acme"}', "not a template address"),
        (b'{"variables": {}, "id": 1.5}', "id is neither"),
        (b'{"variables": {}}', "ticket is missing"),
        (b'{"variables": {"ticket": "x"}, "sticky_key": ""}', "sticky_key cannot be used"),
        (b'{"variables": {"ticket": "x"}, "sticky_key": 7}', "sticky_key cannot be used"),
        (b'{"variables": {"ticket": "x"}, "sticky_key": "\\ud800"}', "sticky_key cannot be used"),
    ],
)
def test_bad_line_says_what_is_wrong(text: bytes, problem: str) -> None:
    """The message names the field; the line's number counts from 1."""
    line = read_line(text, 4, template="acme/triage", check=_check)
    assert isinstance(line, BadLine)
    assert problem in str(line)
    assert str(line).startswith("line 5: ")
    assert line.to_dict()["line"] == 5


def test_a_line_may_have_a_sticky_key() -> None:
    """It goes to the check and to the job; null is none."""
    asked = []

    def check(_template: str, _variables: Mapping[str, Any], key: str | None) -> None:
        asked.append(key)

    for text, key in ((b'"c-7"', "c-7"), (b"null", None)):
        line = read_line(
            b'{"variables": {}, "sticky_key": %s}' % text, 0, template="acme/triage", check=check
        )
        assert isinstance(line, BatchLine)
        assert line.sticky_key == key
    assert asked == ["c-7", None]


def test_line_without_any_template_is_bad() -> None:
    """Neither the line nor the command names one."""
    line = read_line(b'{"variables": {}}', 0, template=None, check=_check)
    assert "template is missing" in str(line)


def test_redis_away_is_no_bad_line() -> None:
    """Trouble with Redis ends the check; it says nothing about the line."""

    def check(_template: str, _variables: Mapping[str, Any], _key: str | None) -> None:
        raise RedisUnreachable("Redis cannot be reached")

    with pytest.raises(RedisUnreachable):
        read_line(b'{"variables": {}}', 0, template="acme/triage", check=check)


def test_batch_is_named_by_input_and_options() -> None:
    """Equal input and options have one name; any change gives another."""

    def name(content: bytes = b"x\n", **changed: Any) -> str:
        options: dict[str, Any] = {"template": "a/b", "use_cache": True, "run": "", **changed}
        return batch_name(io.BytesIO(content), **options)

    others = [name(b"y\n"), name(template=None), name(use_cache=False), name(run="2")]
    assert name() == name()
    assert len({name(), *others}) == 5


@pytest.mark.parametrize("error", [InvalidInput, NotFound, SpecInvalid])
@pytest.mark.parametrize("skip", [True, False])
def test_a_line_that_is_taken_no_longer(error: type[PrefillqError], *, skip: bool) -> None:
    """The template was moved since the check: as bad lines are, and never another line's error."""

    class Moved(_MemorySubmitter):
        def submit(self, line: BatchLine, idempotency_key: str) -> _Handle:
            if line.index == 3:
                raise error("it was moved")
            return super().submit(line, idempotency_key)

    file, jobs = io.BytesIO(), Moved()
    output = Output(file, "b")
    if not skip:
        with pytest.raises(error):
            run_batch(_lines(6), output, jobs, window=2)
        return
    run_batch(_lines(6), output, jobs, window=2, skip_invalid=True)
    written = {line["index"]: line for line in _written(file)}
    assert output.summary.statuses == {"succeeded": 5, INVALID: 1}
    assert (written[3]["status"], written[3]["error"]["problem"]) == (INVALID, "it was moved")


def test_lines_that_are_done_are_not_read_again() -> None:
    """Nor checked: an earlier run did, and a file may have millions."""
    checked = []

    def check(_template: str, variables: Mapping[str, Any], _key: str | None) -> None:
        checked.append(variables["ticket"])

    done = Indexes()
    done.add(0)
    done.add(2)
    text = [b'{"variables": {"ticket": "t%d"}}\n' % n for n in range(4)]
    lines = read_lines(text, template="acme/triage", check=check, but=done)
    assert [line.index for line in lines] == [1, 3]
    assert checked == ["t1", "t3"]
