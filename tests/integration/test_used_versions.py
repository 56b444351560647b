"""Which versions had jobs lately, in a real Redis."""

from __future__ import annotations

from typing import Any

import pytest

from contract import keys
from contract.errors import RedisRefused
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import VersionRef
from tests.support.redis_state import out_of_memory
from worker import used
from worker.used import LATELY_S, UsedVersions

MODEL_DIGEST = "a" * 64
KEY = keys.used(MODEL_DIGEST)


def ref(name: str, version: int = 1) -> VersionRef:
    return VersionRef(tenant="acme", template=name, version=version, digest="d" * 64)


@pytest.fixture
def record(worker_client: Client, worker_settings: Settings) -> UsedVersions:
    return UsedVersions(worker_client, worker_settings, model_digest=MODEL_DIGEST)


def recent(record: UsedVersions) -> list[str]:
    return [str(address) for address in record.recent()]


def test_what_was_used_last_comes_first(record: UsedVersions, client: Client) -> None:
    """By the server's clock, whichever worker wrote it; each version once."""
    record.note(ref("old"))
    record.flush()
    client.zincrby(KEY, -10, "acme/old@1")
    record.note(ref("new", 3))
    record.note(ref("new", 3))
    record.flush()
    record.flush()  # nothing new
    assert recent(record) == ["acme/new@3", "acme/old@1"]
    assert 0 < client.ttl(KEY) <= LATELY_S


def test_another_models_versions_are_its_own(
    record: UsedVersions, worker_client: Client, worker_settings: Settings
) -> None:
    """A worker warms nothing that it cannot serve."""
    record.note(ref("notes"))
    record.flush()
    other = UsedVersions(worker_client, worker_settings, model_digest="b" * 64)
    assert other.recent() == []


def test_what_is_old_or_no_version_is_left_out(record: UsedVersions, client: Client) -> None:
    """Whatever stands in the set."""
    now = client.time()[0]
    client.zadd(KEY, {"acme/old@1": now - LATELY_S - 1, "acme/now@2": now})
    client.zadd(KEY, dict.fromkeys(["acme/label@production", "acme/none", b"\xff", "", "@1"], now))
    assert recent(record) == ["acme/now@2"]


def test_the_record_is_bounded(
    record: UsedVersions, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest are kept."""
    monkeypatch.setattr(used, "KEPT", 3)
    now = client.time()[0]
    client.zadd(KEY, {f"acme/t{n}@1": now - n for n in range(1, 6)})
    record.note(ref("new"))
    record.flush()
    assert recent(record) == ["acme/new@1", "acme/t1@1", "acme/t2@1"]
    assert client.zcard(KEY) == 3


def test_what_could_not_be_written_is_written_later(record: UsedVersions, client: Client) -> None:
    """A full Redis loses nothing of it."""
    record.note(ref("notes"))
    with out_of_memory(client), pytest.raises(RedisRefused):
        record.flush()
    record.note(ref("more"))
    record.flush()
    assert set(recent(record)) == {"acme/notes@1", "acme/more@1"}
