"""The root command: errors become exit codes in one place, plug-ins are found and not imported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint

import click
import pytest
from click.testing import CliRunner, Result

from contract.console import json_option
from contract.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    PrefillqError,
    RedisUnreachable,
    SettingsError,
    TemplateRefused,
    TimedOut,
)
from producer import cli

HEAVY = ("torch", "transformers", "redis", "celery", "pydantic", "jsonschema", "rich", "structlog")


def _plug_in(monkeypatch: pytest.MonkeyPatch, load: Callable[[], object]) -> None:
    class Point(EntryPoint):
        def load(self) -> object:
            return load()

    points = {"extra": Point("extra", "some.module:extra", "prefillq.commands")}
    monkeypatch.setattr(cli, "_plugins", lambda: points)


def _raising(error: BaseException) -> Callable[[], click.Command]:
    def load() -> click.Command:
        @click.command()
        @json_option
        def extra(*, as_json: bool) -> None:
            raise error

        return extra

    return load


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, arguments, env={"PREFILLQ_LOG_LEVEL": None})


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (PrefillqError, 1),
        (InvalidInput, 1),
        (SettingsError, 2),
        (RedisUnreachable, 3),
        (NotFound, 4),
        (TemplateRefused, 5),
        (TimedOut, 6),
        (Conflict, 7),
    ],
)
def test_error_gives_its_exit_code_and_message(
    monkeypatch: pytest.MonkeyPatch, kind: type[PrefillqError], code: int
) -> None:
    """As text on stderr, and with --json as one object on stdout."""
    error = kind("it broke", given="this", expected="that", remedy="Do so.")
    _plug_in(monkeypatch, _raising(error))
    shown = _run("extra")
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert shown.stderr == "prefillq: it broke; given: this; expected: that. Do so.\n"
    data = _run("extra", "--json")
    assert (data.exit_code, data.stderr) == (code, "")
    assert json.loads(data.stdout) == error.to_dict()


def test_unexpected_error_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 1 and one line; the traceback only when debugging."""
    _plug_in(monkeypatch, _raising(ZeroDivisionError("by zero")))
    short = _run("extra")
    assert short.exit_code == 1
    assert "ZeroDivisionError" in short.stderr
    assert "by zero" not in short.stderr  # its words may quote a prompt
    assert "Traceback" not in short.stderr
    assert "Traceback" in _run("--log-level", "debug", "extra").stderr
    assert json.loads(_run("extra", "--json").stdout)["error"] == "error"


def test_interruption_gives_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """As shells report a process that Ctrl-C ended; a second one would end it without Python."""
    _plug_in(monkeypatch, _raising(KeyboardInterrupt()))
    before = signal.getsignal(signal.SIGINT)
    try:
        assert _run("extra").exit_code == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


def test_missing_extra_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both when the plug-in itself cannot be imported and when it imports late."""
    error = ModuleNotFoundError("No module named 'torch'", name="torch")

    def load() -> object:
        raise error

    for plug_in in (load, _raising(error)):
        _plug_in(monkeypatch, plug_in)
        shown = _run("extra")
        assert shown.exit_code == 1
        assert "pip install 'prefillq[worker]'" in shown.stderr


def test_wrong_use_gives_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """click's own words on stderr; with --json also an object on stdout."""
    _plug_in(monkeypatch, _raising(ValueError()))
    shown = _run("extra", "--nonsense")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "Usage:" in shown.stderr
    assert _run("nothing").exit_code == 2
    data = _run("extra", "--json", "--nonsense")
    assert data.exit_code == 2
    assert json.loads(data.stdout)["error"] == "usage"
    assert "Usage:" in data.stderr


def test_bad_setting_is_json_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that comes before the command has read its own options."""
    _plug_in(monkeypatch, _raising(ValueError()))
    data = _run("--redis-url", "http://nowhere", "extra", "--json")
    assert data.exit_code == 2
    assert json.loads(data.stdout)["error"] == "bad_setting"


def test_help_and_completion_do_not_import_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in that cannot even be imported is listed like the others."""

    def load() -> object:
        raise AssertionError("imported")

    _plug_in(monkeypatch, load)
    assert "extra" in _run("--help").stdout
    completed = CliRunner().invoke(
        cli.main,
        prog_name="prefillq",
        env={
            "_PREFILLQ_COMPLETE": "bash_complete",
            "COMP_WORDS": "prefillq ext",
            "COMP_CWORD": "1",
        },
    )
    assert completed.stdout == "plain,extra\n"


def test_help_imports_nothing_heavy() -> None:
    """Help waits for no library that only an actual command needs."""
    code = (
        "import sys; sys.argv = ['prefillq', '--help']\n"
        "from producer.cli import main\n"
        "try: main()\n"
        f"finally: print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.strip() == "[]"


def test_summaries_are_those_of_the_commands() -> None:
    """Kept beside the names, so that help need not import; they must not drift."""
    for name, point in cli._plugins().items():
        assert cli._SUMMARIES[name] == (point.load().help or "").partition("\n")[0]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    """For each shell, as text and as JSON."""
    script = _run("completion", shell).stdout
    assert "_PREFILLQ_COMPLETE" in script
    data = json.loads(_run("completion", shell, "--json").stdout)
    assert data == {"shell": shell, "script": script.removesuffix("\n")}


def test_version() -> None:
    """Name and number, fit for a bug report."""
    assert _run("--version").stdout.startswith("prefillq 0.")
