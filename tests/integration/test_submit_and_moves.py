"""Which version a job gets while labels and rollouts move: one that was allowed at that moment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from contract import keys, records
from contract.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PrefillqError,
    TemplateMoved,
)
from contract.redis_client import Client
from contract.settings import Settings
from contract.types import JobState
from producer import Producer
from producer.cli import main
from producer.handle import JobHandle
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from templates.rollouts.rollout import Phase, Rollout
from tests.support.answering import Answering
from tests.support.published import COMPILED, MODEL, make_spec
from tests.support.rollouts import make_plan

HERE = ("acme", "triage")
TICKET = {"ticket": "refund?"}
# Takes more than the first version does.
WIDER = {
    "type": "object",
    "properties": {"ticket": {"type": "string"}, "customer": {"type": "string"}},
    "required": ["ticket"],
    "additionalProperties": False,
}
# Takes nothing that the first version does.
OTHER = {
    "type": "object",
    "properties": {"ticket": {"type": "integer"}},
    "required": ["ticket"],
}


@pytest.fixture(autouse=True)
def published(registry: Registry) -> Registry:
    """acme/triage with three versions; production is the first."""
    registry.publish(make_spec(), COMPILED, MODEL)
    registry.publish(make_spec(text="Two: ", schema=WIDER), COMPILED, MODEL)
    registry.publish(make_spec(text="Three: ", schema=OTHER), COMPILED, MODEL)
    return registry


@pytest.fixture
def rollouts(registry: Registry) -> Rollouts:
    return Rollouts(registry)


def lead(rollouts: Rollouts, weight: int, **plan: Any) -> Rollout:
    """A rollout whose first step has this weight and holds."""
    steps = (weight,) if weight == 10_000 else (weight, 10_000)
    rollout = rollouts.start(*HERE, make_plan(steps=steps, **plan))
    for phase, step in ((Phase.WARMING, -1), (Phase.BAKING, 0)):
        rollout = rollouts.advance(*HERE, expect=rollout, phase=phase, step=step, findings=())
    return rollout


def version_of(handle: JobHandle) -> int:
    return handle.view().job.ref.version


class Meanwhile:
    """Does something right after a producer has read where an address points, once a call."""

    def __init__(self, producer: Producer, *acts: Callable[[], object]) -> None:
        versions: Any = producer._parts.versions
        self.targets = 0
        self._acts, self._target = list(acts), versions.target
        versions.target = self

    def __call__(self, address: Any) -> Any:
        target = self._target(address)
        self.targets += 1
        if self._acts:
            self._acts.pop(0)()
        return target


# --- who gets which


def test_jobs_are_split_by_sticky_key(producer: Producer, rollouts: Rollouts) -> None:
    """One key, one version; the share is the step's; records know the rollout."""
    rollout = lead(rollouts, 5000)
    names = [f"customer-{n}" for n in range(300)]
    jobs = producer.submit_many("acme/triage", [TICKET] * 300, sticky_keys=names)
    seen = {}
    for name, job in zip(names, jobs, strict=True):
        view = job.view()
        seen[name] = view.job.ref.version
        assert seen[name] == rollout.version_for("acme", name)
        assert view.job.rollout == rollout.id
    assert 100 < Counter(seen.values())[2] < 200
    again = [producer.submit("acme/triage", TICKET, sticky_key=name) for name in names[:20]]
    assert [version_of(job) for job in again] == [seen[name] for name in names[:20]]


def test_the_variable_decides_where_no_key_is_given(producer: Producer, rollouts: Rollouts) -> None:
    """A caller's own key goes before it; without either it is the job's id."""
    rollout = lead(rollouts, 5000, sticky_key="ticket")
    for n in range(20):
        job = producer.submit("acme/triage", {"ticket": f"t{n}"})
        assert version_of(job) == rollout.version_for("acme", f"t{n}")
        job = producer.submit("acme/triage", {"ticket": f"t{n}"}, sticky_key="fixed")
        assert version_of(job) == rollout.version_for("acme", "fixed")
    rollouts.abort(*HERE)
    rollout = lead(rollouts, 5000)
    for job in producer.submit_many("acme/triage", [TICKET] * 40):
        assert version_of(job) == rollout.version_for("acme", job.id)


def test_who_names_a_version_or_another_label_is_not_split(
    producer: Producer, rollouts: Rollouts, registry: Registry
) -> None:
    """Nor do such jobs say anything of the rollout."""
    registry.set_label(*HERE, "other", 1)
    lead(rollouts, 10_000)
    for address, version in (("@1", 1), ("@2", 2), ("@other", 1), ("@production", 2), ("", 2)):
        job = producer.submit(f"acme/triage{address}", TICKET).view().job
        assert job.ref.version == version
        assert bool(job.rollout) == (address in ("", "@production"))


def test_weights_hold_before_the_first_step_and_while_paused(
    producer: Producer, rollouts: Rollouts
) -> None:
    """Gates and warming give it no job."""
    begun = rollouts.start(*HERE, make_plan(steps=(10_000,)))
    assert version_of(producer.submit("acme/triage", TICKET)) == 1
    rollouts.advance(*HERE, expect=begun, phase=Phase.WARMING, step=-1, findings=())
    assert version_of(producer.submit("acme/triage", TICKET)) == 1
    rollouts.abort(*HERE)
    lead(rollouts, 10_000)
    rollouts.pause(*HERE)
    assert version_of(producer.submit("acme/triage", TICKET)) == 2


def test_variables_are_checked_against_the_version_that_they_get(
    producer: Producer, rollouts: Rollouts, client: Any
) -> None:
    """What only the new version takes is refused to whom the old one gets, and the other way."""
    rollout = lead(rollouts, 5000)
    by_version = {rollout.version_for("acme", f"k{n}"): f"k{n}" for n in range(50)}
    wide = {"ticket": "x", "customer": "c"}
    assert producer.submit("acme/triage", wide, sticky_key=by_version[2])
    with pytest.raises(InvalidInput, match=r"acme/triage@1"):
        producer.submit("acme/triage", wide, sticky_key=by_version[1])
    before = sorted(client.keys("*"))
    with pytest.raises(InvalidInput, match="item 1: "):
        producer.submit_many("acme/triage", [wide] * 2, sticky_keys=[by_version[2], by_version[1]])
    assert sorted(client.keys("*")) == before


@pytest.mark.parametrize("key", ["", "x" * 500, "\ud800", 7])
def test_a_sticky_key_that_cannot_be_used_is_refused(producer: Producer, key: Any) -> None:
    """Also without a rollout: it would fail later."""
    with pytest.raises(InvalidInput, match="sticky key"):
        producer.submit("acme/triage", TICKET, sticky_key=key)
    with pytest.raises(InvalidInput, match="one for each"):
        producer.submit_many("acme/triage", [TICKET], sticky_keys=["a", "b"])


# --- a move between looking and writing


def test_a_label_that_moves_meanwhile(producer: Producer, registry: Registry, client: Any) -> None:
    """The record is refused and chosen anew; there is one record, and no trace of the first."""
    meanwhile = Meanwhile(producer, lambda: registry.set_label(*HERE, "production", 2))
    job = producer.submit("acme/triage", TICKET)
    assert (version_of(job), meanwhile.targets) == (2, 2)
    assert len(client.keys("pq:acme:job:*")) == 1
    assert client.hget(keys.job(job.id), "revision") == client.get(keys.revision(*HERE))


class Interrupted:
    """A client whose next pipeline stops after its first command and does something first."""

    def __init__(self, client: Any, act: Callable[[], object]) -> None:
        self._client, self._act = client, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def pipeline(self, **options: Any) -> Any:
        self.pipeline = self._client.pipeline  # type: ignore[method-assign]
        pipe = self._client.pipeline(**options)
        execute = pipe.execute

        def in_two(**how: bool) -> list[Any]:
            first, *rest = pipe.command_stack
            pipe.command_stack = [first]
            replies = execute(**how)
            self._act()
            pipe.command_stack = rest
            return [*replies, *execute(**how)]

        pipe.execute = in_two
        return pipe


def test_a_label_that_moves_while_it_is_read(
    producer: Producer, registry: Registry, client: Any
) -> None:
    """The revision is read first: with an old one the new label is refused, not the other way."""
    versions: Any = producer._parts.versions
    server = versions._lookup._server
    real = server._client
    server._client = Interrupted(real, lambda: registry.set_label(*HERE, "production", 2))
    assert version_of(producer.submit("acme/triage", TICKET)) == 2
    server._client = Interrupted(real, lambda: registry.remove_label(*HERE, "production"))
    with pytest.raises(NotFound):
        producer.submit("acme/triage", TICKET)
    assert len(client.keys("pq:acme:job:*")) == 1


def test_a_sight_is_of_one_moment(registry: Registry, client: Any) -> None:
    """What moves while it is read is read again."""
    real = registry._client
    other: Any = Registry(client, registry._settings)
    registry._client = Interrupted(real, lambda: other.set_label(*HERE, "production", 2))
    state = registry.sight(*HERE).state
    assert (state.labels["production"], state.revision) == (2, 4)


def test_a_label_that_is_removed_meanwhile(
    producer: Producer, registry: Registry, client: Any
) -> None:
    """Removing takes effect at once: no job is written after it, also not half-way through."""
    Meanwhile(producer, lambda: registry.remove_label(*HERE, "production"))
    with pytest.raises(NotFound, match="versions 1 to 3"):
        producer.submit("acme/triage", TICKET)
    assert client.keys("pq:acme:job:*") == []
    with pytest.raises(NotFound):
        producer.submit("acme/triage", TICKET)


@pytest.mark.parametrize(
    ("end", "version"), [("promote", 2), ("abort", 1)], ids=["promote", "abort"]
)
def test_a_rollout_that_ends_meanwhile(
    producer: Producer, rollouts: Rollouts, end: str, version: int
) -> None:
    """No job of it is written afterwards."""
    lead(rollouts, 10_000)
    Meanwhile(producer, lambda: getattr(rollouts, end)(*HERE))
    job = producer.submit("acme/triage", TICKET).view().job
    assert (job.ref.version, job.rollout) == (version, "")


def test_a_rollout_that_goes_on_meanwhile(producer: Producer, rollouts: Rollouts) -> None:
    """The share is the new step's."""
    rollout = rollouts.start(*HERE, make_plan(steps=(10_000,)))
    rollout = rollouts.advance(*HERE, expect=rollout, phase=Phase.WARMING, step=-1, findings=())
    Meanwhile(
        producer,
        lambda: rollouts.advance(*HERE, expect=rollout, phase=Phase.BAKING, step=0, findings=()),
    )
    assert version_of(producer.submit("acme/triage", TICKET)) == 2


def test_findings_alone_refuse_nobody(producer: Producer, rollouts: Rollouts) -> None:
    """They are no move."""
    rollout = lead(rollouts, 10_000)
    meanwhile = Meanwhile(producer, lambda: rollouts.note(*HERE, expect=rollout, findings=()))
    producer.submit("acme/triage", TICKET)
    assert meanwhile.targets == 1


def test_a_pinned_version_that_is_retired_meanwhile(
    producer: Producer, registry: Registry, client: Any
) -> None:
    """Refused as one that was retired before; other moves do not concern who names a number."""
    meanwhile = Meanwhile(producer, lambda: registry.set_label(*HERE, "production", 3))
    assert version_of(producer.submit("acme/triage@2", TICKET)) == 2
    assert meanwhile.targets == 1
    client.delete(*client.keys("pq:acme:job:*"))
    Meanwhile(producer, lambda: registry.retire(*HERE, 2))
    with pytest.raises(NotFound, match="retired and takes no new jobs"):
        producer.submit("acme/triage@2", TICKET)
    assert client.keys("pq:acme:job:*") == []
    with pytest.raises(NotFound, match="retired"):
        producer.submit("acme/triage@2", TICKET)
    registry.retire(*HERE, 2, undo=True)
    assert version_of(producer.submit("acme/triage@2", TICKET)) == 2


def test_many_jobs_with_a_move_in_the_midst(
    producer: Producer, registry: Registry, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those written before it keep their version, the others get theirs anew; all are rung for."""
    store: Any = producer._parts.store
    submit_many, moved = store.submit_many, []

    def in_halves(submissions: Any) -> Any:
        half = len(submissions) // 2
        first = submit_many(submissions[:half])
        if not moved:
            moved.append(registry.set_label(*HERE, "production", 2))
        return first + submit_many(submissions[half:])

    monkeypatch.setattr(store, "submit_many", in_halves)
    jobs = producer.submit_many("acme/triage", [TICKET] * 10)
    assert [version_of(job) for job in jobs] == [1] * 5 + [2] * 5
    queue = keys.BROKER_PREFIX + keys.queue(*HERE, MODEL.model_digest)
    assert client.llen(queue) == 10


def test_a_move_that_makes_the_rest_impossible_takes_all_back(
    producer: Producer, registry: Registry, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All or none, as with any other refusal."""
    store: Any = producer._parts.store
    submit_many, moved = store.submit_many, []

    def in_halves(submissions: Any) -> Any:
        first = submit_many(submissions[:1])
        if not moved:
            moved.append(registry.set_label(*HERE, "production", 3))
        return first + submit_many(submissions[1:])

    monkeypatch.setattr(store, "submit_many", in_halves)
    with pytest.raises(InvalidInput, match=r"item 1: .*"):
        producer.submit_many("acme/triage", [TICKET] * 3)
    assert client.keys("pq:acme:job:*") == []
    assert client.zcard(keys.queued("acme")) == 0


def test_a_template_that_never_rests_is_a_conflict(
    producer: Producer, registry: Registry, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded: the caller is told, and nothing was enqueued."""
    monkeypatch.setattr("producer.enqueue._TRIES", 3)
    acts = [lambda n=n: registry.set_label(*HERE, "other", n % 3 + 1) for n in range(3)]
    meanwhile = Meanwhile(producer, *acts)
    with pytest.raises(TemplateMoved, match="Submit again") as caught:
        producer.submit("acme/triage", TICKET)
    assert (caught.value.exit_code, meanwhile.targets) == (7, 3)
    assert client.keys("pq:acme:job:*") == []


@pytest.mark.unrestricted("Redis holds the functions as they are; this breaks one")
@pytest.mark.parametrize("part", ["if revision ~= ARGV[9]", "elseif redis.call('HGET', template"])
def test_without_the_check_a_stale_version_is_written(
    settings: Settings, registry: Registry, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Fault: the script writes what was chosen on an old sight."""
    source = records.script_source
    broken = source("submit").replace(part, part.replace("if ", "if false and ", 1))
    assert broken != source("submit")
    monkeypatch.setattr(
        records, "script_source", lambda name: broken if name == "submit" else source(name)
    )
    with Producer(settings) as producer:
        if "revision" in part:
            Meanwhile(producer, lambda: registry.set_label(*HERE, "production", 2))
            assert version_of(producer.submit("acme/triage", TICKET)) == 1
        else:
            Meanwhile(producer, lambda: registry.retire(*HERE, 2))
            assert version_of(producer.submit("acme/triage@2", TICKET)) == 2


# --- the same key again


Change = Callable[[Registry], object]
CHANGES: dict[str, Change] = {
    "moved": lambda r: r.set_label(*HERE, "production", 2),
    "moved to another schema": lambda r: r.set_label(*HERE, "production", 3),
    "removed": lambda r: r.remove_label(*HERE, "production"),
    "in a rollout": lambda r: lead(Rollouts(r), 10_000),
    "in a rollout that cannot be read": lambda r: r._client.set(keys.rollout(*HERE), "{"),
    "in a rollout to another schema": lambda r: lead(Rollouts(r), 10_000, canary=3),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_retry_finds_its_job_whatever_the_label_does(
    producer: Producer, registry: Registry, client: Any, change: Change
) -> None:
    """With its version, and rung for again; other input is still a conflict."""
    job = producer.submit("acme/triage", TICKET, idempotency_key="k")
    change(registry)
    assert producer.submit("acme/triage", TICKET, idempotency_key="k") == job
    assert version_of(job) == 1
    assert client.hget(keys.job(job.id), "submits") == b"2"
    queue = keys.BROKER_PREFIX + keys.queue(*HERE, MODEL.model_digest)
    assert client.llen(queue) == 2
    with pytest.raises(PrefillqError) as caught:
        producer.submit("acme/triage", {"ticket": "other"}, idempotency_key="k")
    assert isinstance(caught.value, Conflict)
    assert len(client.keys("pq:acme:job:*")) == 1


def test_a_retry_of_a_pinned_job_finds_it_when_the_version_is_retired(
    producer: Producer, registry: Registry
) -> None:
    """Many at once too; what is new among them is refused, and the old ones stay."""
    one, two = producer.submit_many("acme/triage@2", [TICKET] * 2, idempotency_keys=["a", "b"])
    registry.retire(*HERE, 2)
    again = producer.submit_many("acme/triage@2", [TICKET] * 2, idempotency_keys=["a", "b"])
    assert again == [one, two]
    with pytest.raises(NotFound, match="retired"):
        producer.submit_many("acme/triage@2", [TICKET] * 2, idempotency_keys=["a", "c"])
    assert one.status() is JobState.QUEUED


def test_a_retry_in_a_race_finds_its_job(producer: Producer, registry: Registry) -> None:
    """The label goes between looking and writing."""
    job = producer.submit("acme/triage", TICKET, idempotency_key="k")
    meanwhile = Meanwhile(producer, lambda: registry.remove_label(*HERE, "production"))
    assert producer.submit("acme/triage", TICKET, idempotency_key="k") == job
    assert meanwhile.targets == 1


def test_the_sticky_key_is_part_of_what_was_asked(producer: Producer) -> None:
    """Under one idempotency key it cannot change; jobs without one are found as before."""
    job = producer.submit("acme/triage", TICKET, idempotency_key="k", sticky_key="a")
    assert producer.submit("acme/triage", TICKET, idempotency_key="k", sticky_key="a") == job
    for other in ("b", None):
        with pytest.raises(Conflict):
            producer.submit("acme/triage", TICKET, idempotency_key="k", sticky_key=other)


# --- what is shown


@pytest.fixture
def run(producer_settings: Settings) -> Callable[..., Any]:
    """The command line of a producer."""

    def invoke(*arguments: str) -> Any:
        ran = CliRunner().invoke(main, ["--redis-url", producer_settings.redis_url, *arguments])
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)

    return invoke


def test_a_batch_in_a_rollout(
    producer_settings: Settings, worker_settings: Settings, rollouts: Rollouts, tmp_path: Path
) -> None:
    """Lines with one key get one version, which each result names; without a key it is checked
    first whether a line fits both."""
    rollout = lead(rollouts, 5000)
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    by_version = {rollout.version_for("acme", f"k{n}"): f"k{n}" for n in range(50)}
    lines: list[dict[str, Any]] = [
        {"variables": TICKET, "sticky_key": f"k{n % 5}"} for n in range(20)
    ]
    wide = {"ticket": "x", "customer": "c"}

    def batch(*more: dict[str, Any]) -> Any:
        source.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *more]))
        arguments = ("batch", str(source), "-o", str(out), "--template", "acme/triage", "--json")
        return CliRunner().invoke(main, ["--redis-url", producer_settings.redis_url, *arguments])

    for bad in ({"variables": wide}, {"variables": wide, "sticky_key": by_version[1]}):
        ran = batch(bad)
        assert ran.exit_code == 1
        [told] = json.loads(ran.stdout)["lines"]
        assert (told["line"], "acme/triage@1" in told["remedy"]) == (21, True)
    with Answering(worker_settings):
        ran = batch({"variables": wide, "sticky_key": by_version[2]})
    assert ran.exit_code == 0, ran.output
    results = {r["index"]: r for r in map(json.loads, out.read_text().splitlines())}
    assert {r["rollout"] for r in results.values()} == {rollout.id}
    assert [results[n]["version"] for n in range(20)] == [
        rollout.version_for("acme", f"k{n % 5}") for n in range(20)
    ]
    assert results[20]["version"] == 2


def test_commands_show_the_rollout_of_a_job(
    run: Callable[..., Any],
    rollouts: Rollouts,
    worker_settings: Settings,
    client: Client,
) -> None:
    """Where the version is shown; null for a job of none."""
    rollout = lead(rollouts, 10_000)
    text = json.dumps(TICKET)
    made = [
        run("submit", address, "--vars", text, "--sticky-key", "c", "--json")["job_id"]
        for address in ("acme/triage", "acme/triage@1")
    ]
    with Answering(worker_settings):
        shown = [run("result", job_id, "--wait", "--json") for job_id in made]
    assert [(s["version"], s["rollout"]) for s in shown] == [(2, rollout.id), (1, None)]
    run("score", made[0], "quality", "0.5", "--json")
    states = [run("status", job_id, "--json") for job_id in made]
    assert [(s["version"], s["rollout"], s["scores"]) for s in states] == [
        (2, rollout.id, {"quality": 0.5}),
        (1, None, {}),
    ]
    stream = keys.outcomes("acme", rollout.id, shown[0]["digest"])
    assert client.xlen(stream) >= 1
