"""`prefillq templates orphans`: versions that could be retired."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from contract.console import emit_json, emit_table, json_option, note, open_client
from contract.ids import check_name
from templates.cli_tools import open_registry

if TYPE_CHECKING:
    from contract.settings import Settings

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@click.command()
@click.argument("tenant", required=False)
@json_option
@click.pass_obj
def orphans(settings: Settings, *, tenant: str | None, as_json: bool) -> None:
    """List versions that no label, rollout or unfinished job uses.

    Of one TENANT, or of all that this user may see.

    They do no harm. Retired, they take no jobs by their number either, and workers forget their
    prefixes. A tenant's own users may not count jobs: for them, versions that have some are listed
    too.
    """
    from contract.records import RedisJobStore
    from contract.users import Role, user_of
    from templates.orphans import find_orphans

    if tenant is not None:
        check_name("tenant", tenant)
    user = user_of(settings.redis_url)
    sees_jobs = user is None or user.role is Role.WORKER
    store = RedisJobStore(open_client(settings), settings) if sees_jobs else None
    found = find_orphans(open_registry(settings), store, tenant)
    if as_json:
        emit_json({"orphans": [one.to_dict() for one in found], "jobs_known": sees_jobs})
        return
    if found:
        emit_table(
            ("version", "digest", "prefix tokens", "age", ""),
            [
                (
                    one.ref,
                    one.ref.digest[:12],
                    one.prefix_tokens,
                    _age(one.age_s),
                    "newest" if one.newest else "",
                )
                for one in found
            ],
        )
        note("'prefillq templates retire VERSION' retires one; --undo takes that back")
    else:
        note("no orphans")
    if not sees_jobs:
        note("unfinished jobs were not looked at: this user may not")


def _age(seconds: float) -> str:
    """In the largest unit that it has one of."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "0 s"
