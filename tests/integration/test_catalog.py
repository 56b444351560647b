"""What a worker follows in a real Redis: its patterns, its model, and what is published later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from contract import keys
from contract.codec import pack, unpack
from contract.errors import InvalidInput
from contract.ids import new_job_id
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import VersionRef
from producer.client import Producer
from templates.registry import Registry
from tests.support.published import COMPILED, MODEL, make_spec
from worker.catalog import Catalog, Served
from worker.patterns import Pin
from worker.standings import ROUNDS

OTHER = replace(MODEL, model_digest="e" * 64)
MakeCatalog = Callable[..., Catalog]


@pytest.fixture
def make_catalog(worker_client: Any, worker_settings: Settings) -> MakeCatalog:
    """A catalog as a worker has it: with a registry of its own, which has read nothing yet."""

    def make(
        *patterns: str, model_digest: str = MODEL.model_digest, exclude: Iterable[str] = ()
    ) -> Catalog:
        return Catalog(
            client=worker_client,
            settings=worker_settings,
            registry=Registry(worker_client, worker_settings),
            model_digest=model_digest,
            patterns=patterns,
            exclude=exclude,
        )

    return make


def publish(registry: Registry, address: str, *, model: Any = MODEL, **changes: Any) -> VersionRef:
    tenant, name = address.split("/")
    spec = make_spec(tenant, name, **changes)
    return registry.publish(spec, COMPILED, model).version.ref


def addresses(catalog: Catalog) -> list[str]:
    return [f"{served.tenant}/{served.template}" for served in catalog.refresh()]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ((), ["acme/tagging", "acme/triage", "globex/triage"]),
        (("*/*",), ["acme/tagging", "acme/triage", "globex/triage"]),
        (("acme/*",), ["acme/tagging", "acme/triage"]),
        (("*/triage",), ["acme/triage", "globex/triage"]),
        (("acme/t?gging",), ["acme/tagging"]),
        (("globex/triage",), ["globex/triage"]),
        (("globex/triage", "acme/tag*"), ["acme/tagging", "globex/triage"]),
        (("acme/*", "acme/triage"), ["acme/tagging", "acme/triage"]),
        (("acme/tri",), []),
        (("Acme/*",), []),
    ],
)
def test_patterns_choose_templates(
    registry: Registry, make_catalog: MakeCatalog, patterns: tuple[str, ...], expected: list[str]
) -> None:
    """Any pattern may name a template, whole and by case; each is served once, in order."""
    for address in ("globex/triage", "acme/triage", "acme/tagging"):
        publish(registry, address)
    assert addresses(make_catalog(*patterns)) == expected


@pytest.mark.parametrize("key", [keys.templates("acme"), keys.versions("acme", "triage")])
def test_tenant_whose_keys_cannot_be_read_is_served_as_it_was(
    registry: Registry, make_catalog: MakeCatalog, client: Client, key: str
) -> None:
    """Its admin can write them; the other tenants' new templates are found all the same."""
    publish(registry, "acme/triage")
    catalog = make_catalog()
    assert addresses(catalog) == ["acme/triage"]
    client.delete(key)
    client.set(key, "no longer what it was")
    publish(registry, "globex/triage")
    assert addresses(catalog) == ["acme/triage", "globex/triage"]


def test_labels_that_cannot_be_read_keep_nothing_from_being_served(
    registry: Registry, make_catalog: MakeCatalog, client: Client
) -> None:
    """There is only nothing to warm before the first job."""
    publish(registry, "acme/triage")
    catalog = make_catalog()
    client.delete(keys.labels("acme", "triage"))
    client.set(keys.labels("acme", "triage"), "no longer what it was")
    [served] = catalog.refresh()
    assert catalog.labelled(served) == []


def test_nothing_published_is_nothing_served(make_catalog: MakeCatalog) -> None:
    """An empty Redis is no error: a worker may start before anybody publishes."""
    assert make_catalog().refresh() == []


def test_served_names_the_queue_of_this_model(
    registry: Registry, make_catalog: MakeCatalog
) -> None:
    """The queue is the one that a producer rings for this template and these weights."""
    publish(registry, "acme/triage")
    assert make_catalog().refresh() == [
        Served(
            tenant="acme",
            template="triage",
            queue=keys.queue("acme", "triage", MODEL.model_digest),
        )
    ]


def test_versions_of_other_weights_are_not_served(
    registry: Registry, make_catalog: MakeCatalog
) -> None:
    """A template without a version for this model is another worker's."""
    publish(registry, "acme/ours")
    publish(registry, "acme/theirs", model=OTHER)
    assert addresses(make_catalog()) == ["acme/ours"]
    assert addresses(make_catalog(model_digest=OTHER.model_digest)) == ["acme/theirs"]
    assert addresses(make_catalog(model_digest="f" * 64)) == []


def test_template_with_versions_for_two_models_has_a_queue_for_each(
    registry: Registry, make_catalog: MakeCatalog
) -> None:
    """Both workers serve it, and neither hears the other's messages."""
    publish(registry, "acme/triage")
    publish(registry, "acme/triage", model=OTHER)
    found = [make_catalog(model_digest=m.model_digest).refresh() for m in (MODEL, OTHER)]
    assert [len(served) for served in found] == [1, 1]
    assert len({served[0].queue for served in found}) == 2


def test_what_is_published_later_appears_at_the_next_refresh(
    registry: Registry, make_catalog: MakeCatalog
) -> None:
    """Case Q20: a new template, and a first version for this model, need no restart."""
    publish(registry, "acme/triage")
    publish(registry, "acme/tagging", model=OTHER)
    catalog = make_catalog()
    assert addresses(catalog) == ["acme/triage"]
    publish(registry, "globex/new")
    assert addresses(catalog) == ["acme/triage", "globex/new"]
    publish(registry, "acme/tagging")
    assert addresses(catalog) == ["acme/tagging", "acme/triage", "globex/new"]


def test_labelled_versions_of_this_model(registry: Registry, make_catalog: MakeCatalog) -> None:
    """Those that a label points to now, each once; no other version and no other weights."""
    first = publish(registry, "acme/triage", text="One: ")
    second = publish(registry, "acme/triage", text="Two: ")
    publish(registry, "acme/triage", text="Three: ")
    theirs = publish(registry, "acme/triage", text="Four: ", model=OTHER)
    catalog = make_catalog()
    (served,) = catalog.refresh()
    assert [version.ref for version in catalog.labelled(served)] == [first]
    for label, ref in (("canary", second), ("mine", second), ("shadow", theirs)):
        registry.set_label("acme", "triage", label, ref.version)
    catalog.refresh()
    assert [version.ref for version in catalog.labelled(served)] == [first, second]
    registry.set_label("acme", "triage", "production", second.version)
    catalog.refresh()
    assert [version.ref for version in catalog.labelled(served)] == [second]


def _cut(body: bytes) -> bytes:
    return body[:40]


def _another_shape(_: bytes) -> bytes:
    return pack(["not", "a", "version"])


def _without_its_model(body: bytes) -> bytes:
    data = unpack(body)
    del data["model_digest"]
    return pack(data)


def _with_a_spec_of_tomorrow(body: bytes) -> bytes:
    data = unpack(body)
    data["spec"]["field_of_a_later_release"] = 1
    return pack(data)


@pytest.mark.parametrize(
    "damage", [None, _cut, _another_shape, _without_its_model, _with_a_spec_of_tomorrow]
)
def test_damaged_version_of_one_tenant_leaves_the_others_served(
    registry: Registry,
    client: Any,
    make_catalog: MakeCatalog,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytes], bytes] | None,
) -> None:
    """A version that is gone or unreadable is skipped and named in the log; others are served."""
    log = CapturingLogger()
    monkeypatch.setattr("worker.catalog.log", log)
    publish(registry, "acme/triage")
    ref = publish(registry, "broken/triage")
    publish(registry, "globex/triage")
    key = keys.version("broken", "triage", ref.digest)
    if damage is None:
        client.delete(key)
    else:
        client.set(key, damage(client.get(key)))
    catalog = make_catalog()
    for _ in range(2):  # what was found out the first time must not spoil the second
        assert addresses(catalog) == ["acme/triage", "globex/triage"]
    publish(registry, "globex/later")
    assert addresses(catalog) == ["acme/triage", "globex/later", "globex/triage"]
    assert {(call.method_name, call.kwargs["version"]) for call in log.calls} == {
        ("warning", "broken/triage@1")
    }


def test_damaged_version_leaves_the_others_of_its_template_served(
    registry: Registry, client: Any, make_catalog: MakeCatalog
) -> None:
    """A canary that cannot be read takes neither the template nor `production` away."""
    good = publish(registry, "acme/triage")
    bad = publish(registry, "acme/triage", text="Two: ")
    registry.set_label("acme", "triage", "canary", bad.version)
    client.set(keys.version("acme", "triage", bad.digest), b"damaged")
    catalog = make_catalog()
    (served,) = catalog.refresh()
    assert [version.ref for version in catalog.labelled(served)] == [good]


def test_damaged_version_is_served_once_it_is_repaired(
    registry: Registry, client: Any, make_catalog: MakeCatalog
) -> None:
    """The damage is not remembered for good: a restored version needs no restart."""
    ref = publish(registry, "acme/triage")
    key = keys.version("acme", "triage", ref.digest)
    body = client.getdel(key)
    catalog = make_catalog()
    assert addresses(catalog) == []
    client.set(key, body)
    assert addresses(catalog) == ["acme/triage"]


@pytest.mark.parametrize("pattern", ["acme", "acme/a/b"])
def test_bad_patterns_are_refused(make_catalog: MakeCatalog, pattern: str) -> None:
    """A pattern that could match nothing is an error before the worker starts."""
    with pytest.raises(InvalidInput, match="pattern"):
        make_catalog("acme/*", pattern)
    with pytest.raises(InvalidInput, match="pattern"):
        make_catalog("acme/*", exclude=[pattern])


# --- what is left out, retired and removed


def test_exclude_wins(registry: Registry, make_catalog: MakeCatalog) -> None:
    """Over a pattern that names the same template; also for templates published later, and for
    rollouts that the worker may lead."""
    publish(registry, "acme/triage")
    publish(registry, "acme/tagging")
    publish(registry, "globex/triage")
    catalog = make_catalog("acme/*", exclude=["*/triage"])
    assert addresses(catalog) == ["acme/tagging"]
    publish(registry, "acme/notes")
    assert addresses(catalog) == ["acme/notes", "acme/tagging"]
    assert catalog.matches("acme", "tagging")
    assert not catalog.matches("acme", "triage")


def test_a_pattern_that_names_nothing_is_told(
    registry: Registry, make_catalog: MakeCatalog
) -> None:
    """Of a template for other weights too; excluding needs only a template of that name."""
    publish(registry, "acme/triage")
    publish(registry, "acme/theirs", model=OTHER)
    catalog = make_catalog("acme/*", "acme/theirs", "globex/*", exclude=["acme/theirs", "x/y"])
    catalog.refresh()
    pins = [Pin(pattern="acme/tri*"), Pin(pattern="globex/*", label="canary")]
    assert catalog.idle_patterns(pins) == [
        ("--template", "acme/theirs"),
        ("--template", "globex/*"),
        ("--exclude", "x/y"),
        ("--pin", "globex/*@canary"),
    ]
    publish(registry, "globex/tea")
    catalog.refresh()
    assert ("--template", "globex/*") not in catalog.idle_patterns(pins)


def retire_all(registry: Registry, address: str, version: int = 1) -> None:
    tenant, name = address.split("/")
    for label in registry.labels(tenant, name):
        registry.remove_label(tenant, name, label)
    registry.retire(tenant, name, version)


def test_a_wholly_retired_template_is_dropped_and_comes_back(
    registry: Registry, make_catalog: MakeCatalog
) -> None:
    """No version of it takes jobs; `dropped` names it, so that its prefixes are forgotten."""
    publish(registry, "acme/triage")
    publish(registry, "acme/tagging")
    catalog = make_catalog()
    assert addresses(catalog) == ["acme/tagging", "acme/triage"]
    retire_all(registry, "acme/triage")
    assert addresses(catalog) == ["acme/tagging"]
    [dropped] = catalog.dropped()
    assert [ref.version for ref in catalog.retired(dropped)] == [1]
    registry.retire("acme", "triage", 1, undo=True)
    assert addresses(catalog) == ["acme/tagging", "acme/triage"]
    assert catalog.dropped() == []


@pytest.mark.parametrize("claimed", [False, True])
def test_a_retired_template_is_served_until_its_last_job_has_ended(
    registry: Registry,
    make_catalog: MakeCatalog,
    producer: Producer,
    client: Client,
    settings: Settings,
    claimed: bool,
) -> None:
    """Queued, or running anywhere: should that worker die, the job comes back to the queue. Also
    for a worker that starts now."""
    publish(registry, "acme/triage")
    job = producer.submit("acme/triage", {"ticket": "x"})
    store = RedisJobStore(client, settings)
    if claimed:
        store.claim(job.id, "elsewhere", 60.0)
    running, fresh = make_catalog(), make_catalog()
    assert addresses(running) == ["acme/triage"]
    retire_all(registry, "acme/triage")
    for catalog in (running, fresh):
        assert addresses(catalog) == ["acme/triage"]
    store.cancel(job.id)
    if claimed:
        client.zrem(keys.running("acme"), job.id)
    for catalog in (running, fresh):
        assert addresses(catalog) == []


def test_a_revived_job_of_a_dropped_template_is_served(
    registry: Registry, make_catalog: MakeCatalog, client: Client
) -> None:
    """It waits again, though its version is retired."""
    publish(registry, "acme/triage")
    retire_all(registry, "acme/triage")
    catalog = make_catalog()
    assert addresses(catalog) == []
    job_id = new_job_id("acme")
    client.zadd(keys.waiting("acme", "triage"), {job_id: 9e9})
    assert addresses(catalog) == ["acme/triage"]


def test_a_removed_template_is_dropped(
    registry: Registry, make_catalog: MakeCatalog, client: Client
) -> None:
    """Its name is gone from its tenant's, or its tenant from the workers' list."""
    for address in ("acme/one", "acme/two", "globex/one"):
        publish(registry, address)
    catalog = make_catalog()
    assert len(addresses(catalog)) == 3
    client.srem(keys.templates("acme"), "two")
    assert addresses(catalog) == ["acme/one", "globex/one"]
    client.srem(keys.TENANTS, "globex")
    assert addresses(catalog) == ["acme/one"]


# --- labels, by name


def test_labels_and_versions_of_a_served_template(
    registry: Registry, make_catalog: MakeCatalog
) -> None:
    """What pins and `--warm used` go by: of this model's, and not retired."""
    first = publish(registry, "acme/triage")
    second = publish(registry, "acme/triage", text="Two: ")
    theirs = publish(registry, "acme/triage", text="Three: ", model=OTHER)
    registry.set_label("acme", "triage", "canary", second.version)
    registry.set_label("acme", "triage", "other", theirs.version)
    catalog = make_catalog()
    (served,) = catalog.refresh()
    labels = catalog.labels(served)
    assert labels == {"production": first, "canary": second}
    for ref in (first, second):
        version = catalog.read(ref)
        assert version is not None
        assert version.ref == ref
    numbered = [catalog.version("acme", "triage", number) for number in (1, 2, 3, 4)]
    assert [version and version.ref for version in numbered] == [first, second, None, None]
    assert catalog.version("acme", "nothing", 1) is None
    registry.remove_label("acme", "triage", "canary")
    registry.retire("acme", "triage", 2)
    catalog.refresh()
    assert catalog.version("acme", "triage", 2) is None


def test_queues_of_labelled_versions(registry: Registry, make_catalog: MakeCatalog) -> None:
    """By digest, and the same object until something moved."""
    first = publish(registry, "acme/triage")
    second = publish(registry, "acme/triage", text="Two: ")
    catalog = make_catalog()
    (served,) = catalog.refresh()
    before = catalog.labelled_queues
    assert before.queue_of == {first.digest: served.queue}
    catalog.refresh()
    assert catalog.labelled_queues is before
    registry.set_label("acme", "triage", "canary", second.version)
    catalog.refresh()
    assert catalog.labelled_queues.queue_of == dict.fromkeys(
        (first.digest, second.digest), served.queue
    )


# --- a look costs few round trips


def test_a_look_at_many_templates_takes_few_round_trips(
    registry: Registry, make_catalog: MakeCatalog, client: Client, worker_client: Client
) -> None:
    """Their revisions are asked for together, and of one that moved alone is the rest read."""
    for number in range(60):
        publish(registry, f"acme/t{number}")
    catalog = make_catalog()
    catalog.refresh()
    before = client.info("commandstats")
    catalog.refresh()
    # Besides, one in ROUNDS is read again at each look.
    assert _calls(client, "hgetall") - before["cmdstat_hgetall"]["calls"] <= 2 * (60 // ROUNDS)
    assert _calls(client, "mget") - before.get("cmdstat_mget", {"calls": 0})["calls"] == 1


def _calls(client: Any, command: str) -> int:
    return int(client.info("commandstats")[f"cmdstat_{command}"]["calls"])


def test_a_move_that_no_revision_tells_of_is_found_in_a_round(
    registry: Registry, make_catalog: MakeCatalog, client: Client
) -> None:
    """After a failover that lost moves, others have their revisions."""
    publish(registry, "acme/triage")
    second = publish(registry, "acme/triage", text="Two: ")
    catalog = make_catalog()
    (served,) = catalog.refresh()
    client.hset(keys.labels("acme", "triage"), "canary", second.version)
    for _ in range(ROUNDS):
        catalog.refresh()
    assert set(catalog.labels(served)) == {"production", "canary"}
