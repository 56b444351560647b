"""`prefillq`: the root command, its options, and what becomes of errors.

Commands of other packages are found by the entry-point group `prefillq.commands` and
imported when they run, so that `prefillq submit` never pays for torch and works without it.
"""

from __future__ import annotations

import errno
import functools
import signal
import sys
import traceback
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TextIO

import click

from contract.console import emit_json, json_wanted, note, option
from contract.errors import PrefillqError
from contract.streams import give_up, print_anything, stand_in_for_closed
from producer import commands

# As a shell reports a process that SIGINT or SIGPIPE ended.
INTERRUPTED = 130
READER_GONE = 141

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}

# Listed without importing the commands: their modules may need what is not installed.
_SUMMARIES = {
    "bench": "Measure the engine, alone and beside its peers, and the queue around it.",
    "demo": "Start Redis and a worker here, publish the examples, run jobs, show results, stop.",
    "models": "Fetch models and see which are at hand.",
    "report": "Make one HTML page of what workers logged: latency, cache, tokens, cost.",
    "scale": "Show what waits for workers, and how many workers there should be.",
    "templates": "Publish prompt templates and look after their versions.",
    "tenants": "Make Redis users that reach one tenant's jobs and templates alone.",
    "ui": "Serve a page of queues, workers, jobs and rollouts, to look at, until Ctrl-C.",
    "worker": "Run workers and see what they hold.",
}
# What `pip install 'prefillq[worker]'` brings and the bare package lacks.
_EXTRA = {"accelerate", "gguf", "huggingface_hub", "psutil", "safetensors", "torch", "transformers"}


class MissingExtra(PrefillqError):
    """A command whose optional libraries are not installed."""

    code = "missing_extra"


@functools.cache
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="prefillq.commands")}


class RootGroup(click.Group):
    """Own commands and plug-ins; the one place that turns errors into exit codes.

    For a plug-in, `get_command` answers with a stub that has its name and summary, which is
    all that help and completion need; `resolve_command`, on the way to running it, imports it.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_plugins()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in _plugins():
            return own
        summary = _SUMMARIES.get(cmd_name, f"({_plugins()[cmd_name].value})")
        return click.Command(cmd_name, short_help=summary)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name not in self.commands and name in _plugins():
            command = _plugins()[name].load()
        return name, command, rest

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """click's `main`, on streams that work."""
        stand_in_for_closed()
        print_anything()
        try:
            return super().main(*args, **kwargs)
        except SystemExit as end:
            # When whoever read our output has gone, click puts a wrapper of its own around the
            # streams, and ends with 1.
            if type(sys.stdout).__name__.endswith("PacifyFlushWrapper"):
                end.code = READER_GONE
            raise
        except BrokenPipeError:  # stderr's reader, when click says what is wrong there
            give_up(sys.stdout)
            give_up(sys.stderr)
            sys.exit(READER_GONE)

    def invoke(self, ctx: click.Context) -> Any:
        given = "--json" in ctx.args  # for errors that come before the command's own parsing
        try:
            return super().invoke(ctx)
        except PrefillqError as error:
            _report(error, as_json=given or json_wanted(ctx))
            ctx.exit(error.exit_code)
        except click.UsageError as error:
            if given or json_wanted(ctx):
                emit_json({"error": "usage", "problem": error.format_message()})
            raise  # click shows the usage on stderr
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            # From here on a second Ctrl-C ends the process at once, and without a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            note("prefillq: interrupted")
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            raise  # whoever read our output has gone; click ends the process quietly
        except Exception as error:  # noqa: BLE001 - whatever it is, it is said in one line
            if ctx.params.get("log_level") == "debug":
                traceback.print_exception(error)
            with suppress(OSError):  # stdout itself may be what is full
                _report(_explained(error), as_json=given or json_wanted(ctx))
            if not _takes_more(sys.stdout):
                give_up(sys.stdout)
            ctx.exit(1)


@click.group(
    cls=RootGroup,
    context_settings={
        "auto_envvar_prefix": "PREFILLQ",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@option("--redis-url", metavar="URL", help="Redis, as redis://, rediss:// or unix://.")
@option("--cache-dir", type=click.Path(path_type=Path), help="Folder for models.")
@option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    help="What to log on stderr. Workers start from info, other commands from warning.",
)
@click.version_option(package_name="prefillq", message="prefillq %(version)s")
@click.pass_context
def main(
    ctx: click.Context, *, redis_url: str | None, cache_dir: Path | None, log_level: str | None
) -> None:
    """Jobs for a language model whose long, fixed prompt is computed once.

    Data goes to stdout, talk to stderr. Exit status: 0 done, 1 error, 2 wrong use, 3 Redis not
    reachable, 4 not found, 5 refused by a check, 6 timed out, 7 conflict, 8 the job failed, 9 a
    worker's device hangs or was lost.
    """
    from contract.logs import configure_logs  # these two take longer to import than help may take
    from contract.settings import Settings

    configure_logs(level=log_level or "warning")
    ctx.obj = Settings.load(redis_url=redis_url, cache_dir=cache_dir)


for _command in commands.ALL:
    main.add_command(_command)


def _takes_more(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True


def _report(error: PrefillqError, *, as_json: bool) -> None:
    if as_json:
        emit_json(error.to_dict())
    else:
        note(f"prefillq: {error}")


def _explained(error: Exception) -> PrefillqError:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in _EXTRA:
        return MissingExtra(
            "this command needs a library that is not installed",
            given=f"no module named {error.name}",
            remedy="Run: pip install 'prefillq[worker]'",
        )
    if isinstance(error, OSError) and error.errno in _FULL:
        return PrefillqError(
            "the output cannot be written",
            given=error.strerror,
            remedy="Free some space where stdout and files go.",
        )
    # The words of an error that nobody foresaw may quote a prompt; those of a file's do not.
    words = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
    return PrefillqError(
        "something unexpected happened",
        given=f"{type(error).__name__}{words}",
        remedy="Run 'prefillq --log-level debug ...' for the traceback.",
    )
