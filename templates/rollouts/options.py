"""Values of command-line options that speak of time and shares: `10m`, `2%`, `1,10,50,100`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NoReturn

import click

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_DURATION = re.compile(rf"({_NUMBER})(s|m|h|d)?")
_PERCENT = re.compile(rf"({_NUMBER}) ?(%)?")
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # older releases of click do not know what it converts to


class _Value(_ParamType):
    """Fails with what was given and what would do."""

    expected = ""

    def refuse(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> NoReturn:
        self.fail(f"{str(value)!r:.60} is not {self.expected}", param, ctx)


class Duration(_Value):
    """Seconds, as `90s`, `10m`, `2h`, `1d` or `90`."""

    name = "duration"
    expected = "a length of time such as 90s, 10m or 2h"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(str(value))
        if match is None:
            self.refuse(value, param, ctx)
        return float(match.group(1)) * _SECONDS[match.group(2)]


class Share(_Value):
    """0 to 1 and beyond, as a percentage. Without the sign `0.02` might mean 2 %: refused."""

    name = "percent"
    expected = "a percentage such as 2%"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        match = _PERCENT.fullmatch(str(value))
        if match is None or match.group(2) is None:
            self.refuse(value, param, ctx)
        return float(Decimal(match.group(1)) / 100)


class Weight(_Value):
    """Parts of 10,000, as percent with at most two decimals; the sign may be left out."""

    name = "percent"
    expected = "0 to 100 percent with at most two decimals, such as 0.5%"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _PERCENT.fullmatch(str(value).strip())
        parts = Decimal(-1) if match is None else Decimal(match.group(1)) * 100
        if not 0 <= parts <= 10_000 or parts != parts.to_integral_value():
            self.refuse(value, param, ctx)
        return int(parts)


class Weights(_Value):
    """Weights between commas."""

    name = "percents"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        one = Weight()
        return tuple(one.convert(part, param, ctx) for part in str(value).split(","))


class Drop(_Value):
    """The name of a score and how far it may fall, as `quality=0.05`."""

    name = "name=number"
    expected = "the name of a score and a number, such as quality=0.05"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value[0], value[1]
        name, equals, number = str(value).partition("=")
        if not (name and equals and re.fullmatch(_NUMBER, number)):
            self.refuse(value, param, ctx)
        return name, float(number)
