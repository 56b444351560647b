"""`prefillq tenants`: Redis users for tenants and workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from contract.console import emit_json, emit_table, json_option, note, open_client, option
from contract.errors import InvalidInput
from contract.ids import check_name
from tenants.limits_command import given_limits, limit_options, limits, open_store

if TYPE_CHECKING:  # these bring Redis, which help and completion do without
    from contract.settings import Settings
    from contract.users import RedisUser
    from tenants.accounts import Account, Accounts, Credentials

_ROLES = ("producer", "admin")


@click.group()
def tenants() -> None:
    """Make Redis users that reach one tenant's jobs and templates alone."""


tenants.add_command(limits)


def _open(settings: Settings) -> Accounts:
    from tenants.accounts import Accounts

    return Accounts(open_client(settings), settings)


def _users(tenant: str, role: str | None) -> list[RedisUser]:
    from contract.users import TENANT_ROLES, Role
    from tenants.accounts import users_of_tenant

    return users_of_tenant(tenant, TENANT_ROLES if role is None else [Role(role)])


keep_old_option = option(
    "--keep-old", is_flag=True, help="The present password works too, until the next rotation."
)
role_option = option("--role", type=click.Choice(_ROLES), help="Only this one (default: both).")


@tenants.command()
@click.argument("tenant")
@role_option
@limit_options
@json_option
@click.pass_obj
def create(
    settings: Settings,
    *,
    tenant: str,
    role: str | None,
    rate: float | None,
    max_queued: int | None,
    max_running: int | None,
    as_json: bool,
) -> None:
    """Make TENANT's producer and admin and print their credentials, once.

    The producer submits, reads results and cancels. The admin publishes templates and moves
    labels. Needs Redis 7.2 or later and an operator's URL. Limits can be changed later with
    'prefillq tenants limits'.
    """
    accounts = _open(settings)
    if (given := given_limits(rate, max_queued, max_running)) is not None:
        open_store(settings).set_limits(check_name("tenant", tenant), given)
    _show_new(accounts, accounts.create(_users(tenant, role)), as_json=as_json)


@tenants.command(name="worker-user")
@option("--rotate", is_flag=True, help="Give it a new password instead of making it.")
@option("--remove", is_flag=True, help="End it instead of making it.")
@keep_old_option
@json_option
@click.pass_obj
def worker_user(
    settings: Settings, *, rotate: bool, remove: bool, keep_old: bool, as_json: bool
) -> None:
    """Make the user that all workers share and print its credentials, once."""
    from contract.users import WORKER

    if (rotate and remove) or (keep_old and not rotate):
        raise InvalidInput(
            "these options do not go together", expected="--rotate [--keep-old], or --remove"
        )
    accounts = _open(settings)
    if remove:
        _show_changed(accounts, accounts.remove([WORKER]), "removed", as_json=as_json)
    elif rotate:
        _show_new(accounts, accounts.rotate([WORKER], keep_old=keep_old), as_json=as_json)
    else:
        _show_new(accounts, accounts.create([WORKER]), as_json=as_json)


@tenants.command()
@click.argument("tenant")
@role_option
@keep_old_option
@json_option
@click.pass_obj
def rotate(
    settings: Settings, *, tenant: str, role: str | None, keep_old: bool, as_json: bool
) -> None:
    """Give TENANT's users new passwords and print them, once.

    Connections made with an old password are closed, unless --keep-old is given.
    """
    accounts = _open(settings)
    credentials = accounts.rotate(_users(tenant, role), keep_old=keep_old)
    _show_new(accounts, credentials, as_json=as_json)


@tenants.command()
@click.argument("tenant")
@role_option
@json_option
@click.pass_obj
def remove(settings: Settings, *, tenant: str, role: str | None, as_json: bool) -> None:
    """End TENANT's users and their connections; its templates and jobs stay."""
    accounts = _open(settings)
    _show_changed(accounts, accounts.remove(_users(tenant, role)), "removed", as_json=as_json)


@tenants.command()
@option("--drop-old", is_flag=True, help="Delete the functions of other releases.")
@json_option
@click.pass_obj
def update(settings: Settings, *, drop_old: bool, as_json: bool) -> None:
    """Give all users the rights of this release and store its functions.

    To be run once after each upgrade of prefillq. Passwords stay.
    """
    accounts = _open(settings)
    _show_changed(accounts, accounts.update(drop_old=drop_old), "updated", as_json=as_json)


@tenants.command(name="list")
@option("--acl", is_flag=True, help="Print lines for Redis's ACL file (hashed passwords).")
@json_option
@click.pass_obj
def list_command(settings: Settings, *, acl: bool, as_json: bool) -> None:
    """List the users there are."""
    accounts = _open(settings)
    found = accounts.read()
    if as_json:
        current = accounts.has_functions()
        emit_json({"users": [_plain(account) for account in found], "functions": current})
    elif acl:
        for account in found:
            click.echo(account.rule)
    elif found:
        emit_table(
            ("user", "tenant", "role", "enabled", "passwords"),
            [
                (
                    account.user.name,
                    account.user.tenant or "-",
                    account.user.role,
                    "yes" if account.enabled else "no",
                    account.passwords,
                )
                for account in found
            ],
        )
        if not accounts.has_functions():
            note("this Redis lacks the functions of this release: run 'prefillq tenants update'")
    else:
        note("no users; make a tenant's with 'prefillq tenants create TENANT'")


def _plain(account: Account) -> dict[str, Any]:
    return {
        "user": account.user.name,
        "tenant": account.user.tenant,
        "role": str(account.user.role),
        "enabled": account.enabled,
        "passwords": account.passwords,
        "acl": account.rule,
    }


def _show_new(accounts: Accounts, made: Sequence[Credentials], *, as_json: bool) -> None:
    saved, warnings = accounts.save(), accounts.warnings()
    if as_json:
        users = [
            {
                "user": item.user.name,
                "tenant": item.user.tenant,
                "role": str(item.user.role),
                "password": item.password,
                "url": item.url,
            }
            for item in made
        ]
        emit_json({"users": users, "saved": saved.place, "note": saved.note, "warnings": warnings})
        return
    emit_table(("role", "PREFILLQ_REDIS_URL"), [(item.user.role, item.url) for item in made])
    note("The passwords are shown this once: Redis keeps their hashes, and nobody else anything.")
    _talk(saved.note, warnings)


def _show_changed(
    accounts: Accounts, users: Sequence[RedisUser], what: str, *, as_json: bool
) -> None:
    saved, warnings = accounts.save(), accounts.warnings()
    names = [user.name for user in users]
    if as_json:
        emit_json({what: names, "saved": saved.place, "note": saved.note, "warnings": warnings})
        return
    for name in names:
        note(f"{what} {name}")
    _talk(saved.note, warnings)


def _talk(saved: str, warnings: Sequence[str]) -> None:
    note(saved)
    for warning in warnings:
        note(f"warning: {warning}")
