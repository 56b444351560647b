"""`prefillq demo` from the command line, on the real model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from contract.model_folder import ModelFolder
from tests.unit.local.processes import wait_until

DEMO = [sys.executable, "-m", "producer", "demo", "--json"]


def environment(folder: Path) -> dict[str, str]:
    """What the demo starts inherits TMPDIR: its files and processes can be told by it."""
    env = {**os.environ, "TMPDIR": str(folder)}
    env.pop("PREFILLQ_REDIS_URL", None)
    return env


def left_behind(folder: Path) -> list[object]:
    """Files in the folder, and command lines of processes that have it as TMPDIR."""
    running = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["environ"] or {}).get("TMPDIR") == str(folder)
    ]
    return [*folder.iterdir(), *running]


@pytest.mark.model
@pytest.mark.timeout(900)
def test_demo_prints_one_json_object_that_holds_what_it_promises(
    smollm2: ModelFolder, tmp_path: Path
) -> None:
    """At least 12 jobs over 2 tenants, 3 templates, 2 versions; exact cached counts; parity."""
    run = subprocess.run(
        DEMO,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert run.returncode == 0, run.stderr
    outcome = json.loads(run.stdout)
    assert outcome.keys() == {
        "jobs",
        "parity",
        "templates",
        "worker",
        "canary",
        "elapsed_s",
    }
    jobs = outcome["jobs"]
    assert len(jobs) >= 12
    assert len({job["tenant"] for job in jobs}) >= 2
    assert len({(job["tenant"], job["template"]) for job in jobs}) >= 3
    versions = {(job["tenant"], job["template"], job["version"]) for job in jobs}
    assert {("acme", "reply-draft", 1), ("acme", "reply-draft", 2)} <= versions
    prefix = {entry["digest"]: entry["prefix_tokens"] for entry in outcome["templates"]}
    for job in jobs:
        assert job["status"] == "succeeded"
        cached = job["usage"]["prompt_tokens_details"]["cached_tokens"]
        if job["cache"]["state"] == "hit":
            assert cached == prefix[job["digest"]] > 0
        else:
            assert (job["cache"]["reason"], cached) == ("cold", 0)
    hits = sum(job["cache"]["state"] == "hit" for job in jobs)
    assert hits >= 12
    assert outcome["worker"]["cache"]["hits"] == hits, "the worker's report is stale"
    assert outcome["parity"]["checked"] == outcome["parity"]["identical"] >= 6
    assert {version["parity"] for version in outcome["worker"]["versions"]} == {"identical"}
    canary = outcome["canary"]
    assert set(canary["gates"].values()) == {"pass"}
    assert {1, 2} == set(canary["during"].values()), "half of 16 customers went to each"
    assert set(canary["after"].values()) == {1}
    assert [line.split(":")[0] for line in canary["journal"]] == [
        "publish",
        "publish",
        "label",
        "start",
        "phase",
        "step",
        "abort",
    ]
    assert 0 < outcome["elapsed_s"] < 800
    assert wait_until(lambda: not left_behind(tmp_path), seconds=5), left_behind(tmp_path)


@pytest.mark.model
@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_killed_demo_leaves_nothing_behind(
    smollm2: ModelFolder, tmp_path: Path, how: signal.Signals, code: int
) -> None:
    """Told to end or killed with its worker running: Redis, worker and folders go with it."""
    with subprocess.Popen(
        DEMO,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        assert wait_until(lambda: any(tmp_path.glob("*/worker.log")), seconds=120)
        run.send_signal(how)
        assert run.wait(90) == code
    assert wait_until(lambda: not left_behind(tmp_path), seconds=30), left_behind(tmp_path)
