"""`prefillq templates rollout` and `prefillq templates history`, as users run them."""

from __future__ import annotations

import getpass
import socket
import threading
import time
from typing import Any

import pytest

from contract.redis_client import Client
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from templates.rollouts.rollout import Phase
from tests.support.command_line import CommandLine, Ran
from tests.support.published import COMPILED, MODEL, make_spec
from tests.support.rollouts import FINDING, make_plan

HERE = ("acme", "triage")
TEMPLATE = "acme/triage"


@pytest.fixture
def rollouts(command_line: CommandLine, client: Client) -> Rollouts:
    """acme/triage with three versions; production is the first."""
    registry = Registry(client, command_line.settings)
    for text in ("One: ", "Two: ", "Three: "):
        registry.publish(make_spec(text=text), COMPILED, MODEL)
    return Rollouts(registry)


def run(command_line: CommandLine, *arguments: str) -> Ran:
    return command_line.run("templates", "rollout", *arguments)


def shown(ran: Ran) -> Any:
    assert ran.code == 0, ran
    return ran.json


def test_a_rollout_by_hand(command_line: CommandLine, rollouts: Rollouts) -> None:
    """Start with all options, look, pause, resume, promote; the history tells who and why."""
    started = shown(
        run(
            command_line,
            *("start", TEMPLATE, "--to", "2", "--steps", "0.5,10%,100", "--bake", "90s"),
            *("--sticky-key", "ticket", "--shadow", "5%", "--warm-workers", "50%"),
            *("--min-samples", "7", "--max-failures", "1%", "--max-fallbacks", "3%"),
            *("--max-latency", "2", "--max-length-drift", "40%", "--max-drop", "quality=0.05"),
            *("--max-drop", "tone=1", "--who", "ann", "--why", "shorter answers", "--json"),
        )
    )
    rollout = started["rollout"]
    assert rollout["plan"] == {
        "label": "production",
        "stable": 1,
        "canary": 2,
        "steps": [50, 1000, 10_000],
        "bake_s": 90.0,
        "sticky_key": "ticket",
        "shadow": 500,
        "warm_workers": 0.5,
        "limits": {
            "min_samples": 7,
            "failures": 0.01,
            "fallbacks": 0.03,
            "latency": 2.0,
            "length": 0.4,
            "scores": {"quality": 0.05, "tone": 1.0},
        },
    }
    assert (rollout["phase"], rollout["weight"], started["action"]) == ("gates", 0, "begun")
    status = shown(run(command_line, "status", TEMPLATE, "--json"))
    assert status["rollout"] == rollout
    assert [(v["role"], v["version"], v["jobs"]) for v in status["versions"]] == [
        ("stable", 1, 0),
        ("canary", 2, 0),
    ]
    assert shown(run(command_line, "pause", TEMPLATE, "--json"))["rollout"]["paused"]
    assert not shown(run(command_line, "resume", TEMPLATE, "--json"))["rollout"]["paused"]
    assert shown(run(command_line, "promote", TEMPLATE, "--json"))["action"] == "promoted"
    assert rollouts.registry.labels(*HERE) == {"production": 2}
    history = shown(command_line.run("templates", "history", TEMPLATE, "--json"))
    entries = history["entries"]
    assert [entry["action"] for entry in entries] == [
        *("promote", "resume", "pause", "start"),
        *["publish"] * 3,
    ]
    assert (entries[3]["who"], entries[3]["why"]) == ("ann", "shorter answers")
    assert entries[0]["who"] == f"{getpass.getuser()}@{socket.gethostname()}"
    assert (entries[0]["from"], entries[0]["to"]) == ("production=1", "production=2")
    limited = shown(command_line.run("templates", "history", TEMPLATE, "--limit", "2", "--json"))
    assert limited["entries"] == entries[:2]
    assert shown(run(command_line, "status", TEMPLATE, "--json"))["rollout"] is None


def test_what_people_read(command_line: CommandLine, rollouts: Rollouts) -> None:
    """Facts on stdout, talk on stderr."""
    begun = run(command_line, "start", TEMPLATE, "--to", "2")
    assert (begun.code, begun.out) == (0, "")
    assert "version 1 to 2 is begun (gates, 0 % of the jobs)" in begun.err
    rollout = rollouts.get(*HERE)
    for phase, step in ((Phase.WARMING, -1), (Phase.BAKING, 0)):
        assert rollout is not None
        rollout = rollouts.advance(
            *HERE, expect=rollout, phase=phase, step=step, findings=[FINDING]
        )
    lines = run(command_line, "status", TEMPLATE).out.splitlines()
    assert "place: baking, step 1 of 4, 1 % of the jobs" in lines
    assert "gate failures: inconclusive: 3 of 20 jobs" in lines
    assert any(line.startswith("1 stable") for line in lines)
    aborted = run(command_line, "abort", TEMPLATE, "--why", "too long")
    assert "is aborted" in aborted.err
    history = command_line.run("templates", "history", TEMPLATE).out.splitlines()
    assert history[0].split() == ["when", "who", "what", "from", "to", "why"]
    assert "abort" in history[1]
    assert history[1].endswith("too long")
    nothing = run(command_line, "status", TEMPLATE)
    assert (nothing.code, nothing.out) == (0, "")
    assert "has no rollout" in nothing.err


def test_exit_statuses(command_line: CommandLine, rollouts: Rollouts) -> None:
    """4 without a rollout, 7 for what an active one holds."""
    for command in ("promote", "abort", "pause", "resume"):
        ran = run(command_line, command, TEMPLATE, "--json")
        assert (ran.code, ran.json["error"]) == (4, "not_found"), command
    assert run(command_line, "start", TEMPLATE, "--to", "9").code == 4
    assert run(command_line, "start", TEMPLATE, "--to", "1").code == 1
    assert run(command_line, "start", f"{TEMPLATE}@1", "--to", "2").code == 1
    rollouts.start(*HERE, make_plan())
    for arguments in (
        ("templates", "rollout", "start", TEMPLATE, "--to", "3"),
        ("templates", "label", f"{TEMPLATE}@3", "production"),
        ("templates", "label", TEMPLATE, "production", "--remove"),
        ("templates", "retire", f"{TEMPLATE}@2"),
    ):
        ran = command_line.run(*arguments, "--json")
        assert (ran.code, ran.json["error"]) == (7, "conflict"), arguments
        assert "abort" in ran.json["remedy"]


def test_waiting_for_the_end(command_line: CommandLine, rollouts: Rollouts) -> None:
    """0 promoted, 5 aborted, 6 out of time, 4 never begun; also of one that is over already."""
    wait = ("status", TEMPLATE, "--wait", "--json")
    assert run(command_line, *wait).code == 4
    rollouts.start(*HERE, make_plan())
    ran = run(command_line, *wait, "--timeout", "0.5")
    assert (ran.code, ran.json["error"]) == (6, "timed_out")

    waited: list[Ran] = []
    thread = threading.Thread(target=lambda: waited.append(run(command_line, *wait)))
    thread.start()
    time.sleep(2)
    rollouts.abort(*HERE, who="w1", why="failures: 9 % more")
    rollouts.start(*HERE, make_plan(canary=3))  # another, which is not waited for
    thread.join(timeout=30)
    [ran] = waited
    assert (ran.code, ran.json["ended"]) == (5, "aborted")
    assert (ran.json["entry"]["who"], ran.json["entry"]["why"]) == ("w1", "failures: 9 % more")
    assert "gates, 0 % of the jobs" in ran.err
    rollouts.promote(*HERE)
    ran = run(command_line, *wait)
    assert (ran.code, ran.json["ended"]) == (0, "promoted")


def test_labels_and_retiring_are_signed_too(command_line: CommandLine, rollouts: Rollouts) -> None:
    """With the same two options."""
    signature = ("--who", "ann", "--why", "clean-up")
    assert command_line.run("templates", "retire", f"{TEMPLATE}@3", *signature).code == 0
    assert command_line.run("templates", "label", f"{TEMPLATE}@2", "next", *signature).code == 0
    entries = rollouts.journal(*HERE)[-2:]
    assert [(e.action, e.who, e.why) for e in entries] == [
        ("retire", "ann", "clean-up"),
        ("label", "ann", "clean-up"),
    ]
