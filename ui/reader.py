"""Reads from Redis what the pages show, and writes nothing.

A look is a handful of round trips, whatever there is: every key is known by its name from the sets
of tenants and templates, and nothing is searched for. Of jobs only the fields are read that are
shown, and of those none that is longer than it should be; the fields with text in them are read for
the page of one job alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from redis.exceptions import ResponseError

from contract import keys
from contract.errors import CodecError, NotFound
from contract.ids import is_name, tenant_of
from contract.job_refusals import no_such_job
from contract.job_store import TenantLimits
from contract.load import load_library
from contract.logs import get_logger
from contract.record_hash import view_of
from contract.redis_client import Client, errors_explained, text
from contract.scripts import Scripts
from contract.settings import Settings
from contract.worker_reports import check_report, list_workers
from templates.reading import RegistryReader
from templates.rollouts.outcomes import describe
from templates.rollouts.plain import MAX_TEXT_BYTES, parse_text
from templates.stored import read_names
from ui.ended import Ended
from ui.look import (
    MAX_DEAD,
    MAX_ROLLOUTS,
    MAX_RUNNING,
    MAX_TEMPLATES,
    MAX_TENANTS,
    MAX_WAITING,
    JobRow,
    JobSight,
    Look,
    QueueRow,
    RolloutRow,
    TemplateSight,
    TenantRow,
)
from ui.scope import Scope
from ui.values import fairly, ids_of, limits_of, record_of, seconds_of, submitted_at

log = get_logger(__name__)

_FIELDS = (
    *("template", "version", "digest", "queue", "use_cache", "created_at", "deadline_at"),
    *("attempt", "fence", "rollout", "state", "worker", "finished_at", "dead"),
    "cancel_requested",
)
_RESULT_FIELDS = ("result", "commit_s")
_TEXT_FIELDS = ("input",)
_JOURNAL = 30
_JOURNAL_BYTES = 4 * 1024 * 1024
_AT_ONCE = 500  # commands in one pipeline
_RECORDS_AT_ONCE = 100  # in one script: Redis serves nobody else meanwhile
_LONGEST = 200  # bytes of a field; prefillq writes none of `_FIELDS` longer
_LONGEST_TEXT = 4 * 1024 * 1024  # of an answer or variables: a page with more helps nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What the first commands say of a tenant."""

    name: str
    templates: list[str]
    rollouts: list[str]
    running: int
    running_ids: list[str]
    dead: int
    dead_ids: list[str]
    limits: TenantLimits


class Reader:
    """Safe to share between threads, but for `look`, which one at a time may call."""

    def __init__(self, client: Client, settings: Settings, scope: Scope, ended: Ended) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
        self._scripts = Scripts(client, settings, load_library())
        self._registry = RegistryReader(client, settings)
        self._ended_rows: dict[str, JobRow] = {}  # what has ended stays as it is
        self.scope = scope
        self.ended = ended

    def look(self) -> Look:
        """Raises RedisUnreachable and RedisRefused."""
        left_out = []
        at, names = self._tenants()
        if len(names) > MAX_TENANTS:
            left_out.append(f"{len(names) - MAX_TENANTS} tenants; name some with --tenant")
        found = [self._tenant(name, *parts) for name, parts in self._ask(names[:MAX_TENANTS])]
        templates = [(tenant.name, name) for tenant in found for name in tenant.templates]
        if len(templates) > MAX_TEMPLATES:
            left_out.append(f"{len(templates) - MAX_TEMPLATES} templates")
        rollouts = [[(tenant.name, name) for name in tenant.rollouts] for tenant in found]
        shown = fairly(rollouts, MAX_ROLLOUTS)
        if (more := sum(map(len, rollouts)) - len(shown)) > 0:
            left_out.append(f"{more} rollouts")
        lengths = self._lengths(templates[:MAX_TEMPLATES])
        running, waiting, dead, ended = self._rows(found, [ids for _, ids in lengths.values()])
        running_of = _running_of(running, found)
        queues = [
            QueueRow(
                tenant=tenant,
                template=name,
                waiting=length,
                oldest_at=submitted_at(ids),
                running=running_of(tenant, name),
            )
            for (tenant, name), (length, ids) in lengths.items()
        ]
        workers, strange = self._workers()
        return Look(
            at=at,
            tenants=tuple(
                TenantRow(
                    name=tenant.name,
                    templates=len(tenant.templates),
                    waiting=sum(q.waiting for q in queues if q.tenant == tenant.name),
                    running=tenant.running,
                    dead=tenant.dead,
                    limits=tenant.limits,
                )
                for tenant in found
            ),
            queues=tuple(queues),
            workers=workers,
            strange_workers=strange,
            running=running,
            waiting=waiting,
            dead=dead,
            ended=ended,
            rollouts=self._rollouts(shown),
            left_out=tuple(left_out),
        )

    def job(self, job_id: str, *, with_text: bool) -> JobSight:
        """Raises NotFound, for jobs that are not to be shown too, and CodecError."""
        if not self.scope.covers(tenant_of(job_id)) or not self.scope.records:
            raise no_such_job(job_id)
        texts = (*_RESULT_FIELDS, *(_TEXT_FIELDS if with_text else ()))
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            pipe.time()
            for longest, names in ((_LONGEST, _FIELDS), (_LONGEST_TEXT, texts)):
                self._scripts.add(
                    "fields", keys=[keys.job(job_id)], args=[longest, *names], pipe=pipe
                )
            time, [facts], [answer] = pipe.execute()
        for reply in (facts, answer):
            if isinstance(reply, bytes):
                raise CodecError("a job has a field that is too long to show", given=text(reply))
        record = record_of(_FIELDS, facts or ()) | record_of(texts, answer or ())
        if b"state" not in record:
            raise no_such_job(job_id)
        return JobSight(at=seconds_of(time), view=view_of(job_id, record), with_text=with_text)

    def template(self, tenant: str, name: str) -> TemplateSight:
        """Raises NotFound, for templates that are not to be shown too, and CodecError."""
        if not (is_name(tenant) and is_name(name) and self.scope.covers(tenant)):
            raise _no_such_template()
        sight = self._registry.sight(tenant, name, longest=MAX_TEXT_BYTES)
        if not sight.state.versions:
            raise _no_such_template()
        rollout, outcomes = sight.state.rollout, []
        if rollout is not None:
            outcomes = describe(self._client, self._settings, tenant, name, rollout)
        return TemplateSight(
            at=sight.now,
            tenant=tenant,
            name=name,
            state=sight.state,
            damage="" if sight.damage is None else sight.damage.without_remedy,
            outcomes=tuple(outcomes),
            journal=tuple(
                self._registry.history(tenant, name, _JOURNAL, most_bytes=_JOURNAL_BYTES)
            ),
        )

    def _tenants(self) -> tuple[float, list[str]]:
        """The server's time, and whom to show."""
        if self.scope.tenants is not None:
            return seconds_of(self._replies([("TIME",)])[0]), list(self.scope.tenants)
        time, names = self._replies([("TIME",), ("SMEMBERS", keys.TENANTS)])
        return seconds_of(time), read_names(names or ())

    def _ask(self, names: Sequence[str]) -> list[tuple[str, list[Any]]]:
        """The first replies about each tenant."""
        asked = [
            (
                ("SMEMBERS", keys.templates(name)),
                ("SMEMBERS", keys.rollouts(name)),
                ("ZCARD", keys.running(name)),
                ("ZRANGE", keys.running(name), 0, MAX_RUNNING - 1),
                ("ZCARD", keys.dead(name)),
                ("ZRANGE", keys.dead(name), 0, MAX_DEAD - 1, "REV"),
                ("HMGET", keys.limits(name), "rate", "max_queued", "max_running"),
            )
            for name in names
        ]
        replies = iter(self._replies([command for commands in asked for command in commands]))
        return [
            (name, list(islice(replies, len(commands))))
            for name, commands in zip(names, asked, strict=True)
        ]

    def _tenant(self, name: str, *parts: Any) -> _Found:
        templates, rollouts, running, running_ids, dead, dead_ids, limits = parts
        self.ended.follow([name] if self.scope.records else [])
        return _Found(
            name=name,
            templates=read_names(templates or ()),
            rollouts=read_names(rollouts or ()),
            running=running or 0,
            running_ids=ids_of(name, running_ids),
            dead=dead or 0,
            dead_ids=ids_of(name, dead_ids),
            limits=limits_of(name, limits),
        )

    def _lengths(
        self, templates: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[int, list[str]]]:
        """Of each template how many wait, and the ids of the first."""
        waiting = [keys.waiting(tenant, name) for tenant, name in templates]
        replies = self._replies(
            [
                command
                for key in waiting
                for command in (
                    ("ZCOUNT", key, "-inf", "+inf"),
                    ("ZRANGE", key, 0, MAX_WAITING - 1),
                )
            ]
        )
        pairs = zip(replies[::2], replies[1::2], strict=True)
        return {
            (tenant, name): (length or 0, ids_of(tenant, ids))
            for (tenant, name), (length, ids) in zip(templates, pairs, strict=True)
        }

    def _rows(
        self, found: Sequence[_Found], waiting_ids: Sequence[list[str]]
    ) -> Sequence[tuple[JobRow, ...] | None]:
        """Jobs that run, wait, are dead and ended."""
        if not self.scope.records:
            return [None] * 4
        running = fairly([tenant.running_ids for tenant in found])
        waiting = fairly(waiting_ids)
        dead = fairly([tenant.dead_ids for tenant in found])
        ended = [job_id for tenant in found for job_id in self.ended.ids(tenant.name)]
        known = {job_id: row for job_id in ended if (row := self._ended_rows.get(job_id))}
        wanted = dict.fromkeys((*running, *waiting, *dead, *ended))
        rows = known | self._read([job_id for job_id in wanted if job_id not in known])
        self._ended_rows = {
            job_id: rows[job_id]
            for job_id in ended
            if job_id in rows and rows[job_id].ended_at is not None and not rows[job_id].dead
        }
        listed = [[rows[one] for one in ids if one in rows] for ids in (running, waiting, dead)]
        last = [rows[job_id] for job_id in ended if job_id in rows and rows[job_id].state.ended]
        by_end = sorted(last, key=lambda row: row.ended_at or 0.0, reverse=True)
        by_death = sorted(listed[2], key=lambda row: row.ended_at or 0.0, reverse=True)
        by_submit = [sorted(some, key=lambda row: row.created_at) for some in listed[:2]]
        return [tuple(some) for some in (*by_submit, by_death, by_end)]

    def _read(self, job_ids: Sequence[str]) -> dict[str, JobRow]:
        rows = {}
        for job_id, reply in zip(job_ids, self._records(job_ids), strict=True):
            if isinstance(reply, bytes):
                log.warning("job_unreadable", job_id=job_id, error=f"{text(reply)} is too long")
                continue
            record = record_of(_FIELDS, reply or ())
            if b"state" not in record:  # it expired just now
                continue
            try:
                rows[job_id] = JobRow.of(view_of(job_id, record))
            except CodecError as error:
                log.warning("job_unreadable", job_id=job_id, error=str(error))
        return rows

    def _records(self, job_ids: Sequence[str]) -> list[Any]:
        """Of each its `_FIELDS`, the name of one that is too long, or None where it is no record.

        A tenant's producers write what they like into records, and the page reads many of them.
        """
        with errors_explained(self._settings):
            pipe = self._client.pipeline(transaction=False)
            for start in range(0, len(job_ids), _RECORDS_AT_ONCE):
                some = [keys.job(job_id) for job_id in job_ids[start : start + _RECORDS_AT_ONCE]]
                self._scripts.add("fields", keys=some, args=[_LONGEST, *_FIELDS], pipe=pipe)
            return [reply for replies in pipe.execute() for reply in replies]

    def _rollouts(self, names: Sequence[tuple[str, str]]) -> tuple[RolloutRow, ...]:
        # Of a text that is too long as much as shows that it is.
        texts = self._replies(
            [("GETRANGE", keys.rollout(*pair), 0, MAX_TEXT_BYTES) for pair in names]
        )
        rows = []
        for (tenant, name), rollout_text in zip(names, texts, strict=True):
            try:
                if rollout_text:
                    rollout = parse_text(rollout_text)
                    rows.append(RolloutRow(tenant=tenant, template=name, rollout=rollout))
            except CodecError as error:
                log.warning("rollout_unreadable", template=f"{tenant}/{name}", error=str(error))
        return tuple(rows)

    def _workers(self) -> tuple[tuple[Mapping[str, Any], ...] | None, tuple[str, ...]]:
        if not self.scope.workers:
            return None, ()
        workers, strange = [], []
        for report in list_workers(self._client, self._settings):
            try:
                workers.append(self._own_part(check_report(report)))
            except CodecError:
                strange.append(f"{report.get('id', 'a worker')!s:.80}")
        return tuple(workers), tuple(strange)

    def _own_part(self, report: Mapping[str, Any]) -> Mapping[str, Any]:
        """A report without other tenants' templates."""
        covers = self.scope.covers
        return {
            **report,
            "templates": [t for t in report["templates"] if covers(t.partition("/")[0])],
            "versions": [v for v in report["versions"] if covers(v["version"].partition("/")[0])],
        }

    def _replies(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        """A reply to each; None for a key of a type that it should not have."""
        replies: list[Any] = []
        with errors_explained(self._settings):
            for start in range(0, len(commands), _AT_ONCE):
                pipe = self._client.pipeline(transaction=False)
                for command in commands[start : start + _AT_ONCE]:
                    pipe.execute_command(*command)
                replies += pipe.execute(raise_on_error=False)
            for reply in replies:
                if isinstance(reply, Exception) and not _of_strange_type(reply):
                    raise reply
        if strange := sum(isinstance(reply, Exception) for reply in replies):
            log.warning("keys_of_strange_types", replies=strange)
        return [None if isinstance(reply, Exception) else reply for reply in replies]


def _of_strange_type(error: Exception) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")


def _running_of(
    running: Sequence[JobRow] | None, found: Sequence[_Found]
) -> Callable[[str, str], int | None]:
    """Says how many jobs of a template run; None where not all of its tenant's were read."""
    if running is None:
        return lambda _tenant, _template: None
    asked = Counter(map(tenant_of, fairly([one.running_ids for one in found])))
    whole = {one.name for one in found if one.running <= asked[one.name]}
    counts = Counter((row.tenant, row.template) for row in running)
    return lambda tenant, template: counts[tenant, template] if tenant in whole else None


def _no_such_template() -> NotFound:
    return NotFound(
        "no such template",
        expected="one of those on the page of queues",
        remedy="Publish it with 'prefillq templates publish'.",
    )
