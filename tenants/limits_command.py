"""`prefillq tenants limits`, and the same options for `create`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from contract.console import emit_json, json_option, open_client, option

if TYPE_CHECKING:  # these bring Redis, which help and completion do without
    from contract.job_store import JobStore, TenantLimits
    from contract.settings import Settings

_F = TypeVar("_F", bound=Callable[..., Any])
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


class Rate(click.ParamType[float]):
    """`50/s`, `30/min`, `100/h` as jobs a second."""

    name = "N/s"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d{1,7}(?:\.\d{1,6})?)/(s|min|h)", str(value).strip())
        if match is None or float(match[1]) == 0:
            self.fail(f"{value!r} is no rate; write 50/s, 30/min or 100/h", param, ctx)
        return float(match[1]) / _SECONDS[match[2]]


def limit_options(function: _F) -> _F:
    """`--rate`, `--max-queued` and `--max-running`, each None unless given."""
    options = (
        option("--rate", type=Rate(), help="Submits, such as 50/s or 30/min."),
        option("--max-queued", type=click.IntRange(min=0), help="Jobs that may wait at once."),
        option("--max-running", type=click.IntRange(min=0), help="Jobs that may run at once."),
    )
    return functools.reduce(lambda decorated, decorate: decorate(decorated), options, function)


def given_limits(
    rate: float | None, max_queued: int | None, max_running: int | None
) -> TenantLimits | None:
    """What the options said; None when they said nothing."""
    from contract.job_store import TenantLimits

    limits = TenantLimits(rate_per_s=rate, max_queued=max_queued, max_running=max_running)
    return None if limits == TenantLimits() else limits


def open_store(settings: Settings) -> JobStore:
    """Where limits are kept."""
    from contract.records import RedisJobStore

    return RedisJobStore(open_client(settings), settings)


@click.command()
@click.argument("tenant")
@limit_options
@option("--none", "none", is_flag=True, help="End all limits.")
@json_option
@click.pass_obj
def limits(
    settings: Settings,
    *,
    tenant: str,
    rate: float | None,
    max_queued: int | None,
    max_running: int | None,
    none: bool,
    as_json: bool,
) -> None:
    """Show what TENANT may have at most, or set it: what is not given is not limited.

    Holds at once, for all producers and workers. Jobs that are queued or running stay.
    """
    from contract.ids import check_name
    from contract.job_store import TenantLimits

    store = open_store(settings)
    check_name("tenant", tenant)
    given = given_limits(rate, max_queued, max_running)
    if none and given is not None:
        raise click.UsageError("--none goes with no other limit")
    if none or given is not None:
        store.set_limits(tenant, given or TenantLimits())
    _show(tenant, store.limits(tenant), as_json=as_json)


def _show(tenant: str, found: TenantLimits, *, as_json: bool) -> None:
    plain = {
        "tenant": tenant,
        "rate_per_s": found.rate_per_s,
        "max_queued": found.max_queued,
        "max_running": found.max_running,
    }
    if as_json:
        emit_json(plain)
        return
    for name, value in plain.items():
        click.echo(f"{name:12} {'no limit' if value is None else value}")
