"""Who moves a rollout, when and on what grounds: conductors on a real Redis, pretended gates."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from contract import keys
from contract.codec import pack
from contract.errors import InvalidInput
from contract.redis_client import Client, connect
from contract.settings import Settings
from producer.async_client import AsyncProducer
from producer.client import Producer
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from templates.rollouts.journal import Entry
from templates.rollouts.rollout import Finding, Limits, Outcome, Phase, Plan, Rollout
from templates.version import PublishedVersion
from tests.support.published import COMPILED, MODEL, make_spec
from worker.rollouts.conductor import TRY_AGAIN_S, Conductor
from worker.rollouts.gates import Interrupted
from worker.rollouts.turns import Turns

FEW = Limits(min_samples=3, latency=100.0)
PLAN = Plan(label="production", stable=1, canary=2, steps=(5000, 10_000), bake_s=0.0, limits=FEW)


def finding(outcome: Outcome) -> tuple[Finding, ...]:
    return (Finding(gate="gate", outcome=outcome, message="as told"),)


@dataclass
class PretendedGates:
    """Says what it is told to, and counts how often it is asked."""

    outcome: Outcome = Outcome.PASS
    model_digest: str = MODEL.model_digest
    tried: list[int] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None

    def try_version(
        self,
        canary: PublishedVersion,
        stable: PublishedVersion,  # noqa: ARG002 - as the real ones
        *,
        stopping: Callable[[], bool] = lambda: False,
    ) -> tuple[Finding, ...]:
        self.tried.append(canary.ref.version)
        self.meanwhile()
        if stopping():
            raise Interrupted("left")
        return finding(self.outcome)


@dataclass
class Stage:
    """A template with two versions, and conductors that look at its rollout."""

    client: Any
    worker_client: Any
    settings: Settings
    registry: Registry
    worker_registry: Registry
    rollouts: Rollouts
    refs: list[Any]

    def conductor(self, worker_id: str = "w1", **changes: Any) -> Conductor:
        given: dict[str, Any] = {
            "client": self.worker_client,
            "settings": self.settings,
            "worker_id": worker_id,
            "moves": Rollouts(self.worker_registry),
            "versions": self.worker_registry,
            "gates": PretendedGates(),
            "matches": lambda *_: True,
        }
        return Conductor(**given | changes)

    def report(self, worker_id: str = "w1", *, cached: bool = True, **changes: Any) -> None:
        held = {"digest": self.refs[1].digest, "cached": cached, "parity": "identical"}
        body = {
            "id": worker_id,
            "model_digest": MODEL.model_digest,
            "templates": ["acme/triage"],
            "versions": [held],
            **changes,
        }
        self.client.set(keys.worker(worker_id), pack(body))
        self.client.zadd(keys.WORKERS, {worker_id: time.time()})

    def outcomes(self, rollout: Rollout, number: int, count: int, *, state: str) -> None:
        stream = keys.outcomes("acme", rollout.id, self.refs[number - 1].digest)
        for _ in range(count):
            entry = {"s": state, "c": "hit", "t": "1", "n": "4", "e": ""}
            self.client.xadd(stream, entry)

    def start(self, plan: Plan = PLAN) -> Rollout:
        return self.rollouts.start("acme", "triage", plan)

    def now(self) -> Rollout | None:
        return self.rollouts.get("acme", "triage")

    def place(self) -> tuple[Phase, int] | None:
        rollout = self.now()
        return None if rollout is None else (rollout.phase, rollout.step)

    def at(self, phase: Phase, step: int, plan: Plan = PLAN) -> Rollout:
        """A rollout that came so far."""
        rollout = self.start(plan)
        way = [(Phase.WARMING, -1)]
        for number in range(step + 1):
            way += [(Phase.BAKING, number), (Phase.WARMING, number)]
        for where in way[: way.index((phase, step)) + 1]:
            rollout = self.rollouts.advance(
                "acme", "triage", expect=rollout, phase=where[0], step=where[1], findings=()
            )
        return rollout

    def free(self, rollout: Rollout) -> None:
        """Nobody has had a turn just now."""
        self.client.delete(keys.conductor("acme", rollout.id))

    def last(self) -> Entry:
        return self.rollouts.journal("acme", "triage")[-1]


@pytest.fixture
def stage(
    client: Client,
    registry: Registry,
    worker_client: Client,
    worker_settings: Settings,
) -> Stage:
    refs = [
        registry.publish(make_spec(text=text), COMPILED, MODEL).version.ref
        for text in ("Sort this: ", "Sort that: ")
    ]
    return Stage(
        client=client,
        worker_client=worker_client,
        settings=worker_settings,
        registry=registry,
        worker_registry=Registry(worker_client, worker_settings),
        rollouts=Rollouts(registry),
        refs=refs,
    )


# --- gates


def test_gates_that_pass_begin_the_warming(stage: Stage) -> None:
    """The worker signs the move, and says so in its log, with both digests."""
    stage.start()
    conductor = stage.conductor("w7")
    conductor.look()
    assert stage.place() == (Phase.GATES, -1)
    with capture_logs() as lines:
        conductor.try_versions()
    assert stage.place() == (Phase.WARMING, -1)
    assert (stage.last().who, stage.last().why) == ("w7", "the gates passed")
    [line] = [line for line in lines if line["event"] == "rollout_moved"]
    assert (line["stable_digest"], line["canary_digest"]) == (
        stage.refs[0].digest,
        stage.refs[1].digest,
    )
    assert (line["was"], line["now"], line["weight"]) == ("gates", "warming", 0)


def test_gates_that_fail_end_it(stage: Stage) -> None:
    """The label stays; the reason is in the journal."""
    stage.start()
    conductor = stage.conductor(gates=PretendedGates(outcome=Outcome.FAIL))
    conductor.look()
    conductor.try_versions()
    assert stage.now() is None
    assert (stage.last().action, stage.last().why) == ("abort", "gate: as told")
    assert stage.registry.labels("acme", "triage") == {"production": 1}


def test_gates_that_know_nothing_are_tried_again_later(stage: Stage) -> None:
    """Not by the next worker a second later: trying costs what jobs cost."""
    rollout = stage.start()
    gates = PretendedGates(outcome=Outcome.INCONCLUSIVE)
    pair = [stage.conductor(name, gates=gates) for name in ("w1", "w2")]
    for conductor in (*pair, *pair):
        conductor.look()
        conductor.try_versions()
    assert gates.tried == [2]
    assert stage.place() == (Phase.GATES, -1)
    found = stage.now()
    assert found is not None
    assert found.findings == finding(Outcome.INCONCLUSIVE)
    left_s = stage.client.pttl(keys.conductor("acme", rollout.id)) / 1000
    assert TRY_AGAIN_S - 5 < left_s <= TRY_AGAIN_S
    stage.free(rollout)
    pair[1].try_versions()
    assert gates.tried == [2, 2]


def test_a_paused_rollout_is_not_tried(stage: Stage) -> None:
    """Once it is resumed it is."""
    stage.start()
    stage.rollouts.pause("acme", "triage")
    gates = PretendedGates()
    conductor = stage.conductor(gates=gates)
    conductor.look()
    conductor.try_versions()
    assert not gates.tried
    stage.rollouts.resume("acme", "triage")
    conductor.look()
    conductor.try_versions()
    assert stage.place() == (Phase.WARMING, -1)


@pytest.mark.parametrize("deed", ["abort", "pause", "promote"])
def test_what_people_do_while_the_gates_run_holds(stage: Stage, deed: str) -> None:
    """The gates are left, or what they found is refused."""
    rollout = stage.start()
    gates = PretendedGates(meanwhile=lambda: getattr(stage.rollouts, deed)("acme", "triage"))
    conductor = stage.conductor(gates=gates)
    conductor.look()
    conductor.try_versions()
    assert stage.last().action == deed
    stage.free(rollout)
    conductor.try_versions()  # on what it saw before
    assert gates.tried == [2]
    assert stage.last().action == deed


def test_a_worker_that_ends_leaves_the_gates_to_another(stage: Stage) -> None:
    """At once: nobody waits for its turn to expire."""
    stage.start()
    leaving, draining = [False], PretendedGates(meanwhile=lambda: leaving.__setitem__(0, True))
    first = stage.conductor("w1", gates=draining, draining=lambda: leaving[0])
    first.look()
    first.try_versions()
    assert stage.place() == (Phase.GATES, -1)
    time.sleep(0.01)
    second = stage.conductor("w2")
    second.look()
    second.try_versions()
    assert stage.last().who == "w2"


# --- warming and baking


def test_a_step_waits_for_warm_workers(stage: Stage) -> None:
    """One of two is cold; its findings say so."""
    rollout = stage.at(Phase.WARMING, -1)
    stage.report("w1")
    stage.report("w2", cached=False)
    conductor = stage.conductor()
    conductor.look()
    assert stage.place() == (Phase.WARMING, -1)
    found = stage.now()
    assert found is not None
    assert found.findings[0].message == "1 of 2 workers hold the prefix; 2 are needed"
    stage.report("w2")
    stage.free(rollout)
    conductor.look()
    assert stage.place() == (Phase.BAKING, 0)
    assert stage.last().why == "2 of 2 workers hold the prefix; 2 are needed"


def test_one_look_is_one_move(stage: Stage) -> None:
    """From warming to baking to the next step, however ready it is."""
    stage.report()
    rollout = stage.at(Phase.WARMING, -1)
    conductor = stage.conductor()
    for expected in ((Phase.BAKING, 0), (Phase.WARMING, 0), (Phase.BAKING, 1)):
        conductor.look()
        assert stage.place() == expected
        for number in (1, 2):
            stage.outcomes(rollout, number, 3, state="succeeded")
        stage.free(rollout)


def test_jobs_from_before_the_step_do_not_count(stage: Stage) -> None:
    """A hundred good ones of the step before, and none since: inconclusive."""
    rollout = stage.at(Phase.WARMING, 0)
    for number in (1, 2):
        stage.outcomes(rollout, number, 100, state="succeeded")
    time.sleep(0.01)
    stage.report()
    conductor = stage.conductor()
    conductor.look()
    assert stage.place() == (Phase.BAKING, 1)
    stage.free(rollout)
    conductor.look()
    found = stage.now()
    assert found is not None
    assert {item.outcome for item in found.findings} == {Outcome.INCONCLUSIVE}
    # All jobs are the canary's: the stable version is judged by those it had.
    stage.outcomes(rollout, 2, 3, state="succeeded")
    stage.free(rollout)
    conductor.look()
    assert (stage.now(), stage.last().action) == (None, "promote")
    assert "canary 0.00% of 3, stable 0.00% of 100" in stage.last().why


def test_what_a_stable_version_had_beside_the_gates_says_nothing_later(stage: Stage) -> None:
    """Their load made its jobs slow: it is judged by those that it had since the first step."""
    rollout = stage.start()
    stage.outcomes(rollout, 1, 100, state="failed")
    time.sleep(0.01)
    for phase, step in ((Phase.WARMING, -1), (Phase.BAKING, 0)):
        rollout = stage.rollouts.advance(
            "acme", "triage", expect=rollout, phase=phase, step=step, findings=()
        )
    stage.outcomes(rollout, 1, 40, state="succeeded")
    for phase, step in ((Phase.WARMING, 0), (Phase.BAKING, 1)):
        rollout = stage.rollouts.advance(
            "acme", "triage", expect=rollout, phase=phase, step=step, findings=()
        )
    stage.outcomes(rollout, 2, 3, state="succeeded")
    stage.report()
    stage.conductor().look()
    assert "failed jobs: canary 0.00% of 3, stable 0.00% of 40" in stage.last().why


def test_a_first_step_of_all_jobs_waits_for_what_to_compare_with(stage: Stage) -> None:
    """Enough jobs of the stable version since the gates passed, which then count."""
    rollout = stage.start(replace(PLAN, steps=(10_000,)))
    stage.outcomes(rollout, 1, 100, state="failed")
    time.sleep(0.01)
    stage.rollouts.advance(
        "acme", "triage", expect=rollout, phase=Phase.WARMING, step=-1, findings=()
    )
    stage.report()
    conductor = stage.conductor()
    stage.outcomes(rollout, 1, 2, state="succeeded")
    conductor.look()
    found = stage.now()
    assert found is not None
    assert (found.phase, found.step) == (Phase.WARMING, -1)
    assert found.findings[1].gate == "stable_jobs"
    assert found.findings[1].message.startswith("stable: jobs 2; 3 are needed")
    stage.outcomes(rollout, 1, 1, state="succeeded")
    stage.free(rollout)
    conductor.look()
    assert stage.place() == (Phase.BAKING, 0)
    stage.outcomes(rollout, 2, 3, state="succeeded")
    conductor.look()
    assert "failed jobs: canary 0.00% of 3, stable 0.00% of 3;" in stage.last().why


def test_what_is_compared_with_does_not_expire_meanwhile(stage: Stage) -> None:
    """A stable version without jobs adds nothing to its stream, however long the step bakes."""
    rollout = stage.at(Phase.BAKING, 1, replace(PLAN, bake_s=3600.0))
    stage.outcomes(rollout, 1, 3, state="succeeded")
    stream = keys.outcomes("acme", rollout.id, stage.refs[0].digest)
    stage.client.pexpire(stream, 60_000)
    stage.report()
    stage.conductor().look()
    assert stage.client.pttl(stream) == pytest.approx(7 * 86_400_000, rel=0.01)


def test_a_stable_version_with_a_share_is_judged_by_the_same_time(stage: Stage) -> None:
    """Its jobs from before the step began do not stand in for those that are missing."""
    plan = replace(PLAN, steps=(1000, 9000))
    rollout = stage.at(Phase.WARMING, 0, plan)
    stage.outcomes(rollout, 1, 100, state="succeeded")
    time.sleep(0.01)
    stage.report()
    conductor = stage.conductor()
    conductor.look()
    stage.outcomes(rollout, 2, 5, state="succeeded")
    stage.free(rollout)
    conductor.look()
    assert stage.place() == (Phase.BAKING, 1)


def test_more_jobs_than_are_read_are_compared_over_the_same_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The canary's jobs from before the stable version's that are read say nothing, good or bad,
    and do not stand in for those that are missing since.
    """
    monkeypatch.setattr("templates.rollouts.outcomes.MAX_READ", 250)
    rollout = stage.at(Phase.BAKING, 0)
    stage.report()
    stage.outcomes(rollout, 2, 50, state="failed")
    time.sleep(0.01)
    stage.outcomes(rollout, 1, 300, state="succeeded")
    stage.outcomes(rollout, 2, 2, state="succeeded")
    conductor = stage.conductor()
    conductor.look()
    found = stage.now()
    assert found is not None
    assert {item.outcome for item in found.findings} == {Outcome.INCONCLUSIVE}
    assert "canary 2, stable 250" in found.findings[0].message
    stage.outcomes(rollout, 2, 1, state="succeeded")
    stage.free(rollout)
    conductor.look()
    assert stage.place() == (Phase.WARMING, 0)


@pytest.mark.parametrize("phase", [Phase.BAKING, Phase.WARMING])
def test_failing_jobs_end_it_at_once(stage: Stage, phase: Phase) -> None:
    """Long before the bake is over, also while the next step's workers warm up."""
    rollout = stage.at(phase, 0, replace(PLAN, bake_s=3600.0))
    stage.outcomes(rollout, 1, 10, state="succeeded")
    stage.outcomes(rollout, 2, 10, state="failed")
    stage.report(cached=False)
    stage.conductor().look()
    assert stage.now() is None
    assert stage.last().why.startswith("failures: failed jobs: canary 100.00% of 10, stable 0.00%")


def test_it_bakes_for_as_long_as_the_plan_says(stage: Stage) -> None:
    """However good its jobs are."""
    rollout = stage.at(Phase.BAKING, 0, replace(PLAN, bake_s=3600.0))
    for number in (1, 2):
        stage.outcomes(rollout, number, 50, state="succeeded")
    stage.conductor().look()
    assert stage.place() == (Phase.BAKING, 0)
    found = stage.now()
    assert found is not None
    assert {item.outcome for item in found.findings} == {Outcome.PASS}


def test_findings_that_are_the_same_are_not_written_again(stage: Stage) -> None:
    """Most looks find what the one before found."""
    rollout = stage.at(Phase.BAKING, 0, replace(PLAN, bake_s=3600.0))
    written: list[int] = []

    class Counted(Rollouts):
        def note(self, *place: str, **terms: Any) -> Rollout | None:
            written.append(1)
            return super().note(*place, **terms)

    conductor = stage.conductor(moves=Counted(stage.worker_registry))
    for _ in range(3):
        conductor.look()
        stage.free(rollout)
    assert written == [1]


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_canary_that_refuses_what_is_submitted_is_taken_back(
    stage: Stage, producer_settings: Settings, kind: str
) -> None:
    """Its schema takes fewer tickets: none of those ever is a job of it, and it fails."""
    narrow = make_spec(
        text="Sort these: ",
        schema={
            "type": "object",
            "properties": {"ticket": {"type": "string", "enum": ["refund?"]}},
            "required": ["ticket"],
        },
    )
    stage.refs.append(stage.registry.publish(narrow, COMPILED, MODEL).version.ref)
    rollout = stage.at(Phase.BAKING, 0, replace(PLAN, canary=3, bake_s=3600.0))
    stage.outcomes(rollout, 1, 20, state="succeeded")
    stage.outcomes(rollout, 3, 5, state="succeeded")
    given = [("acme/triage", {"ticket": f"parcel {n}?"}) for n in range(40)]
    refused = 0
    if kind == "blocking":
        with Producer(producer_settings) as producer:
            for job in given:
                try:
                    producer.submit(*job)
                except InvalidInput:
                    refused += 1
    else:

        async def submit_all() -> int:
            async with AsyncProducer(producer_settings) as producer:
                calls = [producer.submit(*job) for job in given]
                ends = await asyncio.gather(*calls, return_exceptions=True)
            return sum(isinstance(end, InvalidInput) for end in ends)

        refused = asyncio.run(submit_all())
    assert refused > 5
    stream = keys.outcomes("acme", rollout.id, stage.refs[2].digest)
    assert stage.client.xlen(stream) == 5 + refused
    assert 0 < stage.client.pttl(stream) <= 7 * 86_400_000
    held = {"digest": stage.refs[2].digest, "cached": True, "parity": "identical"}
    stage.report(versions=[held])
    stage.conductor().look()
    assert (stage.now(), stage.last().action) == (None, "abort")
    assert stage.last().why.startswith(
        f"failures: failed jobs: canary {refused / (refused + 5):.2%}"
    )


# --- many workers, and odd ones


def test_many_conductors_make_each_move_once(stage: Stage, worker_settings: Settings) -> None:
    """Eight that look as fast as they can, without taking turns: the journal has no move twice."""
    stage.report()
    rollout = stage.start()
    for number in (1, 2):
        stage.outcomes(rollout, number, 5, state="succeeded")
    over = threading.Event()

    def look_again_and_again(number: int) -> None:
        with connect(worker_settings) as client:
            registry = Registry(client, worker_settings)
            conductor = stage.conductor(
                f"w{number}", client=client, versions=registry, moves=Rollouts(registry)
            )
            while not over.is_set():
                stage.free(rollout)
                conductor.look()
                conductor.try_versions()

    threads = [threading.Thread(target=look_again_and_again, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + 30
    while stage.now() is not None and time.monotonic() < ends:
        for number in (1, 2):
            stage.outcomes(rollout, number, 3, state="succeeded")
        time.sleep(0.05)
    over.set()
    for thread in threads:
        thread.join(10)
    assert [(entry.action, entry.now) for entry in stage.rollouts.journal("acme", "triage")] == [
        ("publish", "1"),
        ("publish", "2"),
        ("start", "2"),
        ("phase", "warming"),
        ("step", "50 %"),
        ("phase", "warming"),
        ("step", "100 %"),
        ("promote", "production=2"),
    ]


def test_only_workers_that_serve_the_canary_move_it(stage: Stage) -> None:
    """Not those of other weights, nor those that were started for other templates."""
    stage.at(Phase.WARMING, -1)
    stage.report("w9")
    others = [
        stage.conductor("w1", gates=PretendedGates(model_digest="f" * 64)),
        stage.conductor("w2", matches=lambda *_: False),
    ]
    for conductor in others:
        conductor.look()
        assert conductor.canaries() == []
    assert stage.place() == (Phase.WARMING, -1)
    ours = stage.conductor("w9")
    ours.look()
    assert stage.place() == (Phase.BAKING, 0)
    ours.look()
    assert [version.ref for version in ours.canaries()] == [stage.refs[1]]


def test_a_canary_that_nobody_serves_is_told_by_those_who_live(stage: Stage) -> None:
    """Workers of other weights say so, in every phase."""
    for phase, step in ((Phase.GATES, None), (Phase.BAKING, 0)):
        rollout = stage.start() if step is None else stage.at(phase, step)
        stage.report(model_digest="f" * 64)
        stage.conductor(gates=PretendedGates(model_digest="f" * 64)).look()
        found = stage.now()
        assert found is not None
        told = found.findings[0]
        assert (found.phase, told.gate, told.outcome) == (phase, "workers", Outcome.INCONCLUSIVE)
        # While it bakes its jobs are judged all the same.
        assert len(found.findings) == (1 if step is None else 5)
        assert MODEL.model_digest[:12] in told.message
        stage.free(rollout)
        stage.rollouts.abort("acme", "triage")


def test_what_the_gates_found_stays_when_nobody_serves_the_canary(stage: Stage) -> None:
    """Beside who is missing, which is said once."""
    rollout = stage.start()
    stage.rollouts.note("acme", "triage", expect=rollout, findings=finding(Outcome.INCONCLUSIVE))
    conductor = stage.conductor(gates=PretendedGates(model_digest="f" * 64))
    for _ in range(2):
        conductor.look()
        stage.free(rollout)
        found = stage.now()
        assert found is not None
        assert [item.gate for item in found.findings] == ["workers", "gate"]


@pytest.mark.parametrize(("bake_s", "longest"), [(30.0, 60.0), (6000.0, 600.0)])
@pytest.mark.parametrize("phase", [Phase.BAKING, Phase.WARMING])
def test_a_canary_whose_workers_are_gone_is_taken_back(
    stage: Stage, phase: Phase, bake_s: float, longest: float
) -> None:
    """By a worker that cannot serve it: not at once, and not when one comes back meanwhile."""
    rollout = stage.at(phase, 0, replace(PLAN, bake_s=bake_s))
    now = [1000.0]
    conductor = stage.conductor(gates=PretendedGates(model_digest="f" * 64), clock=lambda: now[0])

    def look(after: float) -> None:
        now[0] += after
        conductor.look()
        stage.free(rollout)

    look(0)
    look(longest - 1)
    stage.report()
    look(1)  # it is served again
    stage.client.delete(keys.worker("w1"))
    look(1)
    look(longest - 1)
    assert stage.place() == (phase, 0)
    look(2)
    assert (stage.now(), stage.last().action) == (None, "abort")
    assert stage.last().why.startswith("workers: nobody serves it: no live worker serves version 2")


def test_a_canary_without_workers_or_jobs_waits(stage: Stage) -> None:
    """And so does one that is paused, whose findings say what is wrong."""
    now = [1000.0]
    conductor = stage.conductor(gates=PretendedGates(model_digest="f" * 64), clock=lambda: now[0])
    rollout = stage.at(Phase.WARMING, -1)
    for _ in range(2):
        conductor.look()
        stage.free(rollout)
        now[0] += 10_000
    assert stage.place() == (Phase.WARMING, -1)
    stage.rollouts.abort("acme", "triage")
    rollout = stage.at(Phase.BAKING, 0)
    stage.rollouts.pause("acme", "triage")
    for _ in range(2):
        conductor.look()
        stage.free(rollout)
        now[0] += 10_000
    found = stage.now()
    assert found is not None
    assert found.findings[0].outcome is Outcome.FAIL


def test_failing_jobs_end_it_also_when_nobody_serves_it(stage: Stage) -> None:
    """Those that its workers left behind."""
    rollout = stage.at(Phase.BAKING, 0)
    stage.outcomes(rollout, 1, 10, state="succeeded")
    stage.outcomes(rollout, 2, 10, state="expired")
    stage.conductor(gates=PretendedGates(model_digest="f" * 64)).look()
    assert stage.last().why.startswith("failures: failed jobs: canary 100.00% of 10")


def test_a_worker_that_drains_moves_nothing(stage: Stage) -> None:
    """It has better things to do."""
    stage.at(Phase.WARMING, -1)
    stage.report()
    stage.conductor(draining=lambda: True).look()
    assert stage.place() == (Phase.WARMING, -1)


def test_a_version_that_cannot_be_read_keeps_no_other_rollout_waiting(stage: Stage) -> None:
    """One template's is damaged, one's cannot be found; the third goes on."""
    for name in ("a-damaged", "b-missing"):
        stage.registry.publish(make_spec(name=name), COMPILED, MODEL)
        stage.registry.publish(make_spec(name=name, text="x "), COMPILED, MODEL)
        stage.rollouts.start("acme", name, PLAN)
    digest = stage.client.hget(keys.versions("acme", "a-damaged"), "2").decode()
    stage.client.set(keys.version("acme", "a-damaged", digest), b"\xc1")
    stage.client.hdel(keys.versions("acme", "b-missing"), "2")
    stage.at(Phase.WARMING, -1)
    stage.report()
    conductor = stage.conductor()
    with capture_logs() as lines:
        conductor.look()
        conductor.try_versions()
        conductor.canaries()
    assert stage.place() == (Phase.BAKING, 0)
    told = {line["template"] for line in lines if line["event"] == "rollout_not_looked_at"}
    assert told == {"a-damaged", "b-missing"}


def test_a_crash_at_one_rollout_keeps_no_other_waiting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is."""
    stage.registry.publish(make_spec(name="aaa"), COMPILED, MODEL)
    stage.registry.publish(make_spec(name="aaa", text="x "), COMPILED, MODEL)
    stage.rollouts.start("acme", "aaa", PLAN)
    stage.start()
    gates = PretendedGates()
    conductor = stage.conductor(gates=gates)
    conductor.look()
    crashes = iter([True, False])

    def crash() -> None:
        if next(crashes):
            raise ZeroDivisionError

    gates.meanwhile = crash
    conductor.try_versions()
    assert gates.tried == [2, 2]
    assert stage.place() == (Phase.WARMING, -1)


def test_tenants_take_turns_at_the_gates(stage: Stage) -> None:
    """Twenty rollouts of one tenant hold up no other's: its first comes after one of theirs."""
    for number in range(20):
        for text in ("a ", "b "):
            spec = make_spec(name=f"many-{number}", text=text)
            stage.registry.publish(spec, COMPILED, MODEL)
        stage.rollouts.start("acme", f"many-{number}", PLAN)
    for text in ("a ", "b ", "c "):
        stage.registry.publish(make_spec("globex", "one", text=text), COMPILED, MODEL)
    stage.client.sadd(keys.TENANTS, "globex")
    stage.rollouts.start("globex", "one", replace(PLAN, canary=3))
    gates = PretendedGates()
    conductor = stage.conductor(gates=gates)
    conductor.look()
    conductor.try_versions()
    assert sorted(gates.tried) == [*[2] * 20, 3]
    assert gates.tried.index(3) == 1


# --- turns


@pytest.fixture
def turns(worker_client: Client, worker_settings: Settings) -> Callable[[str], Turns]:
    def make(worker_id: str) -> Turns:
        return Turns(worker_client, worker_settings, worker_id)

    return make


def test_a_turn_is_one_workers_and_then_nobodys_for_a_while(
    client: Any, turns: Callable[[str], Turns]
) -> None:
    """Others are refused while it lasts and as long as it said that nobody needs to look."""
    with turns("w1").take("acme", "f" * 16, rest_s=0.3) as mine:
        assert mine is not None
        with turns("w2").take("acme", "f" * 16, rest_s=0.0) as theirs:
            assert theirs is None
        with turns("w2").take("globex", "f" * 16, rest_s=0.0) as elsewhere:
            assert elsewhere is not None
    with turns("w2").take("acme", "f" * 16, rest_s=0.0) as too_early:
        assert too_early is None
    time.sleep(0.35)
    with turns("w2").take("acme", "f" * 16, rest_s=0.0) as then:
        assert then is not None


def test_a_turn_expires_with_its_holder_and_is_renewed_while_it_lives(
    client: Any, worker_client: Client, worker_settings: Settings
) -> None:
    """A lease of 4 s: held for longer than that, and free 4 s after the last renewal."""
    short = worker_settings.model_copy(update={"lease_s": 4.0})
    key = keys.conductor("acme", "f" * 16)
    with Turns(worker_client, short, "w1").take("acme", "f" * 16, rest_s=0.0):
        time.sleep(4.5)
        assert client.get(key) == b"w1"
        assert 2500 < client.pttl(key) <= 4000


def test_a_turn_that_was_lost_is_not_taken_back(client: Any, turns: Callable[[str], Turns]) -> None:
    """It stood still for longer than its lease, and another has the turn now."""
    key = keys.conductor("acme", "f" * 16)
    with turns("w1").take("acme", "f" * 16, rest_s=60.0):
        client.set(key, "w2", px=5000)
    assert client.get(key) == b"w2"
    assert client.pttl(key) <= 5000
