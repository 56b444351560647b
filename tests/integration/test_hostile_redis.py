"""Keys of ours with content that we did not write: one thing is lost, and nothing else."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result as Ran

from contract import keys
from contract.codec import pack
from contract.errors import CodecError, KeyDamaged, PrefillqError, RedisRefused
from contract.ids import new_job_id, parse_address
from contract.records import RedisJobStore
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import Job, VersionRef
from contract.worker_reports import list_workers
from producer.async_client import AsyncProducer
from producer.cli import main
from producer.client import Producer
from templates.registry import Registry
from tests.support.answering import Answering
from tests.support.published import COMPILED, MODEL, make_spec
from tests.support.waiting import until
from worker.catalog import Catalog
from worker.streams import AnswerStreams

JOB = "acme." + "0" * 32


@pytest.fixture
def published(registry: Registry) -> Registry:
    """Templates of two tenants."""
    for tenant, name in (("acme", "triage"), ("globex", "tags")):
        registry.publish(make_spec(tenant, name), COMPILED, MODEL)
    return registry


def _run(settings: Settings, *arguments: str) -> Ran:
    return CliRunner().invoke(main, ["--redis-url", settings.redis_url, *arguments])


def test_a_label_that_is_no_number_hides_no_other(
    published: Registry, client: Client, settings: Settings
) -> None:
    """It is named as damaged when it is asked for, left out of lists, and mended by setting it."""
    client.hset(
        keys.labels("acme", "triage"), mapping={"odd": "x" * 50, b"\xff": "1", "big": 10**9}
    )
    assert published.labels("acme", "triage")["production"] == 1
    assert "odd" not in published.labels("acme", "triage")
    assert [item.name for item in published.list_templates()] == ["triage", "tags"]
    with pytest.raises(CodecError, match=r"label odd of acme/triage is damaged.*templates label"):
        published.resolve(parse_address("acme/triage@odd"))
    ran = _run(settings, "submit", "acme/triage@odd", "--vars", '{"ticket": "x"}')
    assert (ran.exit_code, "damaged" in ran.stderr) == (1, True)
    published.set_label("acme", "triage", "odd", 1)
    assert published.resolve(parse_address("acme/triage@odd")).version == 1


@pytest.mark.parametrize("number", [b"x", b"", b"\xff", b"1.5", b"-1", b"9" * 5000, "²".encode()])
def test_a_version_without_a_number_hides_no_other(
    published: Registry, client: Client, settings: Settings, number: bytes
) -> None:
    """Neither from lists nor from a worker, which would serve nothing at all otherwise."""
    client.hset(keys.versions("acme", "triage"), number, "0" * 64)
    assert [item.ref.version for item in published.versions("acme", "triage")] == [1]
    catalog = Catalog(
        client=client, settings=settings, registry=published, model_digest=MODEL.model_digest
    )
    assert [(s.tenant, s.template) for s in catalog.refresh()] == [
        ("acme", "triage"),
        ("globex", "tags"),
    ]


def test_names_that_are_none_are_nobodys_templates(
    published: Registry, client: Client, settings: Settings
) -> None:
    """A queue or key is never made of what somebody wrote by hand."""
    for name in (b"\xff", b"../x", b"a:b", b"", b"x" * 5000, b"a\nb", b"A"):
        client.sadd(keys.TENANTS, name)
        client.sadd(keys.templates("acme"), name)
    catalog = Catalog(
        client=client, settings=settings, registry=published, model_digest=MODEL.model_digest
    )
    assert [(s.tenant, s.template) for s in catalog.refresh()] == [
        ("acme", "triage"),
        ("globex", "tags"),
    ]
    assert [item.tenant for item in published.list_templates()] == ["acme", "globex"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pack({}),
        pack([]),
        pack({"spec": {"tenant": "planted-spec-00000000"}}),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
    ],
)
def test_a_damaged_version_is_named_and_not_quoted(
    published: Registry, client: Client, settings: Settings, data: bytes
) -> None:
    """The others are served all the same."""
    ref = published.resolve(parse_address("acme/triage"))
    client.set(keys.version("acme", "triage", ref.digest), data)
    fresh = Registry(client, settings)
    with pytest.raises(PrefillqError) as caught:
        fresh.get(ref)
    assert "planted" not in str(caught.value)
    catalog = Catalog(
        client=client, settings=settings, registry=fresh, model_digest=MODEL.model_digest
    )
    assert [s.tenant for s in catalog.refresh()] == ["globex"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("state", b"asleep"), ("version", b"x"), ("input", b"\xc1"), ("created_at", b"nan")],
)
def test_a_damaged_record_is_an_error_of_ours(
    published: Registry, client: Client, settings: Settings, field: str, value: bytes
) -> None:
    """For every command that reads it: exit status 1 and no traceback."""
    with Producer(settings) as producer:
        job = producer.submit("acme/triage", {"ticket": "x"})
    client.hset(keys.job(job.id), field, value)
    for command in ("status", "result", "cancel"):
        ran = _run(settings, command, job.id)
        assert ran.exit_code in (0, 1, 6, 7), ran.output
        assert "unexpected" not in ran.output
        if field == "state" and command != "cancel":
            assert ran.exit_code == 1
            assert "damaged" in ran.stderr


def test_keys_of_another_type_are_an_error_of_ours(client: Client, settings: Settings) -> None:
    """Redis says WRONGTYPE; exit status 1, and nothing hangs."""
    client.set(keys.job(JOB), "x")
    client.set(keys.labels("acme", "triage"), "x")
    client.set(keys.TENANTS, "x")
    for arguments in (("status", JOB), ("templates", "list"), ("submit", "acme/triage")):
        ran = _run(settings, *arguments)
        assert (ran.exit_code, "Redis refused" in ran.stderr) == (1, True), ran.output
    with pytest.raises(RedisRefused):
        Registry(client, settings).resolve(parse_address("acme/triage"))


def test_reports_that_are_none_are_left_out(client: Client, settings: Settings) -> None:
    """`worker list` shows what it can read, says of the rest, and has no codes for a terminal."""
    from tests.fuzz.target_redis import _REPORT

    odd: dict[str, Any] = {
        "good": {**_REPORT, "id": "good\x1b[2J", "model": "m\nn"},
        "list": [],
        "empty": {},
        "text": {**_REPORT, "cache": "x"},
        "vast": {**_REPORT, "id": "vast", "running": 1e308},
    }
    for name, body in odd.items():
        client.zadd(keys.WORKERS, {name: 1})
        client.set(keys.worker(name), pack(body))
    client.zadd(keys.WORKERS, {b"\xff": 1})
    client.set(keys.worker("raw"), b"\xc1")
    client.zadd(keys.WORKERS, {"raw": 1})
    assert len(list_workers(client, settings)) == 4  # a list is no report, nor are raw bytes
    ran = _run(settings, "worker", "list")
    assert ran.exit_code == 0
    lines = ran.stdout.splitlines()
    assert lines[0] == "a worker  a worker's report cannot be read: id: Field required"
    assert lines[1].startswith("good [2J  m n on cpu")
    assert any(line.startswith("vast  a worker's report cannot be read: running") for line in lines)
    assert "\x1b" not in ran.stdout
    assert len(_run(settings, "worker", "list", "--json").stdout.splitlines()) == 1


def test_notices_that_are_none_end_no_wait(
    published: Registry, client: Client, settings: Settings
) -> None:
    """Anybody may publish to a channel; what is no job id is nobody's."""
    with Producer(settings) as producer:
        job = producer.submit("acme/triage", {"ticket": "x"})
        for rubbish in (b"\xff", b"", b"x" * 10_000, JOB.encode(), pack({"a": 1})):
            client.publish(keys.notices("acme"), rubbish)
        with Answering(settings):
            for rubbish in (b"\xff", b"x" * 10_000):
                client.publish(keys.notices("acme"), rubbish)
            assert job.outcome(30).text == "echo: x"


def _damage(client: Client, job_id: str, how: str) -> None:
    """As a producer of the tenant can, and nobody rings for it any more."""
    match how:
        case "state":
            client.hset(keys.job(job_id), "state", b"zzz")
        case "deadline":
            client.hdel(keys.job(job_id), "deadline_at")
        case "type":
            client.set(keys.job(job_id), b"x")
    client.zrem(keys.queued("acme"), job_id)


DAMAGES = pytest.mark.parametrize("how", ["state", "deadline", "type"])


@DAMAGES
@pytest.mark.parametrize("when", ["before", "within"])
def test_a_damaged_record_ends_its_own_wait_alone(
    published: Registry, client: Client, settings: Settings, how: str, when: str
) -> None:
    """Others' waits of the same producer go on, of its tenant and of another; its own says why."""
    with Producer(settings) as producer, ThreadPoolExecutor(3) as pool:
        bad, good = (producer.submit("acme/triage", {"ticket": word}) for word in ("x", "y"))
        other = producer.submit("globex/tags", {"ticket": "z"})
        if when == "before":
            _damage(client, bad.id, how)
        waits = [pool.submit(job.result, 30) for job in (good, other)]
        own = pool.submit(bad.result, 30)
        among = producer.as_completed([bad, good, other], timeout=30)
        if when == "within":
            until(lambda: len(producer._watcher._waits) == 3, what="all are waited for")
            _damage(client, bad.id, how)
        assert next(among) == bad
        with pytest.raises((CodecError, KeyDamaged)):
            own.result(10)
        with Answering(settings), Answering(settings, "globex"):
            assert {job.id for job in among} == {good.id, other.id}
            assert [wait.result(30).text for wait in waits] == ["echo: y", "echo: z"]


@DAMAGES
def test_a_damaged_record_ends_its_own_wait_alone_in_a_loop(
    published: Registry, client: Client, settings: Settings, how: str
) -> None:
    """The same, awaited."""

    async def scenario() -> None:
        async with AsyncProducer(settings) as producer:
            bad, good = [await producer.submit("acme/triage", {"ticket": t}) for t in ("x", "y")]
            other = await producer.submit("globex/tags", {"ticket": "z"})
            waits = [asyncio.create_task(job.result(30)) for job in (good, other)]
            own = asyncio.create_task(bad.result(30))
            async with asyncio.timeout(10):
                while len(producer._watcher._waits) < 3:  # noqa: ASYNC110 - nobody tells of it
                    await asyncio.sleep(0.01)
            _damage(client, bad.id, how)
            with pytest.raises((CodecError, KeyDamaged)):
                await own
            among = producer.as_completed([bad, good, other], timeout=30)
            assert await anext(among) == bad
            with Answering(settings), Answering(settings, "globex"):
                assert {job.id async for job in among} == {good.id, other.id}
                assert [(await wait).text for wait in waits] == ["echo: y", "echo: z"]

    asyncio.run(scenario())


def test_any_deadline_leaves_a_stream_that_expires(client: Client, settings: Settings) -> None:
    """One that a producer wrote far beyond what Redis can count; and of another type of key in a
    stream's place no other stream hears.
    """
    streams = AnswerStreams(RedisJobStore(client, settings), settings)
    ref = VersionRef(tenant="acme", template="triage", version=1, digest="d" * 64)
    far, good = (
        Job(id=new_job_id("acme"), ref=ref, variables={}, stream=True, deadline_at=deadline_at)
        for deadline_at in (9e60, 60.0)
    )
    bad = replace(good, id=new_job_id("acme"))
    client.set(keys.pieces(bad.id), b"x")
    with ExitStack() as stack:
        for job in (far, bad, good):
            stream = stack.enter_context(streams.open(job))
            assert stream is not None
            stream.begin((), lambda ids: "a" * len(ids))(1)
        assert streams.flush()
        assert [stream.job for stream in streams._open.values()] == [far, good]
    for job in (far, good):
        assert client.xlen(keys.pieces(job.id)) == 1
        assert client.pttl(keys.pieces(job.id)) > 0
