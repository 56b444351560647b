"""Worker processes that serve, leave out, warm and pin templates by pattern."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from contract import keys
from contract.model_folder import ModelFolder
from contract.redis_client import Client, connect
from contract.settings import Settings
from contract.worker_reports import list_workers
from local.redis_server import EmbeddedRedis
from producer.client import Producer
from templates.registry import Registry
from templates.version import PublishedVersion
from tests.support.fakes import FakeWorker, StartFake
from tests.support.proxy import Proxy
from tests.support.templates import make_spec, publish
from tests.support.waiting import until
from worker.rotation import OUT_OF_TURN, OUT_OF_TURN_S

Publish = Callable[..., PublishedVersion]
NOTE = {"note": "x"}
PICKED_UP_S = 5.0


def description(client: Client, settings: Settings, worker: FakeWorker) -> dict[str, Any]:
    """What `prefillq worker list` shows of it."""
    return next(d for d in list_workers(client, settings) if d["pid"] == worker.pid)


def cached(description: dict[str, Any]) -> dict[str, str]:
    """Version -> "held" or "pinned", of those in its cache."""
    return {
        version["version"]: "pinned" if version["pinned"] else "held"
        for version in description["versions"]
        if version["cached"]
    }


@pytest.fixture
def proxy(settings: Settings) -> Iterator[Proxy]:
    with Proxy(settings.redis_url) as made:
        yield made


class Consuming:
    """The queues that a worker behind a proxy looks into."""

    def __init__(self, proxy: Proxy, model: ModelFolder) -> None:
        self._proxy = proxy
        self._digest = model.model_digest

    def becomes(self, *addresses: str, within_s: float = PICKED_UP_S + 1.5) -> None:
        """Wait until it is exactly the queues of these: what a worker promises, a BRPOP's second
        and some for a busy machine.
        """
        wanted = {keys.queue(*address.split("/"), self._digest) for address in addresses}
        until(lambda: self._now() == wanted, within_s, what=f"consumes {addresses}")

    def restarts(self, act: Callable[[], object]) -> None:
        """Do it, and wait for the first look after it."""
        act()
        seen = len(self._proxy.requests("BRPOP"))
        until(lambda: len(self._proxy.requests("BRPOP")) > seen, what="a BRPOP after it")

    def _now(self) -> set[str]:
        requests = self._proxy.requests("BRPOP")
        names = {word.decode() for word in requests[-1][1:-1]} if requests else set()
        return {name.removeprefix(keys.BROKER_PREFIX) for name in names}


def test_the_set_follows_patterns_publishes_and_retirements(
    settings: Settings,
    proxy: Proxy,
    model: ModelFolder,
    registry: Registry,
    publish_template: Publish,
    start_fake: StartFake,
) -> None:
    """What is published, first published for this model, retired and brought back: within 5 s.
    Nothing excluded is ever looked into, nor what a pattern does not name."""
    publish_template("one")
    publish_template("secret")
    publish_template("theirs", tenant="globex")
    behind = settings.model_copy(update={"redis_url": proxy.url})
    worker = start_fake(
        *("--template", "acme/*", "--template", "later/*"),
        *("--exclude", "*/secret", "--exclude", "zen/*"),
        settings=behind,
    )
    consuming = Consuming(proxy, model)
    consuming.becomes("acme/one")
    idle = [(line["option"], line["pattern"]) for line in worker.lines("pattern_matches_nothing")]
    assert idle == [("--template", "later/*"), ("--exclude", "zen/*")]
    publish_template("two")
    consuming.becomes("acme/one", "acme/two")
    publish_template("first", tenant="later")
    publish_template("secret", tenant="later")
    consuming.becomes("acme/one", "acme/two", "later/first")
    registry.remove_label("acme", "two", "production")
    registry.retire("acme", "two", 1)
    consuming.becomes("acme/one", "later/first")
    for act in (proxy.drop, proxy.drop):
        consuming.restarts(act)
        consuming.becomes("acme/one", "later/first")
    registry.retire("acme", "two", 1, undo=True)
    consuming.becomes("acme/one", "acme/two", "later/first")
    assert not [r for r in proxy.requests("BRPOP") if any(b"secret" in word for word in r)]


def test_the_set_is_kept_when_redis_restarts(
    model: ModelFolder, start_fake: StartFake, tmp_path: Any
) -> None:
    """With --exclude too; and what was published meanwhile comes to it."""
    with EmbeddedRedis() as server, Proxy(server.url) as proxy:
        settings = Settings(redis_url=proxy.url, cache_dir=tmp_path / "cache", lease_s=4.0)
        direct = settings.model_copy(update={"redis_url": server.url})
        with connect(direct) as client:
            registry = Registry(client, direct)
            for name in ("one", "two", "secret"):
                publish(registry, make_spec(name), model)
            start_fake("--template", "acme/*", "--exclude", "acme/secret", settings=settings)
            consuming = Consuming(proxy, model)
            consuming.becomes("acme/one", "acme/two")
            consuming.restarts(server.restart)
            consuming.becomes("acme/one", "acme/two", within_s=10.0)  # it connects again first
            publish(registry, make_spec("three"), model)
            consuming.becomes("acme/one", "acme/two", "acme/three", within_s=10.0)


def test_a_retired_template_leaves_memory_with_its_queue(
    client: Client,
    settings: Settings,
    producer: Producer,
    registry: Registry,
    publish_template: Publish,
    start_fake: StartFake,
) -> None:
    """The prefix is not left behind when the template is no longer served."""
    publish_template()
    worker = start_fake()
    producer.submit("acme/notes", NOTE).result(timeout=20)
    until(lambda: cached(description(client, settings, worker)), what="the prefix is held")
    registry.remove_label("acme", "notes", "production")
    registry.retire("acme", "notes", 1)
    until(
        lambda: not description(client, settings, worker)["templates"],
        PICKED_UP_S + 2.5,  # and the time between two reports
        what="it is not served",
    )
    until(lambda: not cached(description(client, settings, worker)), what="it is not held")
    assert worker.lines("version_dropped")


def test_warm_used_fills_what_had_jobs(
    client: Client,
    settings: Settings,
    producer: Producer,
    publish_template: Publish,
    start_fake: StartFake,
) -> None:
    """Jobs on one worker; the next one starts with their versions, and with nothing else."""
    publish_template("used")
    publish_template("unused")
    second = publish_template("used", rules="Be brief.")
    first = start_fake()
    for address in ("acme/used", f"acme/used@{second.ref.version}"):
        producer.submit(address, NOTE).result(timeout=20)
    assert first.stop() == 0
    worker = start_fake("--warm", "used")
    held = cached(description(client, settings, worker))
    assert held == {"acme/used@1": "held", "acme/used@2": "held"}
    job = producer.submit("acme/used", NOTE).result(timeout=20)
    assert job.cache.state == "hit"


def test_pins_in_a_worker(
    client: Client,
    settings: Settings,
    producer: Producer,
    registry: Registry,
    publish_template: Publish,
    start_fake: StartFake,
) -> None:
    """What fits is pinned and stays whatever runs; what does not is refused in the log, and its
    jobs run all the same. A label that moves takes the pin with it."""
    version = publish_template("kept")
    for name in ("kept2", "other1", "other2"):
        publish_template(name)
    tokens = len(version.compiled.prefix_ids)
    worker = start_fake("--pin", "acme/kept*@production", "--cache-bytes", str(2 * tokens - 1))
    assert cached(description(client, settings, worker)) == {"acme/kept@1": "pinned"}
    [refused] = worker.lines("pin_refused")
    assert refused["version"] == "acme/kept2@1"
    for name in ("other1", "other2", "kept2", "other1"):
        assert producer.submit(f"acme/{name}", NOTE).result(timeout=20).status == "succeeded"
    assert producer.submit("acme/kept", NOTE).result(timeout=20).cache.state == "hit"
    second = publish_template("kept", rules="Be brief.")
    registry.set_label("acme", "kept", "production", second.ref.version)
    until(
        lambda: cached(description(client, settings, worker)).get("acme/kept@2") == "pinned",
        PICKED_UP_S + 2.5,
        what="the pin follows",
    )


def test_a_warm_queue_comes_first_and_starves_nobody(
    producer: Producer, publish_template: Publish, start_fake: StartFake
) -> None:
    """Two templates of a tenant, one warm, both deep: the warm one goes on for OUT_OF_TURN jobs,
    then the cold one has its turn. Another tenant's single job has its own within a round."""
    publish_template("cold")
    publish_template("warm")
    publish_template("single", tenant="globex")
    worker = start_fake("--batch", "1", "--seconds-per-token", "0.01")
    producer.submit("acme/warm", NOTE).result(timeout=20)
    time.sleep(3)  # what is preferred counts from the next BRPOP, which is a second at most
    worker.pause()
    # Redis hands the first to the BRPOP that is under way.
    producer.submit("acme/warm", NOTE)
    cold = producer.submit_many("acme/cold", ({"note": f"c{n}"} for n in range(20)))
    warm = producer.submit_many("acme/warm", ({"note": f"w{n}"} for n in range(40)))
    single = producer.submit("globex/single", NOTE)
    before = len(worker.lines("job_finished"))
    resumed_at = datetime.now(UTC)
    worker.resume()
    list(producer.wait([*cold, *warm, single], timeout=60))
    until(lambda: len(worker.lines("job_finished")) >= before + 62, what="all lines")
    lines = worker.lines("job_finished")[before:]
    order = [line["job_id"] for line in lines]
    assert order.index(single.id) <= 2
    first_cold = min(order.index(job.id) for job in cold)
    cold_at = datetime.fromisoformat(lines[first_cold]["timestamp"])
    cold_after_s = (cold_at - resumed_at).total_seconds()
    # The single job and the one under way stand among them.
    assert first_cold <= OUT_OF_TURN + 3
    if cold_after_s < OUT_OF_TURN_S:  # else its turn came by the clock
        assert first_cold >= OUT_OF_TURN - 1
    assert {job.id for job in cold} <= set(order)
