"""`prefillq templates orphans`, and `rollout compare` without a worker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from contract.redis_client import connect
from templates.registry import Registry
from templates.rollouts.compare import Answered
from templates.rollouts.control import Rollouts
from templates.rollouts.rollout import Plan
from tests.support.command_line import CommandLine
from worker.rollouts.shadow import ShadowQueue

Publish = Callable[..., None]
COMPARE = ("templates", "rollout", "compare")


@pytest.fixture
def two(command_line: CommandLine, notes: Path, publish: Publish) -> CommandLine:
    """acme/notes with two versions."""
    second = notes.with_name("notes.v2.yaml")
    second.write_text(notes.read_text("utf-8").replace("with care", "with great care"), "utf-8")
    publish(notes, second)
    return command_line


def test_orphans_are_listed_with_what_to_do(two: CommandLine) -> None:
    """Until they are retired, or used again."""
    data = two.run("templates", "orphans", "--json").json
    [orphan] = data["orphans"]
    assert (orphan["address"], orphan["newest"], data["jobs_known"]) == ("acme/notes@2", True, True)
    assert orphan["prefix_tokens"] > 16
    assert orphan["age_s"] >= 0
    shown = two.run("templates", "orphans", "acme")
    assert "acme/notes@2" in shown.out
    assert "newest" in shown.out
    assert "'prefillq templates retire VERSION' retires one" in shown.err
    assert two.run("templates", "orphans", "globex", "--json").json["orphans"] == []
    two.run("templates", "retire", "acme/notes@2")
    none = two.run("templates", "orphans")
    assert (none.out, none.err) == ("", "no orphans\n")
    assert two.run("templates", "orphans", "Not a name").code == 1


def _shadowed(command_line: CommandLine, count: int) -> str:
    """A rollout with so many pairs, the last of which differs; its id."""
    settings = command_line.settings
    with connect(settings) as client:
        plan = Plan(label="production", stable=1, canary=2, steps=(100,), bake_s=60.0, shadow=9)
        rollout = Rollouts(Registry(client, settings)).start("acme", "notes", plan)
        queue = ShadowQueue(client, settings)
        for number in range(count):
            stable = Answered(version=1, text="yes", choice="yes", tokens=1, seconds=0.25)
            choice = "no\x1b[31m" if number == count - 1 else "yes"
            canary = Answered(version=2, text=choice, choice=choice, tokens=3, seconds=0.5)
            queue.write("acme", rollout.id, f"acme.{number:032x}", stable, canary)
    return rollout.id


def test_compare_sets_answers_side_by_side(two: CommandLine) -> None:
    """The newest first; counts over all of them, whatever is shown."""
    rollout_id = _shadowed(two, 5)
    data = two.run(*COMPARE, "acme/notes", "--limit", "2", "--json").json
    assert (data["rollout"], data["jobs"], data["equal"]) == (rollout_id, 5, 4)
    assert (data["agreement"], data["failed"]) == (0.8, 0)
    assert data["stable"] == {"tokens": 1.0, "seconds": 0.25}
    assert data["canary"] == {"tokens": 3.0, "seconds": 0.5}
    assert data["changes"] == [{"stable": "yes", "canary": "no\x1b[31m", "jobs": 1}]
    assert [pair["job_id"][-1] for pair in data["pairs"]] == ["4", "3"]
    assert data["pairs"][0]["equal"] is False

    differing = two.run(*COMPARE, "acme/notes", "--differing")
    assert differing.code == 0
    assert differing.out.count("\n") == 2
    assert "yes     no [31m  differs  1/3     0.25/0.50" in differing.out
    assert "\x1b" not in differing.out + differing.err
    assert "4 of 5 answers are equal (80.0%)" in differing.err
    assert "1 x yes became no" in differing.err


def test_compare_of_what_there_is_not(two: CommandLine) -> None:
    """No rollout ever, none with that id, no template, no id at all."""
    assert two.run(*COMPARE, "acme/notes", "--json").code == 4
    assert two.run(*COMPARE, "acme/nothing", "--json").code == 4
    assert two.run(*COMPARE, "acme/notes", "--id", "x", "--json").code == 1
    assert two.run(*COMPARE, "acme/notes@2", "--json").code == 1
    empty = two.run(*COMPARE, "acme/notes", "--id", "ab" * 8)
    assert (empty.code, empty.out) == (0, "")
    assert "no job was answered by both versions yet" in empty.err
