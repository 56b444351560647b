"""`prefillq worker`: what its options become, and how the list of workers looks."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from contract.errors import ModelError
from contract.settings import GIB, KIB, MIB, Settings
from worker import celery_worker, cli, service
from worker.options import WorkerOptions
from worker.patterns import Pin

SETTINGS = Settings(redis_url="redis://127.0.0.1:1/0", cache_dir=Path("unused"))
DESCRIPTION: dict[str, Any] = {
    "id": "w1",
    "host": "somewhere",
    "pid": 7,
    "started_at": 1.0,
    "model": "tiny",
    "model_digest": "a" * 64,
    "device": "cpu",
    "dtype": "float32",
    "engine": "shared-prefix (transformers)",
    "admission": {
        "way": {"mode": "shared", "kernels": "transformers"},
        "max_logit_error": 2.5e-7,
        "seconds": 1.26,
        "refused": [
            {"way": "shared (native)", "reason": "no fused decoder [for] this architecture"},
            {"way": "shared (torch)", "reason": "the tokens differ"},
        ],
    },
    "batch_size": 32,
    "running": 2,
    "templates": ["acme/notes", "acme/triage", "globex/notes"],
    "cache": {
        "entries": 1,
        "bytes": 3 * MIB,
        "max_bytes": 512 * MIB,
        "hits": 11,
        "misses": 4,
        "evictions": {},
    },
    "versions": [
        {
            "version": "acme/notes@12",
            "digest": "b" * 64,
            "prefix_tokens": 671,
            "bytes": 3 * MIB,
            "prefill_s": 1.234,
            "parity": "identical",
            "cached": True,
            "parity_tokens": 16,
            "max_logit_error": 0.0,
        }
    ],
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1024", 1024),
        ("512M", 512 * MIB),
        ("512m", 512 * MIB),
        ("512MB", 512 * MIB),
        ("512MiB", 512 * MIB),
        ("2G", 2 * GIB),
        ("2GiB", 2 * GIB),
        (" 3K ", 3 * KIB),
        ("7B", 7),
        (4096, 4096),
    ],
)
def test_sizes(text: str | int, expected: int) -> None:
    """Plain bytes, or a number with K, M or G; every spelling counts by 1,024."""
    assert cli.ByteSize().convert(text, None, None) == expected


@pytest.mark.parametrize(
    "text",
    ["", "M", "-1", "-2G", "1.5G", "2T", "2 G", "2GG", "2G 3M", "1e9", "two", "0x10", "2GiBB"],
)
def test_refused_sizes(text: str) -> None:
    """Whatever could be read in two ways, or in none, is an error that shows how to write it."""
    with pytest.raises(click.BadParameter, match="512M or 2G"):
        cli.ByteSize().convert(text, None, None)


class Started:
    """What `worker start` made: the arguments of the service, and those of its run."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.options: WorkerOptions | None = None
        self.log_level = ""
        self.logs: dict[str, Any] = {}
        self.exit_code = 0

    def __call__(self, settings: Settings, options: WorkerOptions) -> Started:
        self.settings, self.options = settings, options
        return self

    def run(self, made: Started, *, log_level: str) -> int:
        assert made is self
        self.log_level = log_level
        return self.exit_code


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """`worker start` without a worker; no option comes from the caller's environment."""
    for name in [name for name in os.environ if name.startswith("PREFILLQ_")]:
        monkeypatch.delenv(name)
    started = Started()
    monkeypatch.setattr(service, "WorkerService", started)
    monkeypatch.setattr(celery_worker, "run_worker", started.run)
    monkeypatch.setattr(cli, "configure_logs", lambda **given: started.logs.update(given))
    return started


def start(*arguments: str, **env: str) -> Result:
    # As under the root command, where each option has a variable of its own.
    return CliRunner().invoke(
        cli.worker,
        ["start", *arguments],
        obj=SETTINGS,
        env=env,
        catch_exceptions=False,
        auto_envvar_prefix="PREFILLQ_WORKER",
    )


def test_start_without_options_has_the_defaults(started: Started) -> None:
    """The command line's defaults are those of WorkerOptions, so that neither surprises."""
    assert start().exit_code == 0
    assert started.settings is SETTINGS
    assert started.options == WorkerOptions()
    assert (started.log_level, started.logs) == ("INFO", {"level": "INFO", "force_json": False})


def test_start_passes_every_option_on(started: Started) -> None:
    """Each option reaches its field; those with patterns may be given again and again."""
    done = start(
        *("--model", "m"),
        *("--template", "acme/*", "--template", "globex/triage"),
        *("--exclude", "acme/old", "--exclude", "*/draft"),
        *("--pin", "acme/triage", "--pin", "globex/*@production"),
        *("--device", "cuda:1"),
        *("--dtype", "float16"),
        *("--cache-bytes", "512M"),
        *("--disk-bytes", "1G"),
        *("--warm", "all"),
        *("--engine", "shared"),
        *("--kernels", "onednn"),
        *("--batch", "5"),
        *("--chunk-tokens", "64"),
        *("--suffix-bytes", "256M"),
        *("--threads", "3"),
        *("--metrics-port", "9464"),
        *("--metrics-host", "192.0.2.7"),
        "--metrics-tenant",
        "--audit",
        "--json",
    )
    assert done.exit_code == 0
    assert started.options == WorkerOptions(
        model="m",
        templates=("acme/*", "globex/triage"),
        exclude=("acme/old", "*/draft"),
        pins=(Pin(pattern="acme/triage"), Pin(pattern="globex/*", label="production")),
        device="cuda:1",
        dtype="float16",
        cache_bytes=512 * MIB,
        disk_bytes=GIB,
        warm="all",
        engine="shared",
        kernels="onednn",
        batch=5,
        chunk_tokens=64,
        suffix_bytes=256 * MIB,
        threads=3,
        metrics_port=9464,
        metrics_host="192.0.2.7",
        metrics_tenant=True,
        audit=True,
    )
    assert started.logs["force_json"] is True


def test_start_reads_its_options_from_the_environment(started: Started) -> None:
    """PREFILLQ_WORKER_START_<OPTION>, and a given option wins."""
    env = {
        "PREFILLQ_WORKER_START_DEVICE": "mps",
        "PREFILLQ_WORKER_START_CACHE_BYTES": "1G",
        "PREFILLQ_WORKER_START_TEMPLATE": "acme/a acme/b",
        "PREFILLQ_WORKER_START_EXCLUDE": "acme/c",
        "PREFILLQ_WORKER_START_PIN": "acme/a acme/b@canary",
        "PREFILLQ_WORKER_START_WARM": "used",
    }
    start("--device", "cpu", **env)
    assert started.options is not None
    assert (started.options.device, started.options.cache_bytes) == ("cpu", GIB)
    assert started.options.templates == ("acme/a", "acme/b")
    assert started.options.exclude == ("acme/c",)
    assert started.options.pins == (
        Pin(pattern="acme/a"),
        Pin(pattern="acme/b", label="canary"),
    )
    assert started.options.warm == "used"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--template", "acme"),
        ("--template", "acme/[ab]"),
        ("--exclude", "acme/a/b"),
        ("--exclude", ""),
        ("--pin", "acme/triage@3"),
        ("--pin", "acme/triage@"),
        ("--pin", "acme"),
        ("--warm", "some"),
    ],
)
def test_a_malformed_pattern_is_a_usage_error(started: Started, option: str, value: str) -> None:
    """Exit status 2 before anything is loaded, and the message shows how to write one."""
    done = start(option, value)
    assert done.exit_code == 2
    assert option in done.output
    assert started.options is None


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("true", True), ("0", False), ("false", False)]
)
def test_audit_by_its_short_variable(started: Started, value: str, expected: bool) -> None:
    """PREFILLQ_AUDIT=1 turns the audit on, as the design says; 0 leaves it off."""
    assert start(PREFILLQ_AUDIT=value).exit_code == 0
    assert started.options is not None
    assert started.options.audit is expected


@pytest.mark.parametrize(("value", "expected"), [("0", 0), ("512M", 512 * MIB)])
def test_disk_budget_by_its_short_variable(started: Started, value: str, expected: int) -> None:
    """PREFILLQ_DISK_BYTES sets what is kept on disk; 0 keeps nothing."""
    assert start(PREFILLQ_DISK_BYTES=value).exit_code == 0
    assert started.options is not None
    assert started.options.disk_bytes == expected


def test_start_ends_with_the_workers_exit_code(started: Started) -> None:
    """A service manager sees how the worker ended."""
    started.exit_code = 3
    assert start().exit_code == 3


def test_error_of_the_service_reaches_the_root_command(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit codes and the look of errors are decided in one place."""

    def refuse(*_: object) -> None:
        raise ModelError("no such model")

    monkeypatch.setattr(service, "WorkerService", refuse)
    with pytest.raises(ModelError, match="no such model"):
        start()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--cache-bytes", "lots"),
        ("--disk-bytes", "all"),
        ("--dtype", "int8"),
        ("--warm", "some"),
        ("--engine", "fast"),
        ("--kernels", "cuda"),
        ("--batch", "0"),
        ("--chunk-tokens", "15"),
        ("--suffix-bytes", "some"),
        ("--threads", "0"),
        ("--threads", "many"),
    ],
)
def test_values_that_make_no_sense_are_usage_errors(
    started: Started, arguments: tuple[str, ...]
) -> None:
    """Nothing is loaded for a mistyped option."""
    assert start(*arguments).exit_code == 2
    assert started.options is None


def test_start_makes_idle_threads_sleep(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is passive unless the environment says otherwise; what it says is kept."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    start()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    start()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def list_with(
    monkeypatch: pytest.MonkeyPatch, workers: list[dict[str, Any]], *arguments: str
) -> Result:
    monkeypatch.delenv("PREFILLQ_JSON", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(cli, "list_workers", lambda *_: workers)
    return CliRunner().invoke(
        cli.worker, ["list", *arguments], obj=SETTINGS, catch_exceptions=False
    )


def test_list_shows_each_worker_and_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who, what model, how much cache is used, and for each version what the check found."""
    cold = {**DESCRIPTION, "id": "w2", "versions": [], "templates": [], "running": 0}
    done = list_with(monkeypatch, [DESCRIPTION, cold])
    assert done.exit_code == 0
    words = " ".join(done.stdout.split())
    for shown in (
        "w1 tiny on cpu (float32, shared-prefix (transformers))",
        "w2 tiny on cpu (float32, shared-prefix (transformers))",
        "3 templates, 2 running, cache 3 of 512 MiB, 11 hits, 4 misses",
        "0 templates, 0 running",
        "identical (16 tokens)",
    ):
        assert shown in words
    (row,) = [line for line in done.stdout.splitlines() if "acme/notes@12" in line]
    assert re.split(r"  +", row.strip()) == [
        "acme/notes@12",
        "671",
        "3.0",
        "yes",
        "1.23",
        "identical (16 tokens)",
    ]


def test_list_shows_what_was_proven_and_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """How near the engine comes to the plain path, and why no faster way was taken."""
    done = list_with(monkeypatch, [DESCRIPTION])
    assert done.stdout.splitlines()[1:4] == [
        "  proof made in 1.3 s, scores within 2.5e-07 of the plain path's",
        "  refused: shared (native): no fused decoder [for] this architecture",
        "  refused: shared (torch): the tokens differ",
    ]


def test_worker_of_an_older_release_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """While workers are replaced one by one, both kinds are in the list."""
    older = {key: value for key, value in DESCRIPTION.items() if key not in ("admission", "disk")}
    done = list_with(monkeypatch, [older, {**DESCRIPTION, "id": "w2"}])
    assert done.exit_code == 0
    assert done.stdout.count("acme/notes@12") == 2


@pytest.mark.parametrize(
    ("disk", "shown"),
    [
        ({"files": 2, "bytes": 62 * MIB, "max_bytes": 4 * GIB}, ", disk 62 of 4096 MiB"),
        (None, ""),
    ],
)
def test_list_shows_the_disk_when_there_is_one(
    monkeypatch: pytest.MonkeyPatch, disk: dict[str, int] | None, shown: str
) -> None:
    """How much of its budget the folder of prefixes takes; nothing when none are kept."""
    done = list_with(monkeypatch, [{**DESCRIPTION, "disk": disk}])
    assert done.stdout.splitlines()[0].endswith(f"4 misses{shown}")


def test_list_as_json_is_the_descriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line on stdout, everything that the workers reported; an empty list is one too."""
    done = list_with(monkeypatch, [DESCRIPTION], "--json")
    assert json.loads(done.stdout) == [DESCRIPTION]
    assert done.stdout.count("\n") == 1
    assert json.loads(list_with(monkeypatch, [], "--json").stdout) == []


def test_list_of_nobody_says_so_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """No data is no output; the note is talk."""
    done = list_with(monkeypatch, [])
    assert (done.exit_code, done.stdout) == (0, "")
    assert "no worker has reported" in done.stderr


def test_narrow_pipe_cuts_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version's whole name is in the output even at 80 columns."""
    long = "a-tenant-with-a-long-name/a-template-with-a-longer-name@1234"
    (version,) = DESCRIPTION["versions"]
    description = {**DESCRIPTION, "versions": [{**version, "version": long}]}
    monkeypatch.setattr(cli, "list_workers", lambda *_: [description])
    done = CliRunner(env={"COLUMNS": "80"}).invoke(cli.worker, ["list"], obj=SETTINGS)
    assert long in done.stdout


@pytest.mark.parametrize("name", ["models/[v1]", "models/[/v1]", "[red]m[/red]"])
def test_brackets_in_a_name_are_shown_as_they_are(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What a worker reports is text, not markup: a model may be any folder."""
    done = list_with(monkeypatch, [{**DESCRIPTION, "model": name}])
    assert f"w1 {name} on cpu" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    "device", ["tpu", "cuda:x", "cuda:99999", "CPU", "", "cpu:0", "cuda:\u0663"]
)
def test_a_device_that_is_none_is_wrong_use(device: str) -> None:
    """Before anything is imported, hashed or loaded for it."""
    ran = CliRunner().invoke(cli.start, ["--device", device], obj=SETTINGS)
    assert ran.exit_code == 2
    assert "is no device; write auto, cpu, mps or cuda[:N]" in ran.stderr


@pytest.mark.parametrize("size", ["9" * 16, "\u0665G", "1e9", "-1", "G", "9" * 5000])
def test_a_size_that_is_none_is_wrong_use(size: str) -> None:
    """Also one that no machine has."""
    ran = CliRunner().invoke(cli.start, ["--cache-bytes", size], obj=SETTINGS)
    assert ran.exit_code == 2
    assert "is no size" in ran.stderr


def test_what_others_report_steers_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text of a report is made harmless."""
    odd = "a\x1b[2Jb\nc"
    report = {
        **DESCRIPTION,
        **dict.fromkeys(("id", "model", "device", "dtype", "engine"), odd),
        "admission": {**DESCRIPTION["admission"], "refused": [{"way": odd, "reason": odd}]},
        "versions": [{**DESCRIPTION["versions"][0], "version": odd, "parity": odd}],
    }
    monkeypatch.setattr(cli, "list_workers", lambda *_: [report])
    ran = CliRunner().invoke(cli.list_command, [], obj=SETTINGS)
    assert ran.exit_code == 0
    assert "\x1b" not in ran.stdout
    assert ran.stdout.count("a [2Jb c") == 9
