"""How every command of ours talks: data on stdout, talk on stderr, `--json` everywhere.

The root command's own options, and what it does with errors, are in `producer.cli`.
"""

from __future__ import annotations

import errno
import functools
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from contract.errors import InvalidInput
from contract.files import read_text

if TYPE_CHECKING:  # these bring Redis, which help and completion do without
    from contract.redis_client import Client
    from contract.settings import Settings

MAX_JSON_BYTES = 64 * 2**20
YEAR_S = 366 * 86_400.0
_JSON = "prefillq.json"
_F = TypeVar("_F", bound=Callable[..., Any])

# An option whose help names its environment variable, PREFILLQ_<COMMAND>_<OPTION>.
option = functools.partial(click.option, show_envvar=True)


class Seconds(click.FloatRange):
    """A length of time that a clock can count: 0 to a year, and not NaN, which passes ranges."""

    def __init__(self, *, min_open: bool = False) -> None:
        super().__init__(min=0, max=YEAR_S, min_open=min_open)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r:.40} is no number of seconds", param, ctx)
        return seconds


def json_option(function: _F) -> _F:
    """Give a command `--json`, passed as `as_json`; errors then come as JSON too."""
    decorate = option(
        "--json",
        "as_json",
        envvar="PREFILLQ_JSON",  # one for all commands
        is_flag=True,
        is_eager=True,  # before the others, so that their errors are JSON already
        callback=_remember,
        help="Print one JSON value on stdout, for errors too.",
    )
    return decorate(function)


def _remember(ctx: click.Context, _option: click.Parameter, value: bool) -> bool:
    ctx.meta[_JSON] = value
    return value


def open_client(settings: Settings) -> Client:
    """A connection to Redis that is closed when the command ends."""
    from contract.redis_client import connect

    client: Client = click.get_current_context().with_resource(connect(settings))
    return client


def json_wanted(ctx: click.Context) -> bool:
    """True when the command that ran (or began to) was given `--json`."""
    return bool(ctx.meta.get(_JSON, False))


def emit_json(value: object) -> None:
    """One line of JSON on stdout."""
    click.echo(json_line(value))


def json_line(value: object) -> str:
    """JSON on one line that can be written as UTF-8, whatever text is in it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not text.isascii() and text != text.encode("utf-8", "replace").decode("utf-8"):
        text = json.dumps(value, allow_nan=False)  # a lone surrogate can only be escaped
    return text


def note(text: str) -> None:
    """Talk: one line on stderr, without codes that would steer a terminal."""
    click.echo(_harmless(text), err=True)


def emit_text(text: str, *, nl: bool = True) -> None:
    """Text that others made, on stdout: as it is, but on a terminal without codes that steer it."""
    click.echo(_harmless(text) if sys.stdout.isatty() else text, nl=nl)


def _harmless(text: str) -> str:
    if text.isprintable():
        return text
    kept = "\n\t"
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def emit_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns on stdout, never cut to the terminal's width, so that pipes work."""
    cells = [[one_line(str(cell)) for cell in row] for row in (headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        click.echo(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def one_line(text: str, *, limit: int | None = None) -> str:
    """`text` fit for a table: no line breaks, no terminal control codes."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean if limit is None or len(clean) <= limit else f"{clean[: limit - 3]}..."


def read_json_argument(value: str, *, what: str) -> Any:
    """JSON given as itself, as `@file`, or as `-` for stdin.

    Raises InvalidInput naming `what`, but nothing of the JSON, when it cannot be read or is none.
    """
    try:
        text = _json_text(value)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInput(
            f"{what} cannot be read",
            given=f"{value[:120]} ({reason})",
            expected=f"a UTF-8 file of at most {MAX_JSON_BYTES} bytes",
            remedy="Pipe it in with - if it is no file.",
        ) from error
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "too deeply nested"
        raise InvalidInput(
            f"{what} is no JSON",
            given=f"{len(text)} characters ({reason[:120]})",
            expected='JSON such as {"name": "value"}, @file or - for stdin',
        ) from error


def _json_text(value: str) -> str:
    """Raises OSError or UnicodeDecodeError; both only for what is not the argument itself."""
    if value == "-":
        content = sys.stdin.buffer.read(MAX_JSON_BYTES + 1)
        if len(content) > MAX_JSON_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MAX_JSON_BYTES} bytes")
        return content.decode("utf-8-sig")
    if value.startswith("@"):
        return read_text(value[1:], max_bytes=MAX_JSON_BYTES)
    return value


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
