"""`prefillq scale` as users run it."""

from __future__ import annotations

import json
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path

import click
import pytest
import yaml

from contract.settings import Settings
from tests.support.command_line import CommandLine
from tests.support.job_lines import at, job_line
from tests.support.tcp import closed_port_url

ROOT = Path(__file__).parents[2]


@pytest.fixture
def away(tmp_path: Path) -> CommandLine:
    """With no Redis to be reached."""
    return CommandLine(
        settings=Settings(cache_dir=tmp_path, redis_url=closed_port_url()), folder=tmp_path
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Twelve jobs of 2 s in 6 s, four at once."""
    path = tmp_path / "worker.txt"
    path.write_bytes(
        b"Loading weights\n"
        + b"".join(job_line(timestamp=at(n / 2 + 2.1), total_s=2.1, queue_s=0.1) for n in range(12))
        + job_line(tenant="globex", timestamp=at(30))
    )
    return path


def test_the_entry_point_is_the_command() -> None:
    """As pyproject.toml has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["prefillq.commands"]["scale"].partition(":")
    assert isinstance(getattr(import_module(module), name), click.Command)


def test_a_table_and_the_same_as_json(command_line: CommandLine, notes: Path) -> None:
    """What waits, with a row per template."""
    assert command_line.run("templates", "publish", notes).code == 0
    variables = json.dumps({"note": "x", "count": 1})
    for _ in range(3):
        assert command_line.run("submit", "acme/notes", "--vars", variables).code == 0
    ran = command_line.run("scale", "acme")
    assert ran.code == 0
    header, row = ran.out.splitlines()
    assert header.split()[:3] == ["template", "model", "waiting"]
    assert row.split()[:3] == ["acme/notes", "smollm2-135m-instruct", "3"]
    assert "no worker lives" in ran.err
    ran = command_line.run("scale", "acme/notes", "--service-time", "60", "--json")
    [one] = ran.json["templates"]
    assert (one["waiting"], one["messages"], one["agree"]) == (3, 3, True)
    assert (one["desired"], one["for_backlog"]) == (18, 18)  # 3 * 60 / (1 * 10)
    assert ran.json["models"][0]["desired"] == 18
    ran = command_line.run("scale", "--json", "--max", "5", "--service-time", "60")
    assert ran.json["templates"][0]["desired"] == 5


def test_no_templates(command_line: CommandLine) -> None:
    """Nothing to show is no error; a name that is not there is one."""
    ran = command_line.run("scale")
    assert (ran.code, ran.out) == (0, "")
    assert "no templates" in ran.err
    for name in ("acme", "acme/notes"):
        ran = command_line.run("scale", name, "--json")
        assert (ran.code, ran.json["error"]) == (4, "not_found")


def test_redis_away_gives_3(away: CommandLine) -> None:
    """Named."""
    ran = away.run("scale", "--json")
    assert (ran.code, ran.json["error"]) == (3, "redis_unreachable")


def test_scaled_objects_are_printed(command_line: CommandLine, notes: Path) -> None:
    """YAML for kubectl, or a JSON list."""
    assert command_line.run("templates", "publish", notes).code == 0
    asked = ("scale", "acme/notes", "--keda", "--max", "7", "--deployment", "workers")
    ran = command_line.run(*asked)
    assert ran.code == 0
    [one] = yaml.safe_load_all(ran.out)
    assert (one["kind"], one["spec"]["maxReplicaCount"]) == ("ScaledObject", 7)
    assert one["spec"]["scaleTargetRef"]["name"] == "workers"
    assert command_line.run(*asked, "--json").json == [one]
    [all_of_it] = command_line.run("scale", "--keda", "--per-model", "--json").json
    assert all_of_it["spec"]["scaleTargetRef"]["name"] == "prefillq-worker"
    assert "/models/" in all_of_it["spec"]["triggers"][0]["metadata"]["url"]


def test_a_log_is_simulated(away: CommandLine, log: Path) -> None:
    """Without Redis; the table, and the same as JSON."""
    ran = away.run("scale", "--simulate", log, "--workers", "1,4", "--concurrency", "1")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()] == ["workers", "1", "4"]
    assert "4 workers are the fewest of these" in ran.err
    ran = away.run(
        *("scale", "acme", "--simulate", log, "--workers", "4,1", "--json"),
        *("--concurrency", "1", "--target-wait", "1s"),
    )
    one, four = ran.json["outcomes"]
    assert (ran.json["jobs"], ran.json["enough"]) == (12, 4)
    assert (one["workers"], four["workers"]) == (1, 4)
    # Each takes 2 s and they come every half second: the last of one worker waits 11 * 1.5 s, and
    # the first for the 0.1 s in which the log's were picked up.
    assert one["wait_max_s"] == pytest.approx(16.6, abs=0.01)
    assert four["wait_max_s"] == pytest.approx(0.1, abs=0.01)


def test_cold_starts_of_the_log_are_simulated(away: CommandLine, log: Path, tmp_path: Path) -> None:
    """Unless the command line says another."""
    logs = tmp_path / "with-starts.log"
    ready = [{"event": "worker_ready", "seconds": seconds} for seconds in (30.5, 40.25)]
    logs.write_text("".join(f"{json.dumps(line)}\n" for line in ready) + log.read_text())
    asked = ("scale", "--simulate", logs, "--workers", "9")
    ran = away.run(*asked, "--json")
    assert ran.json["cold_starts_s"] == [30.5, 40.25]
    assert ran.json["outcomes"][0]["wait_max_s"] == pytest.approx(30.6, abs=0.01)
    assert "30.5 to 40.2 s from a worker's start" in away.run(*asked).err
    ran = away.run(*asked, "--cold-start", "0s", "--json")
    assert ran.json["cold_starts_s"] == [0.0]
    assert ran.json["outcomes"][0]["wait_max_s"] == pytest.approx(0.1, abs=0.01)
    assert away.run("scale", "--simulate", log, "--json").json["cold_starts_s"] == []


def test_same_seed_same_output(away: CommandLine, tmp_path: Path) -> None:
    """Times that a trace lacks are drawn by it."""
    trace = tmp_path / "trace.jsonl"
    lines = [{"at": n, "template": "acme/a", "service_s": 1 + n % 7} for n in range(30)]
    lines += [{"at": 30 + n / 9, "template": "acme/a"} for n in range(60)]
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    def outcomes(seed: int) -> object:
        ran = away.run(
            "scale", "--simulate", trace, "--workers", "2", "--seed", str(seed), "--json"
        )
        return ran.json["outcomes"]

    assert outcomes(1) == outcomes(1) != outcomes(2)
    ran = away.run("scale", "--simulate", "-", "--json", stdin=trace.read_text())
    assert ran.json["jobs"] == 90


@pytest.mark.parametrize(
    "arguments",
    [
        ("--target-wait", "0"),
        ("--target-wait", "soon"),
        ("--min", "5", "--max", "4"),
        ("--serve", "localhost"),
        ("--serve", "::1:80"),
        ("--serve", "127.0.0.1:99999"),
        ("--watch", "--keda"),
        ("--per-model",),
        ("acme", "--keda", "--per-model"),
        ("--simulate", "missing.log"),
        ("--simulate", "worker.txt", "--workers", "0"),
        ("--simulate", "worker.txt", "--workers", "1,many"),
        ("--window", "5"),
    ],
    ids=" ".join,
)
def test_wrong_use_gives_2(away: CommandLine, log: Path, arguments: tuple[str, ...]) -> None:
    """Before anything is asked or read."""
    ran = away.run("scale", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage:" in ran.err


def test_a_trace_without_jobs_gives_1(away: CommandLine, tmp_path: Path) -> None:
    """With what to do; also one that has none of those that were asked for."""
    ran = away.run("scale", "--simulate", "-", "--json", stdin="hello\n")
    assert (ran.code, ran.json["error"]) == (1, "no_trace")
    ran = away.run("scale", "globex", "--simulate", "-", "--json", stdin=job_line().decode())
    assert (ran.code, ran.json["error"]) == (1, "invalid_input")


def test_watching_goes_on_while_redis_is_away(away: CommandLine) -> None:
    """One line of JSON for each look, also for one that failed."""
    with subprocess.Popen(
        away.command("scale", "--watch", "--every", "0.1", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=away.environment,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        seen = [json.loads(watching.stdout.readline()) for _ in range(3)]
        watching.terminate()
        watching.wait(20)
    assert [one["error"] for one in seen] == ["redis_unreachable"] * 3


def test_simulating_loads_neither_redis_nor_torch(away: CommandLine, log: Path) -> None:
    """A trace can be replayed wherever Python runs."""
    code = (
        "import sys; from scale.cli import scale\n"
        f"scale.main(['--simulate', {str(log)!r}, '--json'], standalone_mode=False)\n"
        "print([m for m in ('torch', 'redis', 'celery', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [*away.command()[:1], "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=away.environment,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "[]"
