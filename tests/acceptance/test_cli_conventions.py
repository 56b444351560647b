"""What holds for every command: `--json`, environment variables, exit codes, quiet pipes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import click
import pytest

from producer.cli import main
from tests.support.command_line import CommandLine
from tests.support.tcp import closed_port_url

JOB = "acme." + "0" * 32
START_S = 3.0  # of a process on a busy machine, before the command itself begins


def _walk(
    group: click.Group, ctx: click.Context, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(ctx):
        _, command, _ = group.resolve_command(ctx, [name])
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=ctx)
            yield from _walk(command, inner, (*path, name))


def _commands() -> dict[str, click.Command]:
    ctx = click.Context(main, info_name="prefillq", **main.context_settings)
    return {" ".join(path): command for path, command in _walk(main, ctx)}


def test_every_command_has_json() -> None:
    """Groups aside, which run nothing."""
    for name, command in _commands().items():
        if not isinstance(command, click.Group):
            assert any("--json" in parameter.opts for parameter in command.params), name


def test_every_option_has_an_environment_variable() -> None:
    """PREFILLQ_ and the path of the command; one variable asks for JSON everywhere."""
    assert main.context_settings["auto_envvar_prefix"] == "PREFILLQ"
    for name, command in _commands().items():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.envvar or parameter.allow_from_autoenv, (name, parameter.name)


def test_variables_are_named_like_their_options() -> None:
    """So that nobody has to look one up."""
    for name, command in _commands().items():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and "--json" not in parameter.opts:
                option = max(parameter.opts, key=len).strip("-").replace("-", "_")
                variable = f"PREFILLQ_{name}_{option}".replace(" ", "_").upper()
                assert variable == parameter.envvar or option == parameter.name, variable


def test_every_command_has_help() -> None:
    """A first sentence that fits in the list of commands."""
    for name, command in _commands().items():
        first = (command.help or "").partition("\n")[0]
        assert first.endswith("."), name
        assert len(first) <= 85, name


def test_help_shows_the_environment_variables(command_line: CommandLine) -> None:
    """The root's, and each command's own."""
    assert "PREFILLQ_REDIS_URL" in command_line.run("--help").out
    assert "PREFILLQ_SUBMIT_TIMEOUT" in command_line.run("submit", "--help").out
    assert "PREFILLQ_BATCH_WINDOW" in command_line.run("batch", "--help").out


def _processor_s() -> float:
    """Of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_takes_under_half_a_second() -> None:
    """Median of five processes, interpreter start included; a processor's time, whatever else
    the machine does meanwhile.
    """
    command = [sys.executable, "-m", "producer", "--help"]

    def seconds() -> float:
        before = _processor_s()
        subprocess.run(command, check=True, capture_output=True)
        return _processor_s() - before

    seconds()
    assert median(seconds() for _ in range(5)) < 0.5


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "acme/notes", "--vars", "{}"),
        ("result", JOB),
        ("status", JOB),
        ("cancel", JOB),
        ("stream", JOB),
        ("templates", "list"),
        ("templates", "show", "acme/notes"),
        ("templates", "export", "acme/notes"),
        ("templates", "label", "acme/notes@1", "canary"),
        ("templates", "history", "acme/notes"),
        ("templates", "rollout", "start", "acme/notes", "--to", "2"),
        ("templates", "rollout", "status", "acme/notes"),
        ("templates", "rollout", "status", "acme/notes", "--wait"),
        ("templates", "rollout", "promote", "acme/notes"),
        ("score", JOB, "quality", "1"),
        ("tenants", "list"),
        ("tenants", "create", "acme"),
    ],
    ids=" ".join,
)
def test_redis_away_gives_3(command_line: CommandLine, arguments: tuple[str, ...]) -> None:
    """Within 5 seconds of its start, naming address and setting (case Q7: no 19 s wait)."""
    started = time.monotonic()
    ran = command_line.run(*arguments, "--json", PREFILLQ_REDIS_URL=closed_port_url())
    assert time.monotonic() - started < 5 + START_S
    assert ran.code == 3
    assert ran.json["error"] == "redis_unreachable"
    assert "PREFILLQ_REDIS_URL" in ran.json["remedy"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "acme/nothing", "--vars", "{}"),
        ("submit", "acme/nothing", "--var", "note=x"),
        ("result", JOB),
        ("status", JOB),
        ("cancel", JOB),
        ("stream", JOB),
        ("templates", "show", "acme/nothing"),
        ("templates", "export", "acme/nothing"),
        ("templates", "export", "--all", "acme/nothing"),
        ("templates", "label", "acme/nothing@1", "canary"),
        ("templates", "diff", "acme/nothing", "acme/nothing"),
        ("templates", "history", "acme/nothing"),
        ("templates", "rollout", "start", "acme/nothing", "--to", "2"),
        ("templates", "rollout", "status", "acme/nothing"),
        ("templates", "rollout", "status", "acme/nothing", "--wait"),
        ("templates", "rollout", "pause", "acme/nothing"),
        ("templates", "rollout", "abort", "acme/nothing"),
        ("score", JOB, "quality", "1"),
    ],
    ids=" ".join,
)
def test_unknown_things_give_4(command_line: CommandLine, arguments: tuple[str, ...]) -> None:
    """Templates at once (case Q12: no lost task), and jobs (case Q18: never just pending)."""
    ran = command_line.run(*arguments, "--json")
    assert ran.code == 4
    assert ran.json["error"] == "not_found"


@pytest.mark.parametrize(
    "arguments",
    [
        ("nothing",),
        ("submit",),
        ("submit", "a/b", "--timeout", "soon"),
        ("templates", "publish", "missing.yaml"),
        ("templates", "rollout", "start", "acme/notes"),
        ("templates", "rollout", "start", "acme/notes", "--to", "2", "--steps", "0.001"),
        ("templates", "rollout", "start", "acme/notes", "--to", "2", "--max-failures", "0.02"),
        ("score", JOB, "quality", "good"),
        ("--log-level", "loud", "templates", "list"),
    ],
    ids=" ".join,
)
def test_wrong_use_gives_2(command_line: CommandLine, arguments: tuple[str, ...]) -> None:
    """click's words on stderr and nothing on stdout."""
    ran = command_line.run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage:" in ran.err


def test_bad_setting_gives_2(command_line: CommandLine) -> None:
    """The variable is named."""
    ran = command_line.run("templates", "list", "--json", PREFILLQ_REDIS_TIMEOUT_S="never")
    assert ran.code == 2
    assert "PREFILLQ_REDIS_TIMEOUT_S" in ran.json["remedy"]


def test_option_from_the_environment(command_line: CommandLine) -> None:
    """Here the one that all commands share."""
    ran = command_line.run("completion", "bash", PREFILLQ_JSON="1")
    assert ran.json["shell"] == "bash"


def test_reader_that_leaves_early_is_no_error(command_line: CommandLine) -> None:
    """`prefillq ... | head -1` shows no traceback."""
    with subprocess.Popen(
        command_line.command("completion", "bash"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=command_line.environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # long before the new process has anything to write
        assert process.stderr.read() == b""


def test_tables_are_not_cut_in_pipes(command_line: CommandLine, notes: Path) -> None:
    """A long name stays whole, whatever the width of the terminal."""
    name = "n" * 60
    notes.write_text(notes.read_text().replace("name: notes", f"name: {name}"))
    assert command_line.run("templates", "publish", notes).code == 0
    assert f"acme/{name}" in command_line.run("templates", "list", COLUMNS="20").out
    assert json.loads(command_line.run("templates", "list", "--json").out)["templates"]
