"""Shadows with real worker processes: the canary answers copies of jobs, and nobody is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from contract import keys
from contract.redis_client import Client
from contract.settings import Settings
from producer.client import Producer
from templates.registry import Registry
from templates.rollouts.compare import Comparison, read_pairs
from templates.rollouts.control import Rollouts
from templates.rollouts.outcomes import read_outcomes
from templates.rollouts.rollout import Phase, Plan, Rollout
from templates.version import PublishedVersion
from tests.support.command_line import CommandLine
from tests.support.fakes import StartFake
from tests.support.markers import plant, planted_in
from tests.support.templates import RULES
from tests.support.waiting import until

Publish = Callable[..., PublishedVersion]


class Led:
    """A rollout whose first step gives the canary next to nothing, and shadows of all jobs."""

    def __init__(self, registry: Registry, client: Client, settings: Settings) -> None:
        self.rollouts = Rollouts(registry)
        self._client, self._settings = client, settings
        self.rollout: Rollout

    def start(self, **plan: Any) -> None:
        wanted = {"label": "production", "stable": 1, "canary": 2, "steps": (1,), "bake_s": 3600.0}
        begun = self.rollouts.start("acme", "notes", Plan(**{**wanted, "shadow": 10_000, **plan}))
        self.rollout = begun
        until(self._bakes, timeout=60.0, what="the gates are passed")

    def _bakes(self) -> bool:
        now = self.rollouts.get("acme", "notes")
        assert now is not None, self.rollouts.journal("acme", "notes")[-1]
        return now.phase is Phase.BAKING

    def compared(self) -> Comparison:
        return read_pairs(self._client, self._settings, "acme", self.rollout.id)

    def wait(self, jobs: int, timeout: float = 30.0) -> Comparison:
        until(lambda: len(self.compared().pairs) >= jobs, timeout, what=f"{jobs} pairs")
        return self.compared()


@pytest.fixture
def led(
    registry: Registry,
    admin_client: Client,
    admin_settings: Settings,
    publish_template: Publish,
) -> Led:
    """The pairs are read as the tenant's admin, who leads the rollout."""
    publish_template()
    publish_template(rules=RULES + " Answer in other words.")
    return Led(registry, admin_client, admin_settings)


def test_the_canary_answers_all_and_nobody_hears_it(
    led: Led, start_fake: StartFake, producer: Producer, client: Client
) -> None:
    """Results, outcomes and records are the stable version's; the stream has both answers."""
    start_fake()
    led.start()
    jobs = producer.submit_many("acme/notes", [{"note": plant("note")} for _ in range(12)])
    results = {job.id: job.result(timeout=30.0) for job in producer.wait(jobs, timeout=30.0)}
    found = led.wait(12)
    assert {result.ref.version for result in results.values()} == {1}
    assert {pair.job_id for pair in found.pairs} == set(results)
    for pair in found.pairs:
        assert pair.stable.text == results[pair.job_id].text != pair.canary.text
        assert (pair.stable.version, pair.canary.version, pair.equal) == (1, 2, False)
        assert pair.canary.tokens == pair.stable.tokens == 4
    assert (found.answered, found.equal, found.agreement, found.failed) == (12, 0, 0.0, 0)
    assert [job.result().text for job in jobs] == [results[job.id].text for job in jobs]
    digests = [
        client.hget(keys.versions("acme", "notes"), number).decode() for number in ("1", "2")
    ]
    stable, canary = (
        read_outcomes(
            client, led._settings, tenant="acme", rollout=led.rollout.id, digest=digest, since=0.0
        )
        for digest in digests
    )
    assert (len(stable.jobs), len(canary.jobs)) == (12, 0)
    key = keys.shadowed("acme", led.rollout.id)
    assert planted_in(repr(client.xrange(key))) == []
    assert 0 < client.ttl(key) <= 7 * 86_400
    assert client.llen(keys.shadow("acme", led.rollout.id)) == 0


def test_equal_answers_agree(
    led: Led, start_fake: StartFake, producer: Producer, command_line: CommandLine
) -> None:
    """And the command line says so, by its own rollout or a given one."""
    start_fake("--answer", "the same")
    led.start()
    jobs = producer.submit_many("acme/notes", [{"note": f"note {n}"} for n in range(3)])
    list(producer.wait(jobs, timeout=30.0))
    led.wait(3)
    compare = ("templates", "rollout", "compare", "acme/notes")
    data = command_line.run(*compare, "--json").json
    assert (data["rollout"], data["jobs"], data["agreement"]) == (led.rollout.id, 3, 1.0)
    assert len(data["pairs"]) == 3
    assert data["pairs"][0]["canary"]["text"] == "the same"
    ran = command_line.run(*compare, "--differing")
    assert ran.out == ""
    assert "3 of 3 answers are equal (100.0%)" in ran.err
    led.rollouts.abort("acme", "notes")
    ended = command_line.run(*compare, "--limit", "1", "--id", led.rollout.id)
    assert ended.out.count("the same  ") >= 2
    assert ended.out.count("\n") == 2


def test_shadows_wait_until_there_is_room(
    led: Led, start_fake: StartFake, producer: Producer
) -> None:
    """While jobs want all rows none is answered; a running one makes room for a job at once."""
    start_fake("--batch", "1")
    led.start()
    first = producer.submit("acme/notes", {"note": "work=3"})
    first.result(timeout=30.0)
    time.sleep(1.5)  # its shadow has the row by now, for three seconds
    submitted = time.monotonic()
    second = producer.submit("acme/notes", {"note": "second"})
    second.result(timeout=30.0)
    assert time.monotonic() - submitted < 1.5
    found = led.wait(2)
    assert {pair.job_id for pair in found.pairs} == {first.id, second.id}
    long = next(pair for pair in found.pairs if pair.job_id == first.id)
    assert long.canary.seconds > 2.5


def test_a_canary_that_crashes_is_seen_there_alone(
    led: Led, start_fake: StartFake, producer: Producer
) -> None:
    """A pair with an error; the job has its answer, and the next shadow too."""
    start_fake("--fail-on", "in other words.\nuser\nNote: bang")
    led.start()
    for note in ("bang", "calm"):
        job = producer.submit("acme/notes", {"note": note})
        assert job.result(timeout=30.0).ref.version == 1
    found = led.wait(2)
    assert sorted(pair.canary.error for pair in found.pairs) == ["", "internal_error"]
    assert (found.failed, found.answered) == (1, 1)


def test_without_a_shadow_nothing_is_answered_twice(
    led: Led, start_fake: StartFake, producer: Producer, client: Client
) -> None:
    """The default."""
    start_fake()
    led.start(shadow=0)
    jobs = producer.submit_many("acme/notes", [{"note": f"note {n}"} for n in range(5)])
    list(producer.wait(jobs, timeout=30.0))
    time.sleep(1.5)
    assert led.compared().pairs == ()
    assert client.keys("pq:acme:shadow*") == []


def test_what_a_worker_had_taken_is_lost_with_it(
    led: Led, start_fake: StartFake, producer: Producer
) -> None:
    """A sample less, and nothing else: another worker answers the rest."""
    worker = start_fake("--batch", "1")
    led.start()
    job = producer.submit("acme/notes", {"note": "work=2"})
    job.result(timeout=30.0)
    time.sleep(1.5)
    worker.kill()
    start_fake()
    second = producer.submit("acme/notes", {"note": "second"})
    second.result(timeout=30.0)
    found = led.wait(1)
    assert [pair.job_id for pair in found.pairs] == [second.id]
