"""How every command of ours talks: data on stdout, talk on stderr, `--json` everywhere.

The root command's own options, and what it does with errors, are in `producer.cli`.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from contract.errors import InvalidInput

_JSON = "prefillq.json"
_F = TypeVar("_F", bound=Callable[..., Any])

# An option whose help names its environment variable, PREFILLQ_<COMMAND>_<OPTION>.
option = functools.partial(click.option, show_envvar=True)


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


def json_wanted(ctx: click.Context) -> bool:
    """True when the command that ran (or began to) was given `--json`."""
    return bool(ctx.meta.get(_JSON, False))


def emit_json(value: object) -> None:
    """One line of JSON on stdout."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not text.isascii() and text != text.encode("utf-8", "replace").decode("utf-8"):
        text = json.dumps(value, allow_nan=False)  # a lone surrogate can only be escaped
    click.echo(text)


def note(text: str) -> None:
    """Talk: one line on stderr."""
    click.echo(text, err=True)


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

    Raises InvalidInput naming `what` when it cannot be read or is no JSON.
    """
    try:
        if value == "-":
            text = sys.stdin.read()
        elif value.startswith("@"):
            text = Path(value[1:]).read_text("utf-8")
        else:
            text = value
        return json.loads(text, parse_constant=_no_constant)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{what} cannot be read", given=f"{value[:120]} ({error})", expected="a UTF-8 file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{what} is no JSON",
            given=f"{value[:120]!r} ({error})",
            expected='JSON such as {"name": "value"}, @file or - for stdin',
        ) from error


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
