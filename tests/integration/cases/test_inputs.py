"""What a producer, or somebody beside it, may give: refused, answered or ended as promised."""

from __future__ import annotations

import datetime as dt
import math
import time
from pathlib import Path
from typing import Any

import pytest

from contract import keys
from contract.celery_app import make_celery, make_queue
from contract.errors import Conflict, InvalidInput, JobFailed, NotFound
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import JobState
from contract.worker_reports import list_workers
from producer.client import Producer
from tests.support.command_line import CommandLine
from tests.support.fakes import StartFake
from tests.support.waiting import running, until

ANYTHING = {
    "schema": {"type": "object", "properties": {"note": {}}, "required": ["note"]},
}


@pytest.mark.parametrize(
    "value",
    [{1: "x"}, dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 2**70, b"x", math.nan],
    ids=["int key", "datetime", "2**70", "bytes", "NaN"],
)
def test_q10_what_the_wire_cannot_carry_is_refused_in_the_producer(
    producer: Producer, client: Client, publish_template: Any, value: object
) -> None:
    """Q10, int dict key, datetime, 2**70, bytes, NaN: refused in the producer, naming the field."""
    publish_template(input=ANYTHING)
    before = sorted(client.keys("*"))
    with pytest.raises(InvalidInput, match="note"):
        producer.submit("acme/notes", {"note": value})
    assert sorted(client.keys("*")) == before


class _Payload:
    """Unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return (open, (str(self._path), "w"))


def test_q11_messages_pushed_by_hand_are_refused_counted_and_logged(
    settings: Settings,
    client: Client,
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
    command_line: CommandLine,
    tmp_path: Path,
) -> None:
    """Q11, a JSON or pickle message pushed by hand: refused, counted, logged; nothing executed."""
    version = publish_template()
    worker = start_fake()
    proof = tmp_path / "executed"
    marker = "marker-of-a-secret"
    app = make_celery(settings)
    queue = make_queue(keys.queue("acme", "notes", version.model_digest))
    app.send_task("prefillq.run", args=(marker,), queue=queue, serializer="json")
    app.send_task("prefillq.run", args=(_Payload(proof),), queue=queue, serializer="pickle")
    app.send_task("os.system", args=(f"touch {proof} {marker}",), queue=queue)
    for args in ((5,), (), ("x", marker), (["x"],), ("no job's id " + marker,)):
        app.send_task("prefillq.run", args=args, queue=queue)
    app.close()
    name = keys.messages(queue.name)
    for entry in (b"[]", b"null", b"garbage", b'{"body": 5}', b"\xff\x00"):
        client.lpush(name, entry)
    job = producer.submit("acme/notes", {"note": "hello"})
    assert job.result(timeout=30).status is JobState.SUCCEEDED
    expected = {"no_doorbell": 11, "unreadable": 2}  # two are no JSON

    def counted() -> bool:
        [description] = list_workers(client, settings)
        return bool(description["refused_messages"] == expected)

    until(counted, 15, what="the worker's report counts them")
    assert "messages refused: 13" in command_line.run("worker", "list").out
    assert client.llen(name) == client.hlen(f"{keys.BROKER_PREFIX}unacked") == 0
    assert worker.stop() == 0
    log = worker.log_path.read_text("utf-8")
    assert "Connection to broker lost" not in log
    assert len(worker.lines("message_refused")) == 13
    assert len(worker.lines("job_finished")) == 1
    assert marker not in log
    assert not proof.exists()


@pytest.mark.parametrize("address", ["acme/notez", "acne/notes", "acme/notes@7", "acme/notes@old"])
def test_q12_what_is_not_there_is_an_error_at_submit(
    client: Client, publish_template: Any, command_line: CommandLine, address: str
) -> None:
    """Q12, unknown template, version or label, and so no queue: error at submit, exit code 4."""
    publish_template()
    before = sorted(client.keys("*"))
    assert command_line.run("submit", address, "--vars", '{"note": "x"}').code == 4
    assert sorted(client.keys("*")) == before


def test_q12_a_retired_version_is_an_error_at_submit(
    producer: Producer, start_fake: StartFake, publish_template: Any, command_line: CommandLine
) -> None:
    """Q12, retired version: error at submit, exit code 4; the jobs it has are finished."""
    publish_template()
    publish_template(rules="Other rules, for a second version of it.")
    run = command_line.run
    assert run("templates", "retire", "acme/notes@1").code == 7, "production points to it"
    pinned = producer.submit("acme/notes@1", {"note": "before"})
    assert run("templates", "label", "acme/notes@2", "production").code == 0
    assert run("templates", "retire", "acme/notes@1").code == 0
    ran = run("submit", "acme/notes@1", "--vars", '{"note": "x"}')
    assert ran.code == 4
    assert "retired" in ran.err
    assert run("templates", "label", "acme/notes@1", "old").code == 4
    start_fake()
    assert pinned.result(timeout=20).ref.version == 1
    assert producer.submit("acme/notes", {"note": "now"}).result(timeout=20).ref.version == 2
    assert run("templates", "retire", "--undo", "acme/notes@1").code == 0
    assert producer.submit("acme/notes@1", {"note": "x"}).result(timeout=20).ref.version == 1
    assert run("templates", "retire", "acme/notes@9").code == 4


def test_q15_cancel_while_queued_while_running_and_after_the_end(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q15, cancelled before start; stopped between steps; conflict."""
    publish_template()
    queued = producer.submit("acme/notes", {"note": "never"})
    assert queued.cancel() is JobState.CANCELLED
    worker = start_fake()
    job = producer.submit("acme/notes", {"note": "work=30"})
    running(job)
    assert job.cancel() is JobState.RUNNING
    with pytest.raises(JobFailed) as caught:
        job.result(timeout=5)
    assert caught.value.result.status is JobState.CANCELLED
    done = producer.submit("acme/notes", {"note": "hello"})
    done.result(timeout=20)
    with pytest.raises(Conflict, match="succeeded"):
        done.cancel()
    assert queued.id not in {line["job_id"] for line in worker.lines("job_finished")}


def test_q16_a_deadline_that_passes_in_the_queue_or_while_decoding(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q16, deadline passes in the queue or mid-decode: `expired`, nothing computed after it."""
    publish_template()
    queued = producer.submit("acme/notes", {"note": "work=1"}, deadline_s=0.3)
    time.sleep(0.4)
    worker = start_fake()
    decoding = producer.submit("acme/notes", {"note": "work=30"}, deadline_s=1.5)
    for job in (queued, decoding):
        with pytest.raises(JobFailed) as caught:
            job.result(timeout=6)
        assert caught.value.result.status is JobState.EXPIRED
    assert caught.value.result.usage.completion_tokens == 0
    until(lambda: worker.lines("job_finished"))
    assert {line["job_id"] for line in worker.lines("job_finished")} == {decoding.id}


def test_q17_an_idempotency_key_used_twice(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q17, the same key with the same and other input: same job id; conflict naming the first."""
    publish_template()
    worker = start_fake()
    first = producer.submit("acme/notes", {"note": "a"}, idempotency_key="k")
    first.result(timeout=20)
    again = producer.submit("acme/notes", {"note": "a"}, idempotency_key="k")
    assert again.id == first.id
    with pytest.raises(Conflict, match=first.id):
        producer.submit("acme/notes", {"note": "b"}, idempotency_key="k")
    until(lambda: worker.lines("job_finished"), what="the line that follows the commit")
    assert len(worker.lines("job_finished")) == 1


def test_q18_a_result_after_its_time_and_an_unknown_id_are_not_found(
    settings: Settings,
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
    command_line: CommandLine,
) -> None:
    """Q18, result read after its expiry; unknown id: `not found`, exit code 4."""
    publish_template()
    kept = "1.5"
    start_fake(settings=settings.model_copy(update={"result_ttl_s": float(kept)}))
    job = producer.submit("acme/notes", {"note": "hello"})
    job.result(timeout=20)
    time.sleep(float(kept) + 0.2)
    with pytest.raises(NotFound):
        job.result(timeout=1)
    for job_id in (job.id, "acme." + "0" * 32):
        assert command_line.run("result", job_id).code == 4


def test_q19_a_megabyte_in_and_a_megabyte_out(
    settings: Settings,
    client: Client,
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
) -> None:
    """Q19, 1 MB variable, 1 MB result: under a stated limit; the message carries only the id."""
    version = publish_template()
    million = "x" * 1_000_000
    job = producer.submit("acme/notes", {"note": million[: 900 * 1024]})
    queue = keys.messages(keys.queue("acme", "notes", version.model_digest))
    assert sum(map(len, client.lrange(queue, 0, -1))) < 2000
    with pytest.raises(InvalidInput, match="PREFILLQ_MAX_VARIABLES_BYTES"):
        producer.submit("acme/notes", {"note": million + million[:100_000]})
    job.cancel()
    start_fake("--answer-chars", "1000000", "--template", "acme/notes")
    small = producer.submit("acme/notes", {"note": "hello"})
    assert small.result(timeout=30).text == million
    publish_template("other")
    tight = settings.model_copy(update={"max_result_bytes": 500_000})
    start_fake("--answer-chars", "1000000", "--template", "acme/other", settings=tight)
    with pytest.raises(JobFailed) as caught:
        producer.submit("acme/other", {"note": "hello"}).result(timeout=30)
    assert caught.value.result.error is not None
    assert caught.value.result.error.code == "result_too_large"
