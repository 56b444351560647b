"""Eight processes move one template at random while another enqueues jobs of it: no move is lost,
and no job has a version that was not allowed at that moment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from contract import keys
from contract.ids import parse_address
from contract.settings import Settings
from templates.registry import Registry
from templates.rollouts.journal import Entry, applied, replay
from templates.rollouts.moves import TemplateState
from tests.support.movers import HERE
from tests.support.published import COMPILED, MODEL, make_spec

ROOT = Path(__file__).parents[2]
MOVERS = 8
SECONDS = float(os.environ.get("PREFILLQ_TEST_MOVES_S", "30"))


def run_all(admin: Settings, producer: Settings, file: Path) -> tuple[Counter[str], Counter[str]]:
    """What the movers and the producer counted."""

    def begin(settings: Settings, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.movers", *arguments],
            cwd=ROOT,
            env={**os.environ, "PREFILLQ_REDIS_URL": settings.redis_url},
            stdout=subprocess.PIPE,
            text=True,
        )

    with ExitStack() as stack:
        started = [begin(producer, "submit", str(SECONDS), str(file))]
        started += [begin(admin, "move", str(SECONDS), str(seed)) for seed in range(MOVERS)]
        for process in started:
            stack.callback(process.wait)
            stack.callback(process.kill)
        outputs = [process.communicate(timeout=SECONDS + 60)[0] for process in started]
        assert [process.returncode for process in started] == [0] * len(started)
    counts = [Counter[str](json.loads(output)) for output in outputs]
    return sum(counts[1:], Counter()), counts[0]


def states_of(entries: Sequence[Entry]) -> list[TemplateState]:
    """The state at each revision, from 0."""
    states = [TemplateState()]
    for entry in entries:
        states.append(applied(states[-1], entry))
    return states


def allowed(state: TemplateState, job: dict[str, Any]) -> tuple[int, str]:
    """The version and rollout that a job must have when it is written in this state."""
    address = parse_address(job["address"])
    if address.version is not None:
        assert address.version not in state.retired
        return address.version, ""
    number, rollout = state.labels[address.label or ""], state.rollout
    if rollout is None or rollout.plan.label != address.label:
        return number, ""
    assert number == rollout.plan.stable
    sticky = job["ticket"] if rollout.plan.sticky_key == "ticket" else job["id"]
    return rollout.version_for("acme", job["key"] or sticky), rollout.id


@pytest.mark.timeout(300)
def test_no_move_is_lost_and_no_job_has_a_version_that_was_not_allowed(
    admin_settings: Settings,
    producer_settings: Settings,
    registry: Registry,
    client: Any,
    tmp_path: Path,
) -> None:
    """The journal replays to exactly the state, and to each job's version when it was written."""
    for number in range(4):
        registry.publish(make_spec(text=f"Text {number}: "), COMPILED, MODEL)
    file = tmp_path / "jobs.jsonl"
    moved, submitted = run_all(admin_settings, producer_settings, file)

    entries = registry.journal(*HERE)
    assert replay(entries) == registry.sight(*HERE).state
    made = Counter(entry.action for entry in entries)
    # Each wish that was granted is one entry, but for those that found it so already.
    for action, wish in (("promote", "promote"), ("abort", "abort"), ("unlabel", "unlabel")):
        assert made[action] == moved[wish]
    assert made["start"] == moved["start"] > 10
    assert min(made[a] for a in ("label", "retire", "unretire", "step", "promote", "abort")) > 5
    assert {entry.who for entry in entries} >= {f"mover-{seed}" for seed in range(MOVERS)}

    states, times = states_of(entries), [entry.at for entry in entries]
    jobs = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert len(jobs) == submitted["submitted"] > 100
    seen: Counter[str] = Counter()
    for job in jobs:
        record = client.hgetall(keys.job(job["id"]))
        revision, created_at = int(record[b"revision"]), float(record[b"created_at"])
        version, rollout = allowed(states[revision], job)
        assert (int(record[b"version"]), record.get(b"rollout", b"").decode()) == (version, rollout)
        # The entries say the same by their times, which are whole milliseconds.
        assert times[revision - 1] <= created_at + 0.001
        assert revision == len(times) or created_at <= times[revision] + 0.001
        canary = states[revision].rollout.plan.canary if rollout else None
        seen["canary" if version == canary else "stable" if rollout else ""] += 1
    assert min(seen["canary"], seen["stable"], seen[""]) > 20, (seen, moved, submitted)
    # Not one record but those that the producer was given handles of.
    assert len(client.keys("pq:acme:job:*")) == len(jobs)
    assert times == sorted(times)
