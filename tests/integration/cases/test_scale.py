"""`prefillq scale` beside real workers: its numbers are those that the test knows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from contract.errors import Conflict
from contract.load import MODEL_DIGITS
from contract.settings import Settings
from contract.types import JobState
from producer.client import Producer
from scale.formula import Demand, Goal, advise
from scale.rows import Assumed, Row
from scale.watching import Watcher
from tests.support.fakes import FakeWorker, StartFake
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
GOAL = Goal(wait_s=2.0, maximum=50)
WINDOW_S = 300.0  # holds a whole test, with the starts of its workers on a busy machine
JOBS = 60  # more than workers end before a test has seen them at it


def look(client: Any, settings: Settings, *targets: str) -> list[Row]:
    watcher = Watcher(client, settings, assumed=Assumed())
    return list(watcher.look(targets, GOAL, window_s=WINDOW_S).rows)


def wait(producer: Producer, handles: list[Any], timeout: float = 60.0) -> None:
    assert sum(1 for _ in producer.wait(handles, timeout=timeout)) == len(handles)


def test_a_queue_in_all_its_states(
    client: Any,
    settings: Settings,
    worker_settings: Settings,
    worker_client: Any,
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
) -> None:
    """Before any worker, with two that are busy, and when all is done."""
    version = publish_template("notes")
    publish_template("mail", tenant="globex")
    model = version.model_digest[:MODEL_DIGITS]
    jobs = [producer.submit("acme/notes", {"note": f"work=1.5 {n}"}) for n in range(JOBS)]
    time.sleep(0.3)

    [before] = look(worker_client, worker_settings, "acme")
    assert (before.template, before.model_digest) == ("acme/notes", model)
    assert (before.waiting, before.running, before.messages, before.unacked) == (JOBS, 0, JOBS, 0)
    assert (before.workers, before.concurrency_known, before.service_s) == (0, False, None)
    assert 0.3 <= before.oldest_s < 10
    assert (before.desired, before.because) == (1, "service_time_unknown")
    assert before.agree

    workers = [start_fake("--batch", "2", "--template", "acme/*") for _ in range(2)]

    def during() -> Row:
        [row] = look(worker_client, worker_settings, "acme/notes")
        return row

    until(lambda: during().running == 4 and during().workers == 2)
    for worker in workers:
        worker.pause()
    states = Counter(job.status() for job in jobs)
    row = during()
    for job in jobs:
        if job.status() == JobState.QUEUED:
            job.cancel()
    for worker in workers:
        worker.resume()
    assert (row.waiting, row.running) == (states[JobState.QUEUED], states[JobState.RUNNING])
    assert row.served_per_s * row.window_s == pytest.approx(states[JobState.SUCCEEDED], abs=0.1)
    assert (row.workers, row.concurrency) == (2, 2.0)
    until(lambda: look(worker_client, worker_settings, "acme/notes")[0].warm == {"1": 2})

    wait(producer, jobs)
    done = states[JobState.SUCCEEDED] + states[JobState.RUNNING]
    after = until(
        lambda: next(
            (
                r
                for r in look(worker_client, worker_settings, "acme/notes")
                if r.unacked == r.messages == 0
            ),
            None,
        )
    )
    assert (after.waiting, after.running, after.messages, after.agree) == (0, 0, 0, True)
    assert after.window_s * after.arrivals_per_s == pytest.approx(JOBS, abs=0.1)
    assert after.window_s * after.served_per_s == pytest.approx(done, abs=0.1)
    assert after.service_s is not None
    assert 1.5 <= after.service_s < 2.5
    [other] = look(worker_client, worker_settings, "globex/mail")
    assert (other.workers, other.waiting, other.desired, other.warm) == (0, 0, 0, {"1": 0})


def test_advice_is_the_formulas(
    worker_client: Any,
    worker_settings: Settings,
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
) -> None:
    """On the numbers of the same row; and more for a backlog than for none."""
    publish_template("notes")
    start_fake("--batch", "2", "--template", "acme/*")
    wait(producer, [producer.submit("acme/notes", {"note": "work=0.4 x"}) for _ in range(4)])
    jobs = producer.submit_many("acme/notes", [{"note": f"work=1 {n}"} for n in range(60)])
    row = until(
        lambda: next(
            (r for r in look(worker_client, worker_settings, "acme/notes") if r.running), None
        )
    )
    assert row.waiting > 20
    asked = Demand(
        waiting=row.waiting,
        running=row.running,
        arrivals_per_s=row.arrivals_per_s,
        service_s=row.service_s,
        concurrency=row.concurrency,
        replicas=row.workers,
    )
    assert row.desired == advise(asked, GOAL).replicas > 1
    for job in jobs:
        with suppress(Conflict):  # it has ended
            job.cancel()


def test_what_does_not_agree_is_said(
    client: Any,
    settings: Settings,
    worker_client: Any,
    worker_settings: Settings,
    producer: Producer,
    start_fake: StartFake,
    publish_template: Any,
) -> None:
    """A cancelled job leaves its message, a lost message its job, a killed worker its lease."""
    publish_template("notes")
    jobs = [producer.submit("acme/notes", {"note": f"work=30 {n}"}) for n in range(5)]
    jobs[4].cancel()
    [row] = look(worker_client, worker_settings, "acme/notes")
    assert (row.waiting, row.messages, row.agree) == (4, 5, False)
    assert "1 more messages than waiting records" in row.why_not[0]

    [queue] = client.keys("pq:_broker:acme/notes/*")
    client.ltrim(queue, 0, 1)
    [row] = look(worker_client, worker_settings, "acme/notes")
    assert (row.waiting, row.messages) == (4, 2)
    assert "2 fewer messages than waiting records" in row.why_not[0]

    worker: FakeWorker = start_fake("--batch", "2", "--template", "acme/*")
    until(lambda: look(worker_client, worker_settings, "acme/notes")[0].running == 2)
    worker.kill()
    time.sleep(settings.lease_s + 0.5)
    [row] = look(worker_client, worker_settings, "acme/notes")
    assert "2 running records have a lease that ended" in row.why_not[0]


def test_over_http_until_it_is_told_to_end(
    worker_settings: Settings, producer: Producer, publish_template: Any, tmp_path: Path
) -> None:
    """`--serve` as a process: the number, no such template, and a clean end."""
    version = publish_template("notes")
    producer.submit("acme/notes", {"note": "x"})
    code = (
        "import click; from contract.settings import Settings; from scale.cli import scale\n"
        "scale.main(['--serve', '0', '--json'], obj=Settings.load(), prog_name='scale',"
        " auto_envvar_prefix='PREFILLQ_SCALE')"
    )
    env = {
        **os.environ,
        "PREFILLQ_REDIS_URL": worker_settings.redis_url,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as serving:
        assert serving.stdout is not None
        where = json.loads(serving.stdout.readline())
        url = f"http://{where['host']}:{where['port']}"
        with urllib.request.urlopen(f"{url}/templates/acme/notes?max=3", timeout=10) as answer:  # noqa: S310
            body = json.load(answer)
        [numbers] = body["models"].values()
        assert (numbers["waiting"], numbers["desired"]) == (1, 1)
        assert list(body["models"]) == [version.model_digest[:MODEL_DIGITS]]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/templates/acme/other", timeout=10)  # noqa: S310
        assert refused.value.code == 404
        assert json.load(refused.value)["error"] == "not_found"
        refused.value.close()
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(20) == 0
