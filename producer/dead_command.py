"""`prefillq dead`: jobs that used up their attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from contract.console import emit_json, emit_table, json_option, note, one_line, open_client, option

if TYPE_CHECKING:
    from contract.job_store import JobStore, JobView
    from contract.settings import Settings


@click.group()
def dead() -> None:
    """Jobs that failed with their last attempt: look at them, try them again, drop them."""


def _store(settings: Settings) -> JobStore:
    from contract.records import RedisJobStore

    return RedisJobStore(open_client(settings), settings)


def _tenants(settings: Settings) -> list[str]:
    from contract import keys
    from contract.redis_client import errors_explained, text

    client: Any = open_client(settings)  # redis-py types the reply as a value or an awaitable
    with errors_explained(settings):
        return sorted(text(name) for name in client.smembers(keys.TENANTS))


@dead.command(name="list")
@click.argument("tenant", required=False)
@option("--template", help="Only jobs of this template.")
@option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Jobs to look at."
)
@json_option
@click.pass_obj
def list_command(
    settings: Settings, *, tenant: str | None, template: str | None, limit: int, as_json: bool
) -> None:
    """List the dead jobs of TENANT, or of all tenants, the last to die first."""
    from contract.ids import check_name

    store = _store(settings)
    names = _tenants(settings) if tenant is None else [check_name("tenant", tenant)]
    found = [view for name in names for view in store.dead(name, limit=limit)]
    found.sort(key=lambda view: view.finished_at or 0.0, reverse=True)
    views = [view for view in found if template in (None, view.job.ref.template)][:limit]
    if as_json:
        emit_json([_described(view) for view in views])
        return
    if not views:
        note(f"no dead jobs of {tenant or 'any tenant'}")
        return
    emit_table(
        ("job", "version", "attempts", "died", "error"),
        [
            (
                row["job_id"],
                row["version"],
                row["attempts"],
                row["died_at"],
                one_line(f"{row['error']}: {row['message']}", limit=80),
            )
            for row in map(_described, views)
        ],
    )


@dead.command()
@click.argument("job_id", metavar="ID")
@json_option
@click.pass_obj
def show(settings: Settings, *, job_id: str, as_json: bool) -> None:
    """Show one dead job with its input."""
    view = _the_dead(_store(settings), job_id)
    described = _described(view) | {"input": dict(view.job.variables)}
    if as_json:
        emit_json(described)
        return
    for name, value in described.items():
        click.echo(f"{name:10} {one_line(str(value))}")


@dead.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds that each job may take from now on.",
)
@json_option
@click.pass_obj
def retry(
    settings: Settings, *, job_ids: tuple[str, ...], deadline: float | None, as_json: bool
) -> None:
    """Queue dead jobs again, with all their attempts."""
    from contextlib import closing

    from producer.bell import CeleryBell, Ring

    store = _store(settings)
    for job_id in job_ids:
        _the_dead(store, job_id)  # all or none, as far as can be known
    with closing(CeleryBell(settings)) as bell:
        for job_id in job_ids:
            # Should the ring be lost, the janitor's is not.
            bell.ring([Ring(queue=store.revive(job_id, deadline_s=deadline), job_id=job_id)])
    _say(job_ids, "queued", as_json=as_json)


@dead.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True)
@json_option
@click.pass_obj
def drop(settings: Settings, *, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Erase dead jobs and their input."""
    store = _store(settings)
    for job_id in job_ids:
        _the_dead(store, job_id)
    for job_id in job_ids:
        store.drop(job_id)
    _say(job_ids, "dropped", as_json=as_json)


def _the_dead(store: JobStore, job_id: str) -> JobView:
    from contract.job_refusals import not_dead

    view = store.get(job_id)
    if not view.dead:
        raise not_dead(job_id, view.state)
    return view


def _described(view: JobView) -> dict[str, Any]:
    from datetime import UTC, datetime

    job, error = view.job, view.result.error if view.result else None
    died_at = datetime.fromtimestamp(view.finished_at or 0.0, tz=UTC)
    return {
        "job_id": job.id,
        "version": str(job.ref),
        "attempts": job.attempt,
        "died_at": died_at.isoformat(timespec="seconds"),
        "worker": view.worker,
        "error": error.code if error else "",
        "message": error.message if error else "",
        "remedy": error.remedy if error else "",
    }


def _say(job_ids: tuple[str, ...], what: str, *, as_json: bool) -> None:
    if as_json:
        emit_json([{"job_id": job_id, "status": what} for job_id in job_ids])
    else:
        for job_id in job_ids:
            click.echo(f"{job_id} {what}")
