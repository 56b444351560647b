"""docker-compose.yml is a Compose file, and what it names in this project exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from contract.settings import Settings
from ui.cli import ui

ROOT = Path(__file__).parents[3]
COMPOSE_FILE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


@pytest.fixture
def compose() -> dict[str, Any]:
    """The file with anchors and merge keys resolved and defaults filled in."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE_FILE.read_text("utf-8"))
    data: dict[str, Any] = yaml.safe_load(text)
    return data


@pytest.fixture
def schema() -> Draft202012Validator:
    """The Compose Specification's own schema, as check-jsonschema ships it."""
    file = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    return Draft202012Validator(json.loads(file.read_text("utf-8")))


def prefillq_commands(text: str) -> list[list[str]]:
    """Each `prefillq ...` call in a shell line, split into words."""
    calls = re.findall(r"\bprefillq (?:models|worker)\b[^&|;\n]*", text)
    return [shlex.split(call) for call in calls]


def find_command(words: list[str]) -> click.Command:
    """The click command that `prefillq WORDS` runs, by the entry points in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["entry-points"]["prefillq.commands"][words[1]].partition(":")
    group = getattr(import_module(module), name)
    assert isinstance(group, click.Group)
    return group.commands[words[2]]


def test_is_valid_by_the_compose_specification(
    compose: dict[str, Any], schema: Draft202012Validator
) -> None:
    """Every key and value is one that Compose knows."""
    schema.validate(compose)


def test_the_schema_catches_a_misspelt_key(
    compose: dict[str, Any], schema: Draft202012Validator
) -> None:
    """The check above can fail."""
    compose["services"]["worker"]["comand"] = "x"
    with pytest.raises(ValidationError, match="comand"):
        schema.validate(compose)


def compose_command() -> list[str] | None:
    """Compose itself, from the second version on: the first refuses the key `name`."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            said = subprocess.run(
                [*command, "version", "--short"], capture_output=True, text=True, check=False
            )
            if re.match(r"v?([2-9]|\d\d)\.", said.stdout):
                return command
    return None


def test_docker_compose_reads_it() -> None:
    """Compose itself accepts the file, with all profiles; needs no engine."""
    command = compose_command()
    if command is None:
        pytest.skip("no Docker Compose 2 on this machine")
    done = subprocess.run(
        [*command, "-f", str(COMPOSE_FILE), "--profile", "*", "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_redis_keeps_jobs(compose: dict[str, Any]) -> None:
    """Pinned to a patch release, append-only, never evicting, checked, on a volume, on loopback."""
    redis = compose["services"]["redis"]
    assert re.fullmatch(r"redis:\d+\.\d+\.\d+-alpine", redis["image"])
    options = dict(zip(redis["command"][1::2], redis["command"][2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    assert redis["healthcheck"]["test"][0] == "CMD"
    assert redis["volumes"] == ["redis:/data"]
    assert all(port.startswith("127.0.0.1:") for port in redis["ports"])


def test_workers_wait_for_redis_and_stop_in_peace(compose: dict[str, Any]) -> None:
    """Both workers need a healthy Redis and get time to finish their jobs."""
    for name in ("worker", "worker-gpu"):
        worker = compose["services"][name]
        assert worker["depends_on"]["redis"]["condition"] == "service_healthy"
        assert worker["stop_grace_period"] == "2m"


def test_the_gpu_worker_is_opt_in(compose: dict[str, Any]) -> None:
    """Only the profile `gpu` asks for an NVIDIA device."""
    services = compose["services"]
    assert services["worker-gpu"]["profiles"] == ["gpu"]
    (device,) = services["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "deploy" not in services["worker"]


def test_named_volumes_are_declared(compose: dict[str, Any]) -> None:
    """Each service's volumes exist at the top level, and none is declared in vain."""
    used = {
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service.get("volumes", ())
    }
    assert {volume for volume in used if volume[0] != "."} == set(compose["volumes"])
    assert [path for path in used if path[0] == "." and not (ROOT / path).exists()] == []


def test_commands_and_options_exist(compose: dict[str, Any]) -> None:
    """Every prefillq call in the two files names a command and options that there are."""
    services = (compose["services"][name] for name in ("worker", "worker-gpu"))
    calls = [
        *(call for service in services for call in prefillq_commands(service["command"][-1])),
        json.loads(DOCKERFILE.read_text("utf-8").rpartition("CMD ")[2]),
    ]
    assert len(calls) == 5
    for words in calls:
        command = find_command(words)
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


def test_the_page_is_on_loopback_and_shows_no_text(compose: dict[str, Any]) -> None:
    """It asks nobody for a password."""
    page = compose["services"]["ui"]
    assert page["profiles"] == ["observability"]
    command = page["command"]
    assert command[:2] == ["prefillq", "ui"]
    known = {option for parameter in ui.params for option in parameter.opts}
    assert {word for word in command if word.startswith("--")} <= known - {"--show-text"}
    port = command[command.index("--port") + 1]
    assert page["ports"] == [f"127.0.0.1:{port}:{port}"]
    [asked] = re.findall(r"http://[^\"]+", page["healthcheck"]["test"][-1])
    assert asked.startswith(f"http://127.0.0.1:{port}/static/")
    assert (ROOT / "ui" / asked.split("/", 3)[3]).is_file()


def test_who_is_asked_for_its_health_answers_there(compose: dict[str, Any]) -> None:
    """Each service has a check, in its container, at a port that it serves."""
    served = {"worker": 9464, "worker-gpu": 9464, "ui": 8650}
    served |= {"prometheus": 9090, "grafana": 3000, "flower": 5555}
    for name, service in compose["services"].items():
        check = service["healthcheck"]["test"]
        assert check[0] == "CMD", name
        if name != "redis":
            [port] = re.findall(r"http://127\.0\.0\.1:(\d+)/", check[-1])
            assert int(port) == served.pop(name)
            if check[1] == "python":
                compile(check[-1], name, "exec")
    assert not served
    assert "--metrics-port 9464" in compose["services"]["worker"]["command"][-1]


def test_the_image_has_what_its_commands_need(compose: dict[str, Any]) -> None:
    """Extras that there are; the page of `ui`, and the traces that a worker may be asked for."""
    [extras] = re.findall(r"^ARG EXTRAS=(.+)$", DOCKERFILE.read_text("utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert {"worker", "ui", "otel"} <= set(extras.split(","))
    assert '".[${EXTRAS}]"' in DOCKERFILE.read_text("utf-8")
    assert compose["services"]["ui"]["image"] == compose["services"]["worker"]["image"]


def test_variables_are_settings_and_the_cache_is_the_volume(compose: dict[str, Any]) -> None:
    """A PREFILLQ_ variable that no setting reads would be ignored in silence."""
    dockerfile = DOCKERFILE.read_text("utf-8")
    named = re.findall(r"PREFILLQ_(\w+)", dockerfile + COMPOSE_FILE.read_text("utf-8"))
    assert {name.lower() for name in named} <= set(Settings.model_fields)
    worker = compose["services"]["worker"]
    cache = worker["environment"]["PREFILLQ_CACHE_DIR"]
    assert worker["volumes"] == [f"models:{cache}"]
    assert f"PREFILLQ_CACHE_DIR={cache}" in dockerfile
    assert worker["environment"]["PREFILLQ_REDIS_URL"] == "redis://redis:6379/0"


def test_the_image_copies_what_exists_and_runs_without_root(compose: dict[str, Any]) -> None:
    """Build context and COPY lines match the repository and .dockerignore."""
    build = compose["services"]["worker"]["build"]
    assert (ROOT / build["context"] / build["dockerfile"]).samefile(DOCKERFILE)
    dockerfile = DOCKERFILE.read_text("utf-8")
    copied = {
        source
        for line in re.findall(r"^COPY (.+)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
    }
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    assert [name for name in copied if not (ROOT / name).exists()] == []
    users = re.findall(r"^USER (\w+)$", dockerfile, re.MULTILINE)
    assert users == ["prefillq"]
