"""What `prefillq scale` reads of templates: in few round trips, and damage hides no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from contract import keys
from contract.errors import NotFound, PrefillqError
from contract.load import MODEL_DIGITS
from contract.settings import Settings
from contract.types import VersionRef
from scale.endpoint import Pages
from scale.formula import Goal
from scale.keda import Cluster, scaled_objects
from scale.names import Named, Names
from scale.rows import Assumed
from scale.watching import Seen, Watcher
from templates.reading import RegistryReader
from templates.registry import Registry
from tests.support.published import COMPILED, MODEL, make_spec

DIGITS = MODEL.model_digest[:MODEL_DIGITS]
MANY = 200
GOAL = Goal(wait_s=10.0)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], int]:
    """Counts how often a call sends something to Redis."""
    sent = []
    send = redis.Connection.send_packed_command

    def counted(self: redis.Connection, *args: Any, **more: Any) -> None:
        sent.append(1)
        send(self, *args, **more)

    monkeypatch.setattr(redis.Connection, "send_packed_command", counted)

    def count(call: Callable[[], Any]) -> int:
        sent.clear()
        call()
        return len(sent)

    return count


def publish(registry: Registry, tenant: str, name: str, **changes: Any) -> VersionRef:
    spec = make_spec(tenant, name, **changes)
    return registry.publish(spec, COMPILED, MODEL).version.ref


@pytest.fixture
def names(worker_client: Any, worker_settings: Settings) -> Names:
    """As a worker's user, with nothing read yet."""
    return Names(RegistryReader(worker_client, worker_settings))


def addresses(found: list[Named]) -> list[str]:
    return [one.address for one in found]


def test_a_look_at_many_templates_takes_few_round_trips(
    registry: Registry, worker_client: Any, worker_settings: Settings, trips: Any
) -> None:
    """Not one per template, neither at the first look nor later, of all or of some."""
    for number in range(MANY):
        publish(registry, ("acme", "globex")[number % 4 == 0], f"t{number}")
    watcher = Watcher(worker_client, worker_settings, assumed=Assumed())
    watcher.look(["acme/t1"], GOAL)  # connects, and has the scripts known
    watcher = Watcher(worker_client, worker_settings, assumed=Assumed())
    seen: list[Seen] = []
    assert trips(lambda: seen.append(watcher.look([], GOAL))) <= 10
    assert len(seen[0].rows) == MANY
    assert trips(lambda: watcher.look([], GOAL)) <= 9  # versions are known
    assert trips(lambda: watcher.look(["acme"], GOAL)) <= 8
    assert trips(lambda: watcher.look(["acme/t1"], GOAL)) <= 4
    reader = RegistryReader(worker_client, worker_settings)
    assert trips(reader.list_templates) <= 6


def test_models_and_labels_are_those_of_versions_in_use(registry: Registry, names: Names) -> None:
    """A version counts as labelled while a label names it."""
    first = publish(registry, "acme", "triage")
    second = publish(registry, "acme", "triage", text="Two: ")
    registry.set_label("acme", "triage", "canary", second.version)
    for _ in range(2):  # read, and remembered
        [one] = names.named(["acme/triage"])
        assert one.models == {DIGITS: MODEL.name}
        assert one.labelled == {DIGITS: {1: (first.digest, True), 2: (second.digest, True)}}
    registry.remove_label("acme", "triage", "canary")
    [one] = names.named([])
    assert one.labelled == {DIGITS: {1: (first.digest, True)}}


@pytest.fixture
def ask(worker_client: Any, worker_settings: Settings) -> Callable[[str], tuple[int, Any]]:
    """What the endpoint answers."""
    watcher = Watcher(worker_client, worker_settings, assumed=Assumed())
    pages = Pages(watcher, GOAL, window_s=60.0)

    def ask(path: str) -> tuple[int, Any]:
        status, body = pages.answer(path)
        return int(status), body

    return ask


def test_a_retired_template_wants_no_worker_and_says_so(
    registry: Registry, names: Names, ask: Any
) -> None:
    """Its number stays where KEDA reads it: an error is a worker for ever, KEDA's fallback."""
    old = replace(MODEL, model_digest="e" * 64)
    registry.publish(make_spec(), COMPILED, old)
    second = registry.publish(make_spec(text="Two: "), COMPILED, MODEL).version.ref
    registry.set_label("acme", "triage", "production", second.version)
    registry.retire("acme", "triage", 1)
    [one] = names.named(["acme/triage"])
    assert (one.models, one.retired) == ({DIGITS: MODEL.name}, {"e" * 12: MODEL.name})
    assert len(scaled_objects([one], GOAL, Cluster(endpoint="http://scale"))) == 1
    status, body = ask("/templates/acme/triage")
    assert status == 200
    assert {d: (m["desired"], m["retired"]) for d, m in body["models"].items()} == {
        DIGITS: (0, False),
        "e" * 12: (0, True),
    }
    registry.remove_label("acme", "triage", "production")
    registry.retire("acme", "triage", 2)
    status, body = ask("/templates/acme/triage?min=1")
    assert status == 200
    assert {d: (m["desired"], m["retired"]) for d, m in body["models"].items()} == {
        DIGITS: (1, True),
        "e" * 12: (1, True),
    }
    for digest in (DIGITS, "e" * 12):
        status, body = ask(f"/models/{digest}")
        assert (status, body["desired"]) == (200, 0)
    assert scaled_objects(names.named([]), GOAL, Cluster(endpoint="http://scale")) == []
    assert ask("/templates/acme/triagee")[0] == 404


def test_a_retired_version_that_cannot_be_read_hides_no_other(
    registry: Registry, client: Any, names: Names
) -> None:
    """What it was for is not known, and nobody waits for it."""
    first = publish(registry, "acme", "triage")
    second = publish(registry, "acme", "triage", text="Two: ")
    registry.set_label("acme", "triage", "production", second.version)
    registry.retire("acme", "triage", 1)
    client.set(keys.version("acme", "triage", first.digest), b"\xc1")
    [one] = names.named(["acme/triage"])
    assert (one.models, one.retired) == ({DIGITS: MODEL.name}, {})


def test_what_cannot_be_read_hides_no_other(registry: Registry, client: Any, names: Names) -> None:
    """Left out where all are asked for, an error where it is asked for by name."""
    for name in ("fine", "spoilt", "gone", "strange", "late"):
        ref = publish(registry, "acme", name)
        version = keys.version("acme", name, ref.digest)
        if name == "spoilt":
            client.delete(keys.versions("acme", name))
            client.set(keys.versions("acme", name), "x")
        elif name == "gone":
            client.delete(version)
        elif name == "strange":
            client.set(version, b"\xc1")
        elif name == "late":
            client.delete(version)
            client.hset(version, "a", "b")
    publish(registry, "globex", "fine")
    assert addresses(names.named([])) == ["acme/fine", "globex/fine"]
    for name in ("spoilt", "gone", "strange", "late"):
        with pytest.raises(PrefillqError):
            names.named([f"acme/{name}"])
    client.delete(keys.templates("acme"))
    client.set(keys.templates("acme"), "x")
    assert addresses(names.named([])) == ["globex/fine"]
    with pytest.raises(PrefillqError):
        names.named(["acme"])


def test_what_is_not_there_is_said(registry: Registry, names: Names) -> None:
    """With what is near."""
    publish(registry, "acme", "triage")
    with pytest.raises(NotFound, match="acme/triage"):
        names.named(["acme/triag"])
    with pytest.raises(NotFound):
        names.named(["globex"])
    assert addresses(names.named(["acme/triage", "acme"])) == ["acme/triage"]
