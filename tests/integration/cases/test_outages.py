"""Redis away, cut off, half-open, slow, full and back: nothing lost, everybody at work again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import keys
from contract.errors import RedisRefused, RedisUnreachable
from contract.model_folder import ModelFolder
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import JobState
from local.redis_server import EmbeddedRedis
from producer.client import Producer
from producer.handle import JobHandle
from templates.registry import Registry
from tests.support.command_line import CommandLine
from tests.support.fakes import StartFake
from tests.support.proxy import Proxy, cut_reply, lose_reply
from tests.support.redis_state import out_of_memory
from tests.support.tcp import SilentServer, closed_port_url
from tests.support.templates import make_spec, publish
from tests.support.waiting import running, until

BOUND_S = 5.0  # for a producer that was not asked to wait


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    """A Redis of this test's own, to be stopped and started."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def settings(settings: Settings, server: EmbeddedRedis) -> Settings:
    return settings.model_copy(update={"redis_url": server.url})


@pytest.fixture
def proxy(settings: Settings) -> Iterator[Proxy]:
    with Proxy(settings.redis_url) as proxy:
        yield proxy


@pytest.fixture
def behind(settings: Settings, proxy: Proxy) -> Settings:
    """Settings of whoever reaches Redis through the proxy."""
    return settings.model_copy(update={"redis_url": proxy.url})


def _submit(producer: Producer, *notes: str, template: str = "acme/notes") -> list[JobHandle]:
    return producer.submit_many(template, [{"note": note} for note in notes])


def _submitted(producer: Producer) -> bool:
    try:
        return bool(_submit(producer, "again"))
    except RedisUnreachable:
        return False


def _all_done(jobs: list[JobHandle], *, timeout: float = 40.0, attempts: int = 1) -> None:
    for job in jobs:
        result = job.result(timeout=timeout)
        assert (result.status, result.attempt) == (JobState.SUCCEEDED, attempts)


def _works_soon(producer: Producer, seconds: float = 5.0) -> None:
    """Nobody sits there idle: a new job is answered at once."""
    started = time.monotonic()
    _all_done(_submit(producer, "soon"))
    assert time.monotonic() - started < seconds


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_q06_redis_restarted_with_jobs_queued_and_running(
    server: EmbeddedRedis,
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
    how: str,
) -> None:
    """Q6, Redis restarted with jobs queued and running (AOF): all finish, each after one attempt.

    It is away for longer than a lease, so those that ran had theirs run out meanwhile.
    """
    publish_template()
    workers = [start_fake("--batch", "2"), start_fake("--batch", "2")]
    at_work = _submit(producer, *(f"work=7 {n}" for n in range(4)))
    for job in at_work:
        running(job)
    queued = _submit(producer, *(f"queued {n}" for n in range(12)))
    if how == "stopped":
        server._end_server(gently=True)
    else:
        server.kill()
    started = time.monotonic()
    with pytest.raises(RedisUnreachable):
        _submit(producer, "meanwhile")
    assert time.monotonic() - started < BOUND_S
    time.sleep(5)
    server.start()
    assert len(list(producer.wait([*at_work, *queued], timeout=40))) == 16
    _all_done([*at_work, *queued])
    for worker in workers:
        worker.check_alive()
    _works_soon(producer)


def test_q06_a_wait_rides_out_a_restart(
    server: EmbeddedRedis, producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q6, hung `.get()` elsewhere: a result that was waited for arrives after the restart."""
    publish_template()
    start_fake()
    [job] = _submit(producer, "work=2")
    running(job)
    found: list[JobHandle] = []
    waiting = producer.wait([job], timeout=40)
    server.restart()
    found.extend(waiting)
    assert found == [job]


def test_q07_redis_down_at_submit(command_line: CommandLine) -> None:
    """Q7, Redis down at submit: error within 5 s, exit code 3."""
    started = time.monotonic()
    ran = command_line.run(
        "submit", "acme/notes", "--vars", '{"note": "x"}', PREFILLQ_REDIS_URL=closed_port_url()
    )
    assert ran.code == 3
    assert time.monotonic() - started < BOUND_S
    assert "Redis cannot be reached" in ran.err


@pytest.mark.parametrize("command", ["EVALSHA", "LPUSH"])
def test_q07_nothing_half_written_when_redis_goes_in_the_middle_of_a_submit(
    client: Client,
    behind: Settings,
    proxy: Proxy,
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
    command: str,
) -> None:
    """Q7, nothing half-written: what may have been left is whole, and is run like any job.

    Redis does the last thing it is asked (the record, or the message), and nobody hears of it.
    """
    publish_template()
    _submit(producer, "warm")
    with Producer(behind) as cut_off:
        _submit(cut_off, "warm")
        done = proxy.on(command, cut_reply, times=9)
        started = time.monotonic()
        with pytest.raises(RedisUnreachable, match="enqueued"):
            _submit(cut_off, "cut")
        assert done.happened
        assert time.monotonic() - started < BOUND_S
    start_fake()
    jobs = [keys_of.decode() for keys_of in client.scan_iter("pq:acme:job:*")]
    for key in jobs:
        handle = producer.handle("acme." + key.rpartition(":")[2])
        assert handle.result(timeout=30).status is JobState.SUCCEEDED
    assert client.zcard(keys.queued("acme")) == client.zcard(keys.running("acme")) == 0


def test_q07_a_producer_that_was_asked_to_wait_enqueues_once(
    client: Client,
    behind: Settings,
    proxy: Proxy,
    publish_template: Any,
    start_fake: StartFake,
    tmp_path: Path,
) -> None:
    """Q7, or wait as asked: with --patience a submit goes on until Redis is back; one job."""
    publish_template()
    start_fake()
    proxy.refuse()
    cli = CommandLine(settings=behind, folder=tmp_path)
    words = ("submit", "acme/notes", "--vars", '{"note": "late"}', "--patience", "30", "--wait")
    process = subprocess.Popen(
        cli.command(*words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cli.environment,
        cwd=Path(__file__).parents[3],
    )
    try:
        time.sleep(3)
        assert process.poll() is None, "it must still be trying"
        proxy.accept()
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out.startswith("answer")) == (0, True), err
    assert len(client.keys("pq:acme:job:*")) == 1


def test_q08_a_half_open_socket_does_not_hang_a_producer(
    behind: Settings, proxy: Proxy, producer: Producer, publish_template: Any
) -> None:
    """Q8, half-open socket: bounded by socket timeouts, in every call; the next one works."""
    publish_template()
    with Producer(behind) as half_open:
        [job] = _submit(half_open, "warm")
        handle = half_open.handle(job.id)
        for act in (lambda: _submit(half_open, "x"), handle.status, handle.cancel):
            handle.status()  # a connection that was cut is made anew
            proxy.freeze()
            started = time.monotonic()
            with pytest.raises(RedisUnreachable):
                act()
            assert time.monotonic() - started < BOUND_S
        # Each old connection costs one error; a producer has some more than it just used.
        until(lambda: _submitted(half_open), 15, what="a submit over new connections")
    with SilentServer() as silent, Producer(behind, redis_url=silent.url) as nobody:
        started = time.monotonic()
        with pytest.raises(RedisUnreachable):
            _submit(nobody, "x")
        assert time.monotonic() - started < BOUND_S


def test_q08_a_worker_with_half_open_sockets_comes_back(
    behind: Settings, proxy: Proxy, producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q8, on the worker's side: a running job is committed, and the next ones are taken.

    Every connection of the worker stands still for good, as after a firewall forgot them.
    """
    publish_template()
    start_fake(settings=behind)
    [job] = _submit(producer, "work=3")
    running(job)
    proxy.freeze()
    queued = _submit(producer, "next", "and next")
    assert job.result(timeout=40).attempt <= 2
    for one in queued:
        assert one.result(timeout=40).status is JobState.SUCCEEDED
    _works_soon(producer)


def _consumed(proxy: Proxy, since: int) -> set[str]:
    """The queues that BRPOP asked for, in the newest request after the first `since`."""
    requests = proxy.requests("BRPOP")[since:]
    if not requests:
        return set()
    names = {word.decode() for word in requests[-1][1:-1]}
    # kombu has a list for each priority; ours all have the first.
    return {name.removeprefix(keys.BROKER_PREFIX) for name in names if "\x06" not in name}


def test_q21_a_worker_comes_back_to_the_exact_set_of_queues(
    server: EmbeddedRedis,
    behind: Settings,
    proxy: Proxy,
    registry: Registry,
    model: ModelFolder,
    start_fake: StartFake,
) -> None:
    """Q21, worker reconnects after a Redis bounce: exact set restored, and kept up after it."""

    def queues(*names: str) -> set[str]:
        return {keys.queue("acme", name, model.model_digest) for name in names}

    for name in ("one", "two"):
        publish(registry, make_spec(name), model)
    publish(registry, make_spec("theirs", tenant="globex"), model)
    start_fake("--template", "acme/*", settings=behind)
    until(lambda: _consumed(proxy, 0) == queues("one", "two"), what="both queues")
    for bounce in (server.restart, proxy.drop):
        seen = len(proxy.requests("BRPOP"))
        bounce()
        until(lambda seen=seen: _consumed(proxy, seen), what="a BRPOP after the bounce")
        time.sleep(2)
        assert _consumed(proxy, seen) == queues("one", "two")
    publish(registry, make_spec("three"), model)
    until(lambda: _consumed(proxy, 0) == queues("one", "two", "three"), what="the new queue")


def test_q21_a_lost_connection_offers_no_running_job_to_others(
    behind: Settings, proxy: Proxy, producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q21: the messages of jobs that run stay with their worker, through several bounces."""
    publish_template()
    pair = [start_fake("--batch", "2", settings=behind) for _ in range(2)]
    jobs = _submit(producer, *(f"work=6 {n}" for n in range(4)))
    for job in jobs:
        running(job)
    for _ in range(3):
        proxy.drop()
        time.sleep(1.5)
    _all_done(jobs)
    assert [line for worker in pair for line in worker.lines("job_refused")] == []
    _works_soon(producer)


def test_q22_a_full_redis_refuses_clearly_and_loses_nothing(
    client: Client,
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
    command_line: CommandLine,
) -> None:
    """Q22, Redis at maxmemory: refused writes surface as a clear error; nothing lost.

    A producer is refused; a result that cannot be written waits in its worker, for longer than
    the lease, and is then committed by the one that made it; a queued job is run afterwards.
    """
    publish_template()
    worker = start_fake()
    [at_work] = _submit(producer, "work=2")
    running(at_work)
    worker.pause()
    [queued] = _submit(producer, "queued")
    with out_of_memory(client):
        worker.resume()
        with pytest.raises(RedisRefused, match="maxmemory"):
            _submit(producer, "refused")
        ran = command_line.run("submit", "acme/notes", "--vars", '{"note": "x"}')
        assert (ran.code, "maxmemory" in ran.err) == (1, True)
        until(lambda: worker.lines("commit_waits"), what="the result waits")
        time.sleep(5)
        worker.check_alive()
        assert at_work.status() is JobState.RUNNING
    _all_done([at_work, queued])
    until(lambda: len(worker.lines("job_finished")) == 2, what="its line follows the commit")
    assert len(client.keys("pq:acme:job:*")) == 2


def test_a_committed_result_whose_reply_was_lost_is_reported_once(
    behind: Settings, proxy: Proxy, producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """The commit was done and its reply swallowed: tried again, it is found to be done."""
    publish_template()
    worker = start_fake(settings=behind)
    lost = proxy.on("EVALSHA", lose_reply, holds=b"\r\nsucceeded\r\n")
    [job] = _submit(producer, "hello")
    assert lost.wait(20)
    _all_done([job])
    until(lambda: worker.lines("job_finished"), what="the worker knows")
    assert [line["job_id"] for line in worker.lines("commit_waits")] == [job.id]
    time.sleep(1)
    assert len(worker.lines("job_finished")) == 1


def test_a_result_that_cannot_be_written_is_never_dropped_silently(
    behind: Settings, proxy: Proxy, producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """A worker cut off for good logs the job it could not commit; another runs it again."""
    publish_template()
    cut_off = start_fake(settings=behind)
    [job] = _submit(producer, "work=1")
    running(job)
    proxy.refuse()
    start_fake()
    assert job.result(timeout=30).attempt == 2
    until(lambda: cut_off.lines("commit_waits"), what="the first worker tries")
    proxy.accept()
    until(lambda: cut_off.lines("commit_refused"), what="its result is refused, and it says so")
    assert [line["job_id"] for line in cut_off.lines("commit_refused")] == [job.id]
    assert job.result(timeout=1).attempt == 2


def test_acknowledgements_that_are_cut_do_not_starve_a_worker(
    behind: Settings, proxy: Proxy, producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """More lost acknowledgements than the worker may hold messages: it goes on taking jobs."""
    publish_template()
    start_fake("--batch", "2", settings=behind)
    cut = proxy.on("ZREM", cut_reply, holds=b"unacked_index", times=6)
    for number in range(8):
        _all_done(_submit(producer, f"job {number}"), timeout=15)
    assert cut.wait(10, times=6)
    _works_soon(producer)


def test_a_slow_redis_costs_time_and_no_lease(
    behind: Settings, proxy: Proxy, producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Every reply takes 0.4 s; sixteen jobs of three leases are run at once, and once each."""
    publish_template()
    worker = start_fake("--batch", "16", settings=behind)
    jobs = _submit(producer, *(f"work=12 {n}" for n in range(16)))
    for job in jobs:
        running(job)
    proxy.delay(0.4)
    _all_done(jobs, timeout=60)
    assert not worker.lines("rung_again")
    proxy.resume()
    _works_soon(producer)


def test_a_trickle_instead_of_replies_is_an_outage_like_any_other(
    behind: Settings, proxy: Proxy, producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """40 bytes a second: the worker's calls time out; when it is over all jobs are done."""
    publish_template()
    worker = start_fake(settings=behind)
    [at_work] = _submit(producer, "work=4")
    running(at_work)
    proxy.slow(40)
    queued = _submit(producer, *(f"queued {n}" for n in range(4)))
    time.sleep(6)
    worker.check_alive()
    proxy.resume()
    proxy.drop()
    for job in [at_work, *queued]:
        assert job.result(timeout=40).status is JobState.SUCCEEDED


def test_a_worker_started_without_redis_says_so_and_ends(
    server: EmbeddedRedis, producer: Producer, publish_template: Any, start_fake: StartFake
) -> None:
    """Exit code 3 and no traceback: who starts workers starts it again, and it finds its job."""
    publish_template()
    [job] = _submit(producer, "early")
    server._end_server(gently=True)
    worker = start_fake(ready=False)
    assert worker.process is not None
    assert worker.process.wait(20) == 3
    text = worker.log_path.read_text("utf-8")
    assert "Redis cannot be reached" in text
    server.start()
    start_fake()
    _all_done([job])
