"""Values of the options of `prefillq scale`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from templates.rollouts.options import Duration

if TYPE_CHECKING:
    _Pair = click.ParamType[tuple[str, int]]
    _Numbers = click.ParamType[tuple[int, ...]]
else:
    _Pair = _Numbers = click.ParamType  # older releases of click do not know what it converts to

LOOPBACK = "127.0.0.1"
MOST_WORKERS = 100_000
_YEAR_S = 366 * 86_400.0


class Wait(Duration):
    """A length of time above 0."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = super().convert(value, param, ctx)
        if not 0 < seconds <= _YEAR_S:
            self.refuse(value, param, ctx)
        return seconds


class HostPort(_Pair):
    """`HOST:PORT`, `[::1]:PORT` or `PORT`; without a host this machine alone."""

    name = "host:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value[0], value[1]
        host, _, port = str(value).rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not (port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65_536):
            self.fail(f"{value!r:.60} is no HOST:PORT such as 127.0.0.1:9465", param, ctx)
        if ":" in bare and bare == host:
            self.fail(f"{value!r:.60}: write an IPv6 address in brackets", param, ctx)
        return bare or LOOPBACK, int(port)


class Counts(_Numbers):
    """Numbers of workers between commas."""

    name = "n,n,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        counts = []
        for part in str(value).split(","):
            word = part.strip()
            number = int(word) if word.isascii() and word.isdecimal() and len(word) < 7 else 0
            if not 0 < number <= MOST_WORKERS:
                self.fail(f"{word!r:.40} is no number from 1 to {MOST_WORKERS}", param, ctx)
            counts.append(number)
        return tuple(dict.fromkeys(counts))
