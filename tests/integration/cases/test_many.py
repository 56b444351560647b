"""Many jobs and many handles: nobody waits for all of them, and nothing grows with them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from contract import keys
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.settings import Settings
from producer.client import Producer
from tests.support.fakes import StartFake
from tests.support.waiting import until

MANY = 10_000


def test_q13_one_job_does_not_wait_for_ten_thousand_of_another_tenant(
    producer: Producer, client: Client, start_fake: StartFake, publish_template: Any
) -> None:
    """Q13, one tenant enqueues 10,000 jobs, another 1: served within one round."""
    publish_template("bulk")
    publish_template("single", tenant="globex")
    worker = start_fake("--batch", "1", "--seconds-per-token", "0.01")
    jobs = producer.submit_many("acme/bulk", ({"note": f"n{n}"} for n in range(MANY)))
    until(lambda: len(worker.lines("job_finished")) > 3, what="the bulk is being served")
    single = producer.submit("globex/single", {"note": "me too"})
    before = len(worker.lines("job_finished"))
    single.result(timeout=20)
    lines = until(
        lambda: (
            single.id in [line["job_id"] for line in worker.lines("job_finished")]
            and worker.lines("job_finished")
        ),
        what="its line",
    )
    place = [line["job_id"] for line in lines].index(single.id)
    # One job may be running, one message may have been taken, and the log may be behind by one.
    assert place - before <= 3
    assert client.llen(keys.messages(jobs[0].view().job.queue)) > MANY / 2


def test_q14_ten_thousand_handles_waited_on_at_once(
    producer: Producer, client: Client, settings: Settings, publish_template: Any
) -> None:
    """Q14, 10,000 handles waited on at once: one connection, bounded memory."""
    import psutil

    publish_template()
    store = RedisJobStore(client, settings)
    handles = producer.submit_many("acme/notes", ({"note": str(n)} for n in range(MANY)))
    connections = _connections(client)
    memory = psutil.Process().memory_info().rss

    def end_all() -> None:
        for start in range(0, MANY, 500):
            pipe = client.pipeline(transaction=False)
            for handle in handles[start : start + 500]:
                store._run("cancel", handle.id, pipe=pipe)
            pipe.execute()

    runner = threading.Thread(target=end_all)
    found, most = set(), 0
    runner.start()
    for count, handle in enumerate(producer.wait(handles, timeout=120)):
        found.add(handle.id)
        if count % 500 == 0:
            most = max(most, _connections(client))
    runner.join()
    assert len(found) == MANY
    assert most - connections <= 3  # notices, looks at the records, and the runner of this test
    assert psutil.Process().memory_info().rss - memory < 50_000_000


def _connections(client: Client) -> int:
    return int(client.info("clients")["connected_clients"])


def test_q20_a_template_published_while_workers_run(
    producer: Producer, start_fake: StartFake, publish_template: Any
) -> None:
    """Q20, new template published while workers run: picked up within 5 s."""
    publish_template("first")
    start_fake()
    producer.submit("acme/first", {"note": "x"}).result(timeout=20)
    publish_template("late")
    started = time.monotonic()
    producer.submit("acme/late", {"note": "x"}).result(timeout=20)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("batch", ["1", "8"])
def test_five_hundred_short_jobs_each_once(
    producer: Producer, start_fake: StartFake, publish_template: Any, batch: str
) -> None:
    """Three workers, five hundred jobs: each is finished by one of them, in one attempt."""
    publish_template()
    workers = [start_fake("--batch", batch) for _ in range(3)]
    jobs = producer.submit_many("acme/notes", ({"note": f"n{n}"} for n in range(500)))
    list(producer.wait(jobs, timeout=120))
    until(lambda: sum(len(worker.lines("job_finished")) for worker in workers) >= len(jobs))
    lines = [line for worker in workers for line in worker.lines("job_finished")]
    assert sorted(line["job_id"] for line in lines) == sorted(job.id for job in jobs)
    assert {line["attempt"] for line in lines} == {1}
