"""What each address shows: from a request to a template and its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.datastructures import QueryParams

from contract.errors import InvalidInput, NotFound, PrefillqError
from contract.ids import tenant_of
from contract.job_refusals import no_such_job
from ui.look import JobRow, JobSight, Look, TemplateSight
from ui.reader import Reader
from ui.watch import Away, Seen, Watch
from ui.waterfall import WIDTH, bars

T = TypeVar("T")

STATES = ("waiting", "running", "ended", "dead")
_OUTCOMES_EVERY_S = 10.0  # a rollout's outcomes are thousands of entries
_ON_OVERVIEW = 8
_LISTED = 200  # jobs on one page
# Prefixes on one page, shared evenly by the workers: each may have thousands, and the page is made
# and sent anew for every browser every two seconds.
_HELD, _LEAST_HELD = 1000, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A page before it is HTML."""

    template: str
    title: str
    status: int = 200
    away: Away | None = None
    words: dict[str, Any] = field(default_factory=dict)


class Views:
    """The pages. Each reads through the watch, so that browsers share what was read."""

    def __init__(self, watch: Watch, reader: Reader, *, show_text: bool) -> None:
        self._watch = watch
        self._reader = reader
        self._show_text = show_text

    async def overview(self, _path: dict[str, str], _query: QueryParams) -> Shown:
        def words(look: Look) -> dict[str, Any]:
            busy = [queue for queue in look.queues if queue.waiting or queue.running]
            busy.sort(key=lambda queue: (queue.waiting, queue.running or 0), reverse=True)
            return {
                "busy": busy[:_ON_OVERVIEW],
                "busy_left": max(0, len(busy) - _ON_OVERVIEW),
                "latest": None if look.ended is None else look.ended[:_ON_OVERVIEW],
            }

        return await self._of_look("overview.html", "Overview", words)

    async def queues(self, _path: dict[str, str], _query: QueryParams) -> Shown:
        return await self._of_look("queues.html", "Queues")

    async def workers(self, _path: dict[str, str], _query: QueryParams) -> Shown:
        def words(look: Look) -> dict[str, Any]:
            workers = look.workers or ()
            each = max(_LEAST_HELD, _HELD // max(1, len(workers)))
            return {"held": [_held(worker["versions"], each) for worker in workers]}

        return await self._of_look("workers.html", "Workers", words)

    async def rollouts(self, _path: dict[str, str], _query: QueryParams) -> Shown:
        return await self._of_look("rollouts.html", "Rollouts")

    async def tenants(self, _path: dict[str, str], _query: QueryParams) -> Shown:
        return await self._of_look("tenants.html", "Tenants")

    async def jobs(self, _path: dict[str, str], query: QueryParams) -> Shown:
        tenant, template = query.get("tenant", ""), query.get("template", "")
        state = query.get("state", "")

        def words(look: Look) -> dict[str, Any]:
            lists = {
                name: None if rows is None else _matching(rows, tenant, template)
                for name, rows in _lists(look).items()
                if state in ("", name)
            }
            return {
                "lists": lists,
                "limit": _LISTED,
                "tenant": tenant,
                "template": template,
                "state": state,
                "states": STATES,
                "templates": sorted({q.template for q in look.queues if tenant in ("", q.tenant)}),
            }

        return await self._of_look("jobs.html", "Jobs", words)

    async def job(self, path: dict[str, str], _query: QueryParams) -> Shown:
        job_id = path["job_id"]
        try:
            tenant_of(job_id)
        except InvalidInput:
            return _trouble(no_such_job(job_id[:80]), None)
        seen: Seen[JobSight] = await self._watch.see(
            f"job {job_id}", lambda: self._reader.job(job_id, with_text=self._show_text)
        )
        if (sight := seen.value) is None:
            return _trouble(seen.error, seen.away)
        result = sight.view.result
        return Shown(
            template="job.html",
            title=f"Job {job_id}",
            away=seen.away,
            words={
                "at": sight.at,
                "sight": sight,
                "job": sight.view.job,
                "view": sight.view,
                "result": result,
                "bars": [] if result is None else bars(result.timings),
                "bar_width": WIDTH,
            },
        )

    async def template(self, path: dict[str, str], _query: QueryParams) -> Shown:
        tenant, name = path["tenant"], path["name"]
        seen: Seen[TemplateSight] = await self._watch.see(
            f"template {tenant}/{name}",
            lambda: self._reader.template(tenant, name),
            every_s=_OUTCOMES_EVERY_S,
        )
        if seen.value is None:
            return _trouble(seen.error, seen.away)
        return Shown(
            template="template.html",
            title=f"{tenant}/{name}",
            away=seen.away,
            words={"at": seen.value.at, "sight": seen.value, "rollout": seen.value.state.rollout},
        )

    async def _of_look(
        self,
        template: str,
        title: str,
        words: Callable[[Look], dict[str, Any]] = lambda _look: {},
    ) -> Shown:
        seen = await self._watch.see("look", self._reader.look)
        if seen.value is None:
            return _trouble(seen.error, seen.away)
        return Shown(
            template=template,
            title=title,
            away=seen.away,
            words={"at": seen.value.at, "look": seen.value, **words(seen.value)},
        )


def _lists(look: Look) -> dict[str, tuple[JobRow, ...] | None]:
    return {
        "running": look.running,
        "waiting": look.waiting,
        "ended": look.ended,
        "dead": look.dead,
    }


def _held(versions: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Those in memory first, in the order of their names as before."""
    return sorted(versions, key=lambda version: not version["cached"])[:most]


def _matching(rows: tuple[JobRow, ...], tenant: str, template: str) -> list[JobRow]:
    return [row for row in rows if tenant in ("", row.tenant) and template in ("", row.template)]


def _trouble(error: PrefillqError | None, away: Away | None) -> Shown:
    """The page for what cannot be shown."""
    if away is not None:
        return Shown(
            template="trouble.html",
            title="Redis cannot be reached",
            status=503,
            away=away,
            words={"error": None},
        )
    found = error or PrefillqError("something unexpected happened")
    missing = isinstance(found, NotFound)
    return Shown(
        template="trouble.html",
        title="Not found" if missing else "Cannot be shown",
        status=404 if missing else 500,
        words={"error": found},
    )


def not_found() -> Shown:
    """For an address that is none of ours."""
    return _trouble(NotFound("no such page", remedy="Begin at the overview."), None)
