"""Workers killed, paused, stopped, set wrong and raced: each job once, whoever runs it.

The cases are those of the list of inputs that break plain Celery on Redis; docs/reliability.md has
the whole table.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from contract import keys
from contract.celery_app import make_celery, ring
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import JobState
from producer.client import Producer
from tests.support.command_line import CommandLine
from tests.support.fakes import FakeWorker, StartFake
from tests.support.proxy import Proxy, cut_reply
from tests.support.waiting import running, until
from worker.ending import DeviceLost


def _finished(job_id: str, *workers: FakeWorker) -> int:
    """How often these workers said that they finished the job; the line follows the commit."""

    def said() -> int:
        return sum(
            line["job_id"] == job_id for worker in workers for line in worker.lines("job_finished")
        )

    until(said, 10, what=f"{job_id} is finished")
    return said()


def test_q01_a_killed_workers_job_runs_again_within_ten_seconds(
    settings: Settings, producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q1, worker killed -9 while it runs a job: running again within 10 s, one committed result.

    With the default settings; `python -m tests.chaos.takeover` measures the same twenty times.
    """
    usual = settings.model_copy(update={"lease_s": Settings.model_fields["lease_s"].default})
    publish_template()
    pair = [start_fake(settings=usual), start_fake(settings=usual)]
    job = producer.submit("acme/notes", {"note": "work=2"})
    first = running(job)
    [victim] = [worker for worker in pair if str(worker.pid) == first.split("-")[-2]]
    [other] = [worker for worker in pair if worker is not victim]
    victim.kill()
    killed_at = time.monotonic()
    second = running(job, attempt=2)
    assert time.monotonic() - killed_at < 10
    assert second != first
    result = job.result(timeout=20)
    assert (result.attempt, result.worker) == (2, second)
    assert _finished(job.id, victim, other) == 1


def test_q02_a_message_lost_between_pop_and_bookkeeping_is_rung_for_again(
    settings: Settings,
    client: Client,
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
) -> None:
    """Q2, worker killed between the broker's pop and its bookkeeping: the janitor rings again."""
    version = publish_template()
    queue = keys.messages(keys.queue("acme", "notes", version.model_digest))
    with Proxy(settings.redis_url) as proxy:
        behind = settings.model_copy(update={"redis_url": proxy.url})
        worker = start_fake(settings=behind)
        cut = proxy.on("BRPOP", cut_reply, reply_holds=b"prefillq.run")
        time.sleep(1.5)  # the one that waits now, for a second, was sent before there was a rule
        job = producer.submit("acme/notes", {"note": "lost"})
        assert cut.wait(20)
        assert client.llen(queue) == client.hlen(f"{keys.BROKER_PREFIX}unacked") == 0
        assert job.status() is JobState.QUEUED
        result = job.result(timeout=20)
        until(lambda: worker.lines("rung_again"), what="the janitor says that it rang")
    assert (result.status, result.attempt) == (JobState.SUCCEEDED, 1)


def test_q02_a_worker_killed_before_it_claims_loses_no_message(
    client: Client, producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q2, a step later: the message is in the broker's book and in no queue, its worker dead."""
    version = publish_template()
    queue = keys.messages(keys.queue("acme", "notes", version.model_digest))
    job = producer.submit("acme/notes", {"note": "taken"})
    message = client.rpop(queue)  # as a worker takes it that dies at once
    client.hset(f"{keys.BROKER_PREFIX}unacked", "tag", "[{}, '', '']")
    client.zadd(f"{keys.BROKER_PREFIX}unacked_index", {"tag": time.time()})
    assert message
    start_fake()
    assert job.result(timeout=20).attempt == 1


def test_q03_a_job_longer_than_its_lease_and_visibility_runs_once(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q3, job longer than the visibility timeout: runs once, lease renewed."""
    publish_template()
    pair = [start_fake(), start_fake()]
    job = producer.submit("acme/notes", {"note": "work=10"})
    result = job.result(timeout=40)
    assert (result.status, result.attempt) == (JobState.SUCCEEDED, 1)
    assert _finished(job.id, *pair) == 1
    assert not [line for worker in pair for line in worker.lines("rung_again")]


def test_q04_the_same_message_six_times_is_one_run(
    settings: Settings, producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q4, the same message delivered twice, two workers race: one run, the others refused."""
    version = publish_template()
    job = producer.submit("acme/notes", {"note": "work=1"})
    app = make_celery(settings)
    for _ in range(5):
        ring(app, keys.queue("acme", "notes", version.model_digest), job.id)
    app.close()
    pair = [start_fake(ready=False), start_fake(ready=False)]
    assert job.result(timeout=40).attempt == 1

    def refused() -> bool:
        return sum(len(worker.lines("job_refused")) for worker in pair) == 5

    until(refused, what="five refusals")
    assert _finished(job.id, *pair) == 1


def test_q04_a_paused_worker_cannot_commit_what_was_taken_over(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q4, the race at its worst: one commit; the other is refused by its fence.

    The first worker stands still for longer than its lease, in the middle of the job.
    """
    publish_template()
    first = start_fake()
    job = producer.submit("acme/notes", {"note": "work=1.5"})
    holder = running(job)
    first.pause()
    second = start_fake()
    result = job.result(timeout=40)
    assert (result.attempt, result.worker != holder) == (2, True)
    first.resume()
    until(
        lambda: first.lines("commit_refused") or first.lines("job_refused"),
        what="the first worker learns that it lost the job",
    )
    # But for its timings, to which the commit's own time may have been added since.
    again = job.result(timeout=1)
    assert replace(again, timings=result.timings) == result
    assert _finished(job.id, first, second) == _finished(job.id, second) == 1


def test_q05_a_job_that_kills_every_worker_ends_as_dead(
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
    command_line: CommandLine,
) -> None:
    """Q5, a job that kills its worker every time: attempt cap, then `dead`, and listed.

    Those that run beside it, for longer than it lets any worker live, die with none of theirs.
    """
    assert command_line.run("dead", "list", "--json").code == 0
    publish_template()
    others = [producer.submit("acme/notes", {"note": f"work=3 {n}"}) for n in range(3)]
    job = producer.submit("acme/notes", {"note": "poison"})
    for _ in range(12):
        worker = start_fake("--die-on", "poison", "--batch", "8", ready=False)
        until(
            lambda worker=worker: job.status().ended or worker.process.poll() is not None,
            what="the job kills its worker, or has ended",
        )
        if job.status().ended:
            break
    assert job.status().value in ("dead", "failed")
    assert job.id in command_line.run("dead", "list", "--json").out
    assert [other.result(timeout=60).status for other in others] == [JobState.SUCCEEDED] * 3


def test_a_wedged_device_ends_the_worker_and_others_take_its_jobs(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Leases are renewed all the while; the watchdog ends the process, with its own exit code."""
    publish_template()
    wedged = start_fake("--hang-on", "stuck", "--watchdog", "2")
    job = producer.submit("acme/notes", {"note": "stuck"})
    running(job)
    assert wedged.process is not None
    assert wedged.process.wait(20) == DeviceLost.exit_code == 9
    assert wedged.lines("device_wedged")
    start_fake()
    assert job.result(timeout=30).attempt == 2


def test_q09_sigterm_finishes_what_runs(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q9, SIGTERM with jobs running: they finish; what was not begun is left for others."""
    publish_template()
    worker = start_fake("--batch", "2")
    jobs = [producer.submit("acme/notes", {"note": f"work=2 {n}"}) for n in range(2)]
    for job in jobs:
        running(job)
    late = producer.submit("acme/notes", {"note": "late"})
    assert worker.stop() == 0
    assert [job.status() for job in jobs] == [JobState.SUCCEEDED] * 2
    assert late.status() is JobState.QUEUED
    start_fake()
    assert late.result(timeout=20).attempt == 1


def test_q09_what_does_not_fit_in_the_grace_period_goes_back_to_the_queue(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q9, SIGTERM twice: the rest goes back to `queued`, and its attempt does not count."""
    publish_template()
    worker = start_fake()
    job = producer.submit("acme/notes", {"note": "work=30"})
    running(job)
    assert worker.process is not None
    worker.process.terminate()
    time.sleep(0.5)
    worker.process.terminate()
    worker.process.wait(8)
    view = job.view()
    assert (view.state, view.job.attempt) == (JobState.QUEUED, 0)


@pytest.mark.parametrize("offset", ["300", "-300"])
def test_q23_a_clock_five_minutes_off_steals_no_lease(
    producer: Producer, start_fake: StartFake, publish_template: Any, offset: str
) -> None:
    """Q23, clock skew of 5 min between two workers: server time only, nothing is taken over.

    Either one of the two may run the jobs, so that both directions are tried.
    """
    publish_template()
    right, wrong = start_fake("--batch", "2"), start_fake("--batch", "2", "--clock-offset", offset)
    jobs = [producer.submit("acme/notes", {"note": f"work=9 {n}"}) for n in range(4)]
    assert len({running(job) for job in jobs}) == 2
    results = [job.result(timeout=40) for job in jobs]
    assert [result.attempt for result in results] == [1] * 4
    assert [_finished(job.id, right, wrong) for job in jobs] == [1] * 4


def test_q01_a_worker_that_is_paused_and_then_killed(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q1, SIGSTOP and then SIGKILL, as a machine that hangs and is fenced: it goes on elsewhere."""
    publish_template()
    first = start_fake()
    job = producer.submit("acme/notes", {"note": "work=1"})
    running(job)
    first.pause()
    start_fake()
    os.kill(first.pid, signal.SIGKILL)
    assert job.result(timeout=30).attempt == 2
