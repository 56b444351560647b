"""Every command with every option, and values that none of them expects."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
from click.testing import CliRunner
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from contract.errors import ModelError
from producer.cli import main
from tests.fuzz.judge import Found, bounded
from tests.fuzz.mutations import TEXTS, nested
from tests.fuzz.target_files import FILES
from tests.fuzz.targets import Target
from tests.support.tcp import closed_port_url

# What DESIGN.md promises, and what a shell says of a process that a signal ended.
CODES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 130, 141}
_JOB = "acme." + "0" * 32
# They start processes; their arguments are tried without.
_STUBBED = {"demo", "bench", "scale", "ui"}  # long, or without an end


@cache
def _files() -> Path:
    """Files of every kind, good ones too."""
    kept = tempfile.TemporaryDirectory(prefix="prefillq-fuzz-cli-")
    _KEPT.append(kept)
    folder = Path(kept.name)
    (folder / "good.yaml").write_text(FILES[0], "utf-8")
    (folder / "bom.yaml").write_text("\ufeff" + FILES[1], "utf-8")
    (folder / "utf16.yaml").write_text(FILES[1], "utf-16")
    (folder / "empty.yaml").write_bytes(b"")
    (folder / "nul.yaml").write_bytes(b"a: \0")
    (folder / "deep.yaml").write_text("[" * 100_000, "utf-8")
    (folder / "good.jsonl").write_text('{"variables": {"a": 1}, "template": "acme/x"}\n', "utf-8")
    (folder / "deep.json").write_text("[" * 100_000, "utf-8")
    (folder / "good.json").write_text('{"a": 1}', "utf-8")
    (folder / "bad.gguf").write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 16)
    (folder / "gone.yaml").symlink_to(folder / "nothing")
    (folder / "loop.yaml").symlink_to(folder / "loop.yaml")
    (folder / "folder.yaml").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    with (folder / "huge.yaml").open("wb") as sparse:
        sparse.truncate(2**40)
    return folder


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _walk(
    group: click.Group, ctx: click.Context
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name in group.list_commands(ctx):
        _, command, _ = group.resolve_command(ctx, [name])
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=ctx)
            yield from (((name, *path), found) for path, found in _walk(command, inner))
        elif command is not None:
            yield (name,), command


@cache
def _commands() -> dict[tuple[str, ...], click.Command]:
    return dict(_walk(main, click.Context(main, info_name="prefillq")))


@st.composite
def _arguments(draw: DrawFn) -> list[str]:
    """A command with some of its options and arguments, and now and then something else."""
    names = sorted(_commands())
    path = draw(st.sampled_from(names))
    command = _commands()[path]
    options = [p for p in command.params if isinstance(p, click.Option)]
    places = [p for p in command.params if isinstance(p, click.Argument)]
    value = st.sampled_from(_values())
    words: list[str] = []
    for _ in range(draw(st.integers(0, 3))):
        option = draw(st.sampled_from(options))
        words.append(draw(st.sampled_from(option.opts)))
        if not option.is_flag or draw(st.integers(0, 9)) == 0:
            words.append(draw(value))
    for place in places:
        count = draw(st.integers(0, 2)) if place.nargs == -1 or not place.required else 1
        words += [draw(value) for _ in range(count)]
    if draw(st.integers(0, 9)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(value))
    root = draw(st.sampled_from(((), (), ("--log-level", "error"), ("--cache-dir", "/dev/null"))))
    return [*root, *path, *words]


@cache
def _values() -> list[str]:
    """What a process can be given: bytes without NUL, as Python decodes them."""
    files = sorted(str(path) for path in _files().iterdir())
    texts = [text for text in TEXTS if _can_be_given(text)]
    return [
        *("acme/x", "acme/x@1", "acme/x@canary", _JOB, "acme", "canary", "-", "--", "--help", "@"),
        *("a=1", "a=", "=", "a=@" + files[0], '{"a": 1}', '{"a": NaN}', "[" * 2000, "nan", "inf"),
        *("1e400", "-1", "1" * 5000, "2G", "99999999999999999999G", "tpu", "cuda:99999", "bash"),
        *(
            str(nested(50)),
            "/dev/zero",
            "/dev/stdin",
            "/dev/full",
            "/proc/self/environ",
            "x" * 5000,
        ),
        *files,
        *(f"@{file}" for file in files),
        *texts,
    ]


def _can_be_given(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


@contextmanager
def _without_outside() -> Iterator[None]:
    """No network, no processes; the rest is as it is."""

    def no_network(*_: object, **__: object) -> None:
        raise ModelError("no network in this test")

    with ExitStack() as stack:
        for path, command in _commands().items():
            if path[0] in _STUBBED:
                stack.enter_context(patch.object(command, "callback", lambda **_: None))
        stack.enter_context(patch("worker.models.fetch.download_from_hub", no_network))
        stack.enter_context(patch("worker.models.fetch.download_gguf", no_network))
        yield


def run(arguments: list[str]) -> str:
    """Run the command in this process; a finding unless it ends with a code of ours, in words."""
    folder = _files()
    environment: dict[str, Any] = {
        "PREFILLQ_REDIS_URL": closed_port_url(),
        "PREFILLQ_CACHE_DIR": str(folder / "cache"),
        "PREFILLQ_JSON": None,
    }
    work = folder / "work"
    work.mkdir(exist_ok=True)
    before = Path.cwd()
    os.chdir(work)
    try:
        with bounded(), _without_outside():
            ended = CliRunner().invoke(main, arguments, env=environment, input=b'{"a": 1}')
    finally:
        os.chdir(before)
    if not isinstance(ended.exception, SystemExit | None):
        raise ended.exception
    if ended.exit_code not in CODES:
        raise Found(f"exit status {ended.exit_code}: {ended.output[-500:]}")
    for trace in ("Traceback", "something unexpected"):
        if trace in ended.output:
            raise Found(ended.output[-1000:])
    return f"exit {ended.exit_code}"


def targets() -> tuple[Target, ...]:
    """See `tests.fuzz.targets`."""
    return (
        Target(
            name="cli",
            about="command lines, run in this process without Redis and network",
            inputs=_arguments(),
            run=run,
            short=60,
        ),
    )
