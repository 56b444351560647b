"""How much work there is: what waits, runs, comes and goes per template and model.

All of it is read in one transaction, so that every number is of the same moment. Records are the
truth; messages are counted beside them, and so is what the job scripts counted in spans of
SPAN_S seconds (`tell_flow` in contract/lua/common.lua).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from redis.exceptions import RedisError

from contract import keys
from contract.codec import unpack_unchecked
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained, text
from contract.scripts import ScriptLibrary, Scripts
from contract.settings import Settings
from contract.worker_reports import ask_reports, read_reports

log = get_logger(__name__)

SPAN_S = 10
KEPT_S = 900  # how long a span is kept

# What one look reads, for Redis serves nobody else meanwhile; beyond it numbers are estimated.
MOST_RECORDS = 1_000  # of those that wait for one template, and as many of a tenant's that run
MOST_IN_ALL = 20_000  # of both and of all templates, shared evenly
LEAST_RECORDS = 20  # of a template, however many there are: about what a template costs anyway
MOST_MODELS = 100  # of a template: that it has versions for; Lua takes some 2,000 in one call
MOST_OTHERS = 4  # beside those: models that only records name, which producers may write

MODEL_DIGITS = 12  # of a digest, in the names of queues

# kombu's lists of one queue: itself, and one for each priority above 0 (`priority_steps`, `sep`).
_PRIORITY_SEPARATOR = "\x06\x16"
_PRIORITIES = "3 6 9"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A template to look at, and the models that it has versions for (12 hex digits each)."""

    tenant: str
    template: str
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What came and went in a time."""

    seconds: float
    arrived: int = 0
    ended: int = 0  # by a worker, whatever the outcome
    busy_s: float = 0.0  # that workers had jobs; of those that ended in this time

    @property
    def arrivals_per_s(self) -> float:
        return self.arrived / self.seconds if self.seconds > 0 else 0.0

    @property
    def served_per_s(self) -> float:
        return self.ended / self.seconds if self.seconds > 0 else 0.0

    @property
    def service_s(self) -> float | None:
        """Seconds that a worker has a job, on average; None if none ended."""
        return self.busy_s / self.ended if self.ended else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One template and model, that is one queue, at one moment."""

    tenant: str
    template: str
    model: str  # 12 hex digits of its digest
    waiting: int  # records: queued, deadline not passed
    estimated: bool  # `waiting` is a share: the first records tell what the rest is for, and they
    # are for several models
    delayed: int  # of those looked at: wait for another attempt
    oldest_s: float  # since the submit of the oldest that waits
    running: int  # records: claimed by a worker
    late: int  # of those: their lease has ended, so their worker is gone
    messages: int  # in the queue, all its priorities
    unacked: int | None  # messages that workers have taken; None if there are too many to tell
    held: int  # of the tenant's: wait because it has max_running jobs
    max_running: int | None = None  # of the tenant, of all its templates together; None: any number
    recent: Flow  # over the window
    kept: Flow  # over all that is read, at least the window


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Everything, at one moment of the server's clock."""

    now: float  # seconds since the epoch
    loads: tuple[Load, ...]  # by tenant, template, model
    workers: tuple[dict[str, Any], ...]  # what they reported, by id; of templates at least of those
    unacked: int  # messages that workers have taken, of all queues
    unreadable: Mapping[str, str] = field(default_factory=dict)  # tenant -> why it is left out


@cache
def load_library() -> ScriptLibrary:
    """The scripts that look, as `prefillq tenants` stores them in Redis."""
    folder = resources.files("contract") / "lua"
    names = ("sight", "unacked", "fields", "newest")
    return ScriptLibrary(
        name="load",
        sources={name: (folder / f"{name}.lua").read_text("utf-8") for name in names},
        flags=dict.fromkeys(names, "no-writes"),
    )


class LoadReader:
    """Looks. Safe to share between threads."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
        self._scripts = Scripts(client, settings, load_library())

    def look(
        self,
        asked: Iterable[Asked],
        *,
        window_s: float,
        kept_s: float = 300.0,
        most: int = MOST_RECORDS,
        in_all: int = MOST_IN_ALL,
    ) -> Sight:
        """All of `asked`, in two round trips: the workers' ids, and the rest in one transaction.

        Rates are over the last `window_s`, in whole spans. At most `most` records of a set are
        looked at and `in_all` together, but LEAST_RECORDS of each template; and of a template's
        models the first MOST_MODELS asked for, and MOST_OTHERS that its records name. A tenant
        whose keys are damaged is left out, and the others are not.
        """
        by_tenant: dict[str, list[Asked]] = {}
        for one in sorted(asked, key=lambda one: (one.tenant, one.template)):
            by_tenant.setdefault(one.tenant, []).append(one)
        addresses = [f"{one.tenant}/{one.template}" for some in by_tenant.values() for one in some]
        each = _share(len(addresses), most, in_all)
        recent = max(1, math.ceil(window_s / SPAN_S))
        spans = min(KEPT_S // SPAN_S, max(recent, math.ceil(kept_s / SPAN_S)))
        with errors_explained(self._settings):
            ids = sorted(text(i) for i in self._client.zrange(keys.WORKERS, 0, -1))
            pipe = self._client.pipeline(transaction=True)
            pipe.time()
            self._scripts.run("unacked", keys=[], args=[keys.messages("unacked"), most], pipe=pipe)
            for tenant, those in by_tenant.items():
                # For each template that may run as many as may wait, but of one set.
                words = _words(tenant, those, min(most, each * len(those)), each, spans)
                self._scripts.run("sight", keys=[], args=words, pipe=pipe)
            ask_reports(pipe, ids, addresses)
            replies = pipe.execute(raise_on_error=False)
            for reply in replies[:2]:
                if isinstance(reply, Exception):
                    raise reply
            seen, told = replies[2 : 2 + len(by_tenant)], replies[2 + len(by_tenant) :]
            # Of what they say of a version few values are taken.
            reports = read_reports(ids, told, addresses, unpacked=unpack_unchecked)
            failed = [reply for reply in seen if isinstance(reply, Exception)]
            if failed and len(failed) == len(by_tenant):
                raise failed[0]
        unacked = json.loads(replies[1])
        loads: list[Load] = []
        unreadable: dict[str, str] = {}
        for tenant, reply in zip(by_tenant, seen, strict=True):
            if isinstance(reply, RedisError):
                unreadable[tenant] = type(reply).__name__
                log.warning("tenant_not_read", tenant=tenant, error=type(reply).__name__)
                continue
            loads += _loads(tenant, json.loads(reply), unacked.get("queues"), recent)
        seconds, micros = replies[0]
        return Sight(
            now=seconds + micros / 1e6,
            loads=tuple(loads),
            workers=tuple(reports),
            unacked=unacked["total"],
            unreadable=unreadable,
        )


def _share(templates: int, most: int, in_all: int) -> int:
    """How many waiting records of each template are looked at; as many may run."""
    return min(most, max(LEAST_RECORDS, in_all // max(1, 2 * templates)))


def _words(
    tenant: str, asked: Sequence[Asked], running: int, waiting: int, spans: int
) -> list[str | int]:
    return [
        f"{keys.PREFIX}{tenant}:",
        keys.messages(f"{tenant}/"),
        running,
        waiting,
        MOST_OTHERS,
        spans,
        _PRIORITY_SEPARATOR,
        _PRIORITIES,
        *(" ".join((one.template, *one.models[:MOST_MODELS])) for one in asked),
    ]


def _loads(
    tenant: str, seen: Mapping[str, Any], unacked: Mapping[str, int] | None, recent: int
) -> list[Load]:
    now = float(seen["now"])
    # Beyond what was looked at, running jobs are taken to be like those that were.
    scale = seen["running"] / seen["running_seen"] if seen["running_seen"] else 1.0
    most = seen.get("max_running")
    loads = []
    for name, template in sorted((seen["templates"] or {}).items()):
        looked_at = template["waiting_seen"]
        whole = template["waiting"] <= looked_at
        for model, found in sorted((template["models"] or {}).items()):
            share = found["waiting"] / looked_at if looked_at else 0.0
            queue = f"{tenant}/{name}/{model}"
            loads.append(
                Load(
                    tenant=tenant,
                    template=name,
                    model=model,
                    waiting=found["waiting"] if whole else round(template["waiting"] * share),
                    estimated=not whole and share < 1,
                    delayed=found["delayed"],
                    oldest_s=round(float(found["oldest_s"]), 3),
                    running=round(found["running"] * scale),
                    late=found["late"],
                    messages=found["messages"],
                    unacked=None if unacked is None else (unacked or {}).get(queue, 0),
                    held=seen["held"],
                    max_running=None if most is None else max(0, int(most)),
                    recent=_flow(found["flow"] or {}, now, recent),
                    kept=_flow(found["flow"] or {}, now, None),
                )
            )
    return loads


def _flow(spans: Mapping[str, Mapping[str, float]], now: float, count: int | None) -> Flow:
    """The last `count` spans, the present one included; of all, those since the first job."""
    last = math.floor(now / SPAN_S)
    first = min(map(int, spans), default=last) if count is None else last - count + 1
    within = [counts for span, counts in spans.items() if int(span) >= first]

    def total(name: str) -> float:
        return sum(float(counts.get(name, 0)) for counts in within)

    return Flow(
        seconds=now - first * SPAN_S,
        arrived=round(total("in")),
        ended=round(total("out")),
        busy_s=total("busy") / 1000,
    )
