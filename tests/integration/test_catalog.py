"""What a worker follows in a real Redis: its patterns, its model, and what is published later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from contract import keys
from contract.codec import pack, unpack
from contract.errors import InvalidInput
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import VersionRef
from templates.registry import Registry
from tests.support.published import COMPILED, MODEL, make_spec
from worker.catalog import Catalog, Served, check_pattern

OTHER = replace(MODEL, model_digest="e" * 64)
MakeCatalog = Callable[..., Catalog]


@pytest.fixture
def make_catalog(worker_client: Any, worker_settings: Settings) -> MakeCatalog:
    """A catalog as a worker has it: with a registry of its own, which has read nothing yet."""

    def make(*patterns: str, model_digest: str = MODEL.model_digest) -> Catalog:
        return Catalog(
            client=worker_client,
            settings=worker_settings,
            registry=Registry(worker_client, worker_settings),
            model_digest=model_digest,
            patterns=patterns,
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
    assert [version.ref for version in catalog.labelled(served)] == [first, second]
    registry.set_label("acme", "triage", "production", second.version)
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


@pytest.mark.parametrize("pattern", ["acme/*", "*/*", "acme/triage", "a?me/tri*"])
def test_good_patterns_stay_as_they_are(pattern: str) -> None:
    """`check_pattern` returns its argument."""
    assert check_pattern(pattern) == pattern


@pytest.mark.parametrize(
    "pattern", ["", "*", "acme", "/", "acme/", "/triage", "acme/a/b", "acme//b", "acme/triage/"]
)
def test_bad_patterns_are_refused(pattern: str, make_catalog: MakeCatalog) -> None:
    """A pattern that could match nothing is an error before the worker starts."""
    with pytest.raises(InvalidInput, match="pattern"):
        check_pattern(pattern)
    with pytest.raises(InvalidInput, match="pattern"):
        make_catalog("acme/*", pattern)
