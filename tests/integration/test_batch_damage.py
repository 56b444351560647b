"""A batch whose jobs' records somebody damaged: each is its own line's error, the others go on."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result as Ran

from contract import keys
from contract.codec import pack
from contract.redis_client import Client, text
from contract.settings import Settings
from producer.batch.flight import run_batch
from producer.batch.formats import OWN, Format
from producer.batch.jobs import Jobs
from producer.batch.lines import BatchLine, read_lines
from producer.batch.openai_lines import OPENAI
from producer.batch.results import Output
from producer.cli import main
from templates.registry import Registry
from tests.support.answering import Answering
from tests.support.published import COMPILED, MODEL, make_spec

BATCH = "0123456789abcdef"
Damage = Callable[[Client, str], object]


def _field(name: str, value: bytes) -> Damage:
    return lambda client, key: client.hset(key, name, value)


def _without(*names: str) -> Damage:
    return lambda client, key: client.hdel(key, *names)


def _another_type(client: Client, key: str) -> None:
    client.delete(key)
    client.lpush(key, "x")


# What a producer of the tenant can do to a record, and the code of the line's error.
WAITING: dict[str, Damage] = {  # while it waits for a worker
    "another type of key": _another_type,
    "no state of ours": _field("state", b"zzz"),
    "no deadline": _without("deadline_at"),
    "a deadline in words": _field("deadline_at", b"soon"),
}
ENDED: dict[str, Damage] = {  # when it has an answer
    "another type of key": _another_type,
    "no state of ours": _field("state", b"\xff" * 100),
    "no input": _without("input"),
    "no version and no digest": _without("version", "digest"),
    "input that is no msgpack": _field("input", b"\xc1"),
    "a result that is no msgpack": _field("result", b"\xc1"),
    "a result that is cut off": _field("result", b"\xdd\xff\xff\xff\xff"),
    "a result of other fields": _field("result", pack({"text": "x"})),
    "a result nested 5,000 deep": _field("result", b"\x91" * 5000),
    "a field of a megabyte": _field("worker", b"x" * 2**20),
    "a score that is no number": _field("score:good", b"x"),
    "no end": _without("finished_at"),
}


@pytest.fixture
def published(registry: Registry) -> Registry:
    registry.publish(make_spec("acme", "triage"), COMPILED, MODEL)
    return registry


@contextmanager
def _jobs(settings: Settings) -> Iterator[Jobs]:
    with Jobs(settings, use_cache=True, patience_s=0.0) as jobs:
        yield jobs


def _lines(count: int) -> list[BatchLine]:
    text_ = b"".join(b'{"variables": {"ticket": "t%d"}}\n' % n for n in range(count))
    lines = read_lines(io.BytesIO(text_), template="acme/triage", check=lambda *_: None)
    return [line for line in lines if isinstance(line, BatchLine)]


def _written(file: io.BytesIO) -> dict[int, dict[str, Any]]:
    return {line["index"]: line for line in map(json.loads, file.getvalue().splitlines())}


def _job_of(client: Client, index: int) -> str:
    found = client.get(keys.idempotency("acme", f"batch:{BATCH}:{index}"))
    assert isinstance(found, bytes)
    return text(found)


def _submitted(client: Client) -> int:
    return sum(1 for _ in client.scan_iter(keys.job("acme.*")))


class _Damaging(Jobs):
    """Damages the record of line 1 as soon as it is written, or once its job has ended."""

    def __init__(self, settings: Settings, client: Client, damage: Damage, *, ended: bool) -> None:
        super().__init__(settings, use_cache=True, patience_s=0.0)
        self._client, self._damage, self._ended = client, damage, ended

    def submit(self, line: BatchLine, idempotency_key: str) -> Any:
        handle = super().submit(line, idempotency_key)
        if line.index == 1:
            if self._ended:
                handle.outcome(30)
            self._damage(self._client, keys.job(handle.id))
        return handle


@pytest.mark.parametrize("format_", [OWN, OPENAI], ids=["own", "openai"])
@pytest.mark.parametrize(
    ("damage", "ended"),
    [
        *(pytest.param(how, False, id=f"waiting, {name}") for name, how in WAITING.items()),
        *(pytest.param(how, True, id=f"ended, {name}") for name, how in ENDED.items()),
    ],
)
def test_a_damaged_record_is_its_own_lines_error(
    published: Registry,
    client: Client,
    settings: Settings,
    damage: Damage,
    ended: bool,
    format_: Format,
) -> None:
    """The others are answered, and the same again finds nothing left to do."""
    file = io.BytesIO()
    with (
        Answering(settings),
        _Damaging(settings, client, damage, ended=ended) as jobs,
    ):
        output = Output(file, BATCH, format_)
        assert run_batch(_lines(4), output, jobs, window=2, timeout=30) == 0
    assert output.summary.statuses == {"succeeded": 3, "failed": 1}
    [bad] = [line for line in map(json.loads, file.getvalue().splitlines()) if line.get("error")]
    assert bad["error"]["code"] == "record_damaged"
    assert _job_of(client, 1) in bad["error"]["message"]
    before, jobs_before = file.getvalue(), _submitted(client)
    with _jobs(settings) as again:
        file.seek(0)
        run_batch(_lines(4), Output(file, BATCH, format_), again, window=2, timeout=5)
    assert (file.getvalue(), _submitted(client)) == (before, jobs_before)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (_another_type, "record_damaged"),
        (_field("state", b"zzz"), "record_damaged"),
        (_field("input_digest", b"x"), "conflict"),
        (_without("input_digest"), "conflict"),
        (_field("result", b"\xc1"), "record_damaged"),
        (_without("digest"), "record_damaged"),
    ],
    ids=["type", "state", "other digest", "no digest", "result", "version"],
)
def test_a_record_damaged_between_two_runs_is_not_enqueued_again(
    published: Registry, client: Client, settings: Settings, damage: Damage, code: str
) -> None:
    """The killed run had written nothing of it: its line's error says so, whatever is damaged."""
    with _jobs(settings) as jobs, Answering(settings):
        for line in _lines(3):
            jobs.submit(line, f"batch:{BATCH}:{line.index}").outcome(30)
    lost, count = _job_of(client, 1), _submitted(client)
    damage(client, keys.job(lost))
    file = io.BytesIO()
    with _jobs(settings) as jobs:
        run_batch(_lines(3), Output(file, BATCH), jobs, window=8, timeout=10)
    written = _written(file)
    assert [written[n]["status"] for n in range(3)] == ["succeeded", "failed", "succeeded"]
    assert written[1]["error"]["code"] == code
    assert written[1]["usage"]["total_tokens"] == 0
    assert (_job_of(client, 1), _submitted(client)) == (lost, count)


def test_a_key_of_the_whole_tenant_stops_the_batch(
    published: Registry, client: Client, settings: Settings
) -> None:
    """Were it each line's error, all lines would be lost to what an operator can mend."""
    client.set(keys.queued("acme"), "x")
    file = io.BytesIO()
    with _jobs(settings) as jobs, pytest.raises(Exception, match="Redis refused"):
        run_batch(_lines(3), Output(file, BATCH), jobs, window=8, timeout=10)
    assert file.getvalue() == b""
    client.delete(keys.queued("acme"))
    with _jobs(settings) as jobs, Answering(settings):
        file.seek(0)
        run_batch(_lines(3), Output(file, BATCH), jobs, window=8, timeout=30)
    assert len(_written(file)) == 3


def test_a_record_that_has_gone_is_enqueued_again_once(
    published: Registry, client: Client, settings: Settings
) -> None:
    """It expired, or a failover lost it: nobody else has its answer."""
    gone: list[str] = []

    def lose(client_: Client, key: str) -> None:
        gone.append(key)
        client_.delete(key)

    file = io.BytesIO()
    with Answering(settings), _Damaging(settings, client, lose, ended=True) as jobs:
        count = run_batch(_lines(3), Output(file, BATCH), jobs, window=1, timeout=30)
    written = _written(file)
    assert (count, len(gone)) == (1, 2)  # the second loss is the line's end
    assert [written[n]["status"] for n in range(3)] == ["succeeded", "failed", "succeeded"]
    assert written[1]["error"]["code"] == "not_found"


def test_an_end_that_is_not_true_ends_no_batch(
    published: Registry, client: Client, settings: Settings
) -> None:
    """Anybody of the tenant may publish that a job has ended."""

    class Lying(Jobs):
        lies = 3

        def ended(self, handles: Any, timeout: float | None) -> Iterator[Any]:
            self.lies -= 1
            yield from handles if self.lies >= 0 else super().ended(handles, timeout)

    file = io.BytesIO()
    with (
        Lying(settings, use_cache=True, patience_s=0.0) as jobs,
        Answering(settings),
    ):
        run_batch(_lines(5), Output(file, BATCH), jobs, window=3, timeout=30)
    assert len(file.getvalue().splitlines()) == 5


def _run(settings: Settings, *arguments: str | Path) -> Ran:
    return CliRunner().invoke(
        main, ["--redis-url", settings.redis_url, "batch", *map(str, arguments)]
    )


def test_a_damaged_record_from_the_command_line(
    published: Registry, client: Client, settings: Settings, tmp_path: Path
) -> None:
    """Exit status 8, as with a job that failed; again, and it is told from the file alone."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(f'{{"variables": {{"ticket": "t{n}"}}}}\n' for n in range(3)))
    words = (source, "-o", out, "--template", "acme/triage", "--json")
    assert _run(settings, *words, "--timeout", "0.2").exit_code == 6
    [job_id, *_] = client.zrange(keys.queued("acme"), 0, -1)  # type: ignore[misc]
    client.hset(keys.job(text(job_id)), "state", b"zzz")
    with Answering(settings):
        first = _run(settings, *words)
    again = _run(settings, *words)
    for ran, done in ((first, 0), (again, 3)):
        assert ran.exit_code == 8, ran.output
        summary = json.loads(ran.stdout.splitlines()[-1])
        assert summary["statuses"] == {"succeeded": 2, "failed": 1}
        assert summary["already_done"] == done
