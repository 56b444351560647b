"""Published templates in a real Redis: numbering, digests, labels and what is not found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from contract import keys
from contract.errors import Conflict, InvalidInput, NotFound
from contract.ids import parse_address
from contract.redis_client import Client, connect
from contract.settings import Settings
from contract.types import VersionRef
from templates import lookup, moving
from templates.registry import Registry
from tests.support.published import COMPILED, MODEL, make_spec


def publish(registry: Registry, **changes: Any) -> VersionRef:
    return registry.publish(make_spec(**changes), COMPILED, MODEL).version.ref


def test_versions_count_from_one_and_only_the_first_gets_production(registry: Registry) -> None:
    """Numbers follow the order of publishing; `production` moves only when told to."""
    assert publish(registry).version == 1
    assert publish(registry, text="Other: ").version == 2
    assert registry.labels("acme", "triage") == {"production": 1}


def test_the_same_content_again_is_the_same_version(registry: Registry) -> None:
    """Publishing twice writes once and gives back what was stored, time included."""
    first = registry.publish(make_spec(), COMPILED, MODEL)
    publish(registry, text="Other: ")
    again = registry.publish(make_spec(), COMPILED, MODEL)
    assert (first.created, again.created) == (True, False)
    assert again.version == first.version


def test_another_model_is_another_version(registry: Registry) -> None:
    """The digest covers weights, tokenizer and chat template, not the model's name."""
    registry.publish(make_spec(), COMPILED, MODEL)
    for part in ("model_digest", "tokenizer_digest", "chat_template"):
        other = registry.publish(make_spec(), COMPILED, replace(MODEL, **{part: "c" * 64}))
        assert other.created, part


def test_a_stored_version_comes_back_equal(registry: Registry, client: Any) -> None:
    """A fresh registry reads from Redis what was published."""
    spec = make_spec(
        output={"choices": ["billing", "other"]},
        generation={"stop": ["\n"], "seed": 7},
        samples=[{"input": {"ticket": "Ünïcode 🎫"}, "expected": "other"}],
    )
    published = registry.publish(spec, COMPILED, MODEL).version
    assert Registry(client, registry._settings).get(published.ref) == published


def test_racing_publishers_get_one_number_per_content(admin_settings: Settings) -> None:
    """Twelve publishes of four contents from four threads make the versions 1 to 4."""

    def work(index: int) -> VersionRef:
        with connect(admin_settings) as client:
            return publish(Registry(client, admin_settings), text=f"Text {index % 4}: ")

    with ThreadPoolExecutor(4) as pool:
        refs = list(pool.map(work, range(12)))
    assert {ref.version for ref in refs} == {1, 2, 3, 4}
    assert len(set(refs)) == 4
    with connect(admin_settings) as client:
        summaries = Registry(client, admin_settings).versions("acme", "triage")
    assert [summary.ref for summary in summaries] == sorted(set(refs), key=lambda r: r.version)


@pytest.mark.unrestricted("Redis holds the functions as they are; this breaks one")
def test_without_the_compare_and_set_racing_publishers_collide(
    client: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: the script takes any number, and two contents get the same one."""
    source = moving.script_source("publish")
    broken = source.replace("if not as_decided() or", "if false and")
    assert broken != source
    for script, numbers in ((source, [1, 2]), (broken, [1, 1])):
        client.flushdb()
        monkeypatch.setattr(moving, "script_source", lambda _, s=script: s)
        registry = Registry(client, settings)
        before = registry.sight("acme", "triage")
        sights = iter([before, before])  # both have looked before either has written
        look = registry.sight
        monkeypatch.setattr(registry, "sight", lambda *a, s=sights, f=look: next(s, None) or f(*a))
        refs = [publish(registry), publish(registry, text="Other: ")]
        assert [ref.version for ref in refs] == numbers


def test_addresses_resolve_by_label_and_number(registry: Registry) -> None:
    """No selector means `production`; a label is read anew each time."""
    first, second = publish(registry), publish(registry, text="Other: ")
    assert registry.resolve(parse_address("acme/triage")) == first
    assert registry.resolve(parse_address("acme/triage@2")) == second
    registry.set_label("acme", "triage", "canary", 2)
    assert registry.resolve(parse_address("acme/triage@canary")) == second
    registry.set_label("acme", "triage", "canary", 1)
    assert registry.resolve(parse_address("acme/triage@canary")) == first


@pytest.mark.parametrize(
    ("address", "there"),
    [
        ("acme/triag", "acme/triage"),
        ("acme/zzz", "acme/triage"),
        ("acme/triage@9", "versions 1 to 1"),
        ("acme/triage@canary", "production (1)"),
        ("globex/triage", "no templates of globex"),
    ],
)
def test_what_is_not_there_is_not_found_and_says_what_is(
    registry: Registry, address: str, there: str
) -> None:
    """Case Q12: exit code 4, with the nearest names, or the labels and versions there are."""
    publish(registry)
    with pytest.raises(NotFound) as caught:
        registry.resolve(parse_address(address))
    assert caught.value.exit_code == 4
    assert there in str(caught.value)


def test_other_tenants_are_not_named_in_errors(registry: Registry) -> None:
    """A misspelt template of one tenant does not list another's."""
    publish(registry, tenant="globex", name="secret-plan")
    with pytest.raises(NotFound) as caught:
        registry.resolve(parse_address("acme/secret-plan"))
    assert "globex" not in str(caught.value)


def test_a_version_is_read_once_per_process(registry: Registry, client: Any) -> None:
    """Versions are immutable: what was read stays known when Redis has lost it."""
    ref = publish(registry)
    version = registry.get(ref)
    client.delete(keys.version("acme", "triage", ref.digest))
    assert registry.get(ref) is version
    with pytest.raises(NotFound):
        Registry(client, registry._settings).get(ref)


def test_kept_versions_are_bounded(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used version leaves the process's memory first."""
    monkeypatch.setattr(lookup, "_KEPT_VERSIONS", 2)
    refs = [publish(registry, text=f"Text {index}: ") for index in range(3)]
    for ref in (refs[0], refs[1], refs[0], refs[2]):
        registry.get(ref)
    assert list(registry._lookup._kept) == [refs[0], refs[2]]


@pytest.mark.unrestricted("an admin lists its own tenant's templates alone")
def test_lists_show_templates_versions_and_labels(registry: Registry) -> None:
    """Lists are sorted, per tenant or over all, with what each label points to."""
    first = publish(registry)
    publish(registry, text="Other: ")
    publish(registry, tenant="globex", name="draft")
    registry.set_label("acme", "triage", "canary", 2)
    [mine] = registry.list_templates("acme")
    assert (mine.name, mine.latest, mine.labels) == ("triage", 2, {"canary": 2, "production": 1})
    everything = [(t.tenant, t.name) for t in registry.list_templates()]
    assert everything == [("acme", "triage"), ("globex", "draft")]
    oldest, newest = registry.versions("acme", "triage")
    assert oldest.ref == first
    assert (oldest.labels, newest.labels) == (("production",), ("canary",))
    assert (oldest.model, oldest.prefix_tokens) == ("test-model", 1)
    assert 0 < oldest.published_at <= newest.published_at
    with pytest.raises(NotFound):
        registry.versions("acme", "nothing")


def test_a_label_moves_only_from_where_it_is_expected(registry: Registry) -> None:
    """Compare-and-set: of two who decide on the same sight, the second gets a Conflict."""
    publish(registry)
    publish(registry, text="Other: ")
    registry.set_label("acme", "triage", "production", 2, expect=1)
    with pytest.raises(Conflict, match="points to 2") as caught:
        registry.set_label("acme", "triage", "production", 2, expect=1)
    assert caught.value.exit_code == 7
    registry.set_label("acme", "triage", "canary", 1, expect=None)
    with pytest.raises(Conflict):
        registry.set_label("acme", "triage", "canary", 2, expect=None)
    with pytest.raises(Conflict):
        registry.remove_label("acme", "triage", "canary", expect=2)
    registry.remove_label("acme", "triage", "canary", expect=1)
    assert registry.labels("acme", "triage") == {"production": 2}


def test_labels_point_to_versions_that_exist(registry: Registry) -> None:
    """Neither a label to nowhere nor a removed label that was none goes unnoticed."""
    publish(registry)
    with pytest.raises(NotFound, match="versions 1 to 1"):
        registry.set_label("acme", "triage", "canary", 2)
    with pytest.raises(NotFound, match="production"):
        registry.remove_label("acme", "triage", "canary")
    for label in ("3", "Prod", ""):
        with pytest.raises(InvalidInput):
            registry.set_label("acme", "triage", label, 1)
    assert registry.labels("acme", "triage") == {"production": 1}


@pytest.mark.unrestricted("a tenant with users was entered with them")
def test_publishing_writes_nothing_outside_the_tenant_but_its_name(
    registry: Registry, client: Any
) -> None:
    """All keys lie under the tenant's prefix, save the set of tenants that workers read."""
    publish(registry)
    assert client.smembers(keys.TENANTS) == {b"acme"}
    others = [key for key in client.keys("*") if not key.startswith(b"pq:acme:")]
    assert others == [keys.TENANTS.encode()]


def test_a_digest_of_another_tenant_opens_nothing(registry: Registry, client: Client) -> None:
    """Invariant 8: also in a process that has read the version under its own tenant before."""
    ref = publish(registry)
    registry.get(ref)
    stolen = replace(ref, tenant="evil", template="mine")
    with pytest.raises(NotFound):
        registry.get(stolen)
    body = client.get(keys.version(ref.tenant, ref.template, ref.digest))
    client.set(keys.version("evil", "mine", ref.digest), body)
    with pytest.raises(NotFound):
        registry.get(stolen)


def test_a_lost_version_is_whole_again_after_publishing_the_same_content(
    registry: Registry, client: Client, settings: Settings
) -> None:
    """What the error says to do works, and the version keeps its number and labels."""
    ref = publish(registry)
    publish(registry, text="Other: ")
    client.delete(keys.version(ref.tenant, ref.template, ref.digest))
    fresh = Registry(client, settings)
    with pytest.raises(NotFound):
        fresh.get(ref)
    assert publish(fresh) == ref
    assert fresh.get(ref).ref == ref
    assert fresh.labels("acme", "triage") == {"production": 1}
