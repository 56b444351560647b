"""How the jobs of a rollout's two versions ended, as the job scripts wrote it down.

A stream per version, `keys.outcomes`, to which the script that ends a job appends an entry with
the fields of `JobOutcome`, and the one that scores it an entry with `score` (a name), `value` and
`job`. The tenant's producers can write these streams: what is no such entry is left out, and how
much is read has a bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from contract import keys
from contract.ids import is_name
from contract.load import load_library
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained, text
from contract.scripts import Scripts
from contract.settings import Settings
from templates.rollouts.intervals import percentile
from templates.rollouts.rollout import Rollout

log = get_logger(__name__)

# The newest entries of a stream that are read; more make no comparison better.
MAX_READ = 5000
_MAX_BYTES = 4 * 2**20
_BATCH = 250
_MAX_ENTRY_BYTES = 1024  # ours have a tenth of it
_ALL = "0-0"  # before the id of any entry
OUTCOMES_TTL_S = 7 * 86_400  # as contract/lua/common.lua has it
_MAX_NAMES = 32  # of scores
_STATES = ("succeeded", "failed", "expired")
_CACHE_STATES = ("hit", "miss", "off", "")
_MAX_SECONDS = 366 * 86_400.0
_END_OF_TIME = 253_402_300_800.0  # the year 10000
_MAX_TOKENS = 10**6
_CODE = re.compile(r"[a-z0-9_]{0,64}")
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How one job ended. Cancelled ones are no outcomes, nor those that no worker ever had."""

    state: str  # succeeded, failed, or expired once a worker had it
    cache: str  # hit, miss or off; "" when its workers died
    seconds: float  # from submit to end, on the server's clock
    tokens: int = 0  # of the completion
    error: str = ""  # the code

    @property
    def failed(self) -> bool:
        return self.state != "succeeded"

    @classmethod
    def read(cls, fields: Mapping[bytes, bytes]) -> Self:
        """An entry of the stream. Raises ValueError, quoting nothing, for what is none."""
        state, cache, error = (_text(fields, name) for name in (b"s", b"c", b"e"))
        seconds, tokens = _number(fields, b"t"), _number(fields, b"n")
        if state not in _STATES or cache not in _CACHE_STATES or not _CODE.fullmatch(error):
            raise ValueError("no outcome")
        if not 0 <= seconds <= _MAX_SECONDS or not 0 <= tokens <= _MAX_TOKENS:
            raise ValueError("no outcome")
        return cls(state=state, cache=cache, seconds=seconds, tokens=int(tokens), error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What is known of one version's jobs in a window of time."""

    jobs: tuple[JobOutcome, ...] = ()
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by name, one a job
    cut: bool = False  # the window begins later than was asked: before are more than are read

    @property
    def answered(self) -> tuple[JobOutcome, ...]:
        """Those that have an answer: only they say something of its cache, length and time."""
        return tuple(job for job in self.jobs if not job.failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Outcomes in numbers. Rates, seconds and means are None where there is no job to take them of.

    All but `jobs`, `failed` and `failure_rate` are of the jobs that succeeded.
    """

    jobs: int
    failed: int
    failure_rate: float | None
    fallback_rate: float | None  # the share whose cache state was not hit
    p50_s: float | None  # from submit to end
    p95_s: float | None
    mean_tokens: float | None
    scores: Mapping[str, tuple[int, float]]  # name -> how many, mean


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionOutcomes:
    """One version's part in a rollout, since it began."""

    role: str  # stable or canary
    version: int
    digest: str
    summary: Summary

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        found = asdict(self.summary)
        scores = {name: {"jobs": n, "mean": mean} for name, (n, mean) in found["scores"].items()}
        return {
            "role": self.role,
            "version": self.version,
            "digest": self.digest,
            **found,
            "scores": scores,
        }


def summarize(outcomes: Outcomes) -> Summary:
    """Counts, rates, percentiles and means."""
    jobs, answered = outcomes.jobs, outcomes.answered
    failed = len(jobs) - len(answered)
    seconds = sorted(job.seconds for job in answered)
    fallbacks = sum(job.cache != "hit" for job in answered)
    tokens = sum(job.tokens for job in answered)
    return Summary(
        jobs=len(jobs),
        failed=failed,
        failure_rate=failed / len(jobs) if jobs else None,
        fallback_rate=fallbacks / len(answered) if answered else None,
        p50_s=percentile(seconds, 0.5) if seconds else None,
        p95_s=percentile(seconds, 0.95) if seconds else None,
        mean_tokens=tokens / len(answered) if answered else None,
        scores={
            name: (len(values), math.fsum(values) / len(values))
            for name, values in sorted(outcomes.scores.items())
            if values
        },
    )


def read_outcomes(
    client: Client, settings: Settings, *, tenant: str, rollout: str, digest: str, since: float
) -> Outcomes:
    """What one version's jobs came to since a time of the server's (seconds since the epoch).

    At most the newest MAX_READ entries, and no more once they have some megabytes.
    """
    found = _newest(client, settings, keys.outcomes(tenant, rollout, digest), since)
    return _outcomes(found, found.first, tenant, rollout)


def read_both(
    client: Client,
    settings: Settings,
    *,
    tenant: str,
    rollout: str,
    digests: tuple[str, str],
    since: float,
) -> tuple[Outcomes, Outcomes]:
    """As `read_outcomes` of two versions, over one and the same time.

    The one with more jobs is read less far back, so the other's older ones are left out too: of
    another hour they say nothing.
    """
    one, other = (
        _newest(client, settings, keys.outcomes(tenant, rollout, digest), since)
        for digest in digests
    )
    first = max(one.first, other.first, key=_order)
    return _outcomes(one, first, tenant, rollout), _outcomes(other, first, tenant, rollout)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """The newest entries of a stream, with their ids."""

    entries: Sequence[tuple[str, Mapping[bytes, bytes]]]
    first: str = _ALL  # the id from which on all were read


def _order(entry_id: str) -> tuple[int, int]:
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number)


def _outcomes(read: _Read, first: str, tenant: str, rollout: str) -> Outcomes:
    """Of the entries from the id `first` on."""
    jobs: list[JobOutcome] = []
    scores: dict[str, dict[bytes, float]] = {}
    unreadable, since = 0, _order(first)
    for number, (entry_id, fields) in enumerate(read.entries):
        if _order(entry_id) < since:
            break
        try:
            if b"score" in fields:
                _add_score(scores, fields, number)
            else:
                jobs.append(JobOutcome.read(fields))
        except ValueError:
            unreadable += 1
    if unreadable:
        log.warning("outcomes_unreadable", tenant=tenant, rollout=rollout, entries=unreadable)
    return Outcomes(
        jobs=tuple(jobs),
        scores={name: tuple(of.values()) for name, of in scores.items()},
        cut=first != _ALL,
    )


def keep_outcomes(
    client: Client, settings: Settings, *, tenant: str, rollout: str, digests: Iterable[str]
) -> None:
    """Let what is known of these versions expire no earlier than OUTCOMES_TTL_S from now: a stable
    version without a share of the jobs adds nothing more, and a step may bake for a year.
    """
    with errors_explained(settings):
        pipe = client.pipeline(transaction=False)
        for digest in digests:
            pipe.pexpire(keys.outcomes(tenant, rollout, digest), OUTCOMES_TTL_S * 1000)
        pipe.execute()


def describe(
    client: Client, settings: Settings, tenant: str, template: str, rollout: Rollout
) -> list[VersionOutcomes]:
    """What the jobs of both versions came to since the rollout began, the stable one's first."""
    plan = rollout.plan
    numbers = (plan.stable, plan.canary)
    with errors_explained(settings):
        pipe = client.pipeline(transaction=False)
        for number in numbers:
            pipe.hget(keys.versions(tenant, template), str(number))
        listed = pipe.execute()
    rows = []
    for role, number, digest in zip(("stable", "canary"), numbers, listed, strict=True):
        name = "" if digest is None else text(digest)
        found = read_outcomes(
            client,
            settings,
            tenant=tenant,
            rollout=rollout.id,
            digest=name,
            since=rollout.started_at,
        )
        rows.append(
            VersionOutcomes(role=role, version=number, digest=name, summary=summarize(found))
        )
    return rows


def _newest(client: Client, settings: Settings, key: str, since: float) -> _Read:
    """Entries since a time, the newest first."""
    scripts = Scripts(client, settings, load_library())
    found: list[tuple[str, Mapping[bytes, bytes]]] = []
    size, last, first = 0, "+", str(math.floor(max(0.0, min(since, _END_OF_TIME)) * 1000))
    while (count := min(_BATCH, MAX_READ - len(found))) > 0 and size <= _MAX_BYTES:
        args = (key, last, first, count, _MAX_ENTRY_BYTES, _MAX_BYTES - size)
        with errors_explained(settings):
            looked_at, *batch = scripts.run("newest", keys=[], args=args)
        size += looked_at
        # One that was left out for its size has no fields, which is no outcome.
        for entry_id, *fields in batch:
            found.append((entry_id.decode("ascii"), _fields(*fields)))
            last = f"({found[-1][0]}"
        if len(batch) < count and size <= _MAX_BYTES:
            return _Read(entries=found)
    if size > _MAX_BYTES:
        log.warning("outcomes_too_large", key=key, read=len(found), bytes=size)
    return _Read(entries=found, first=found[-1][0])


def _fields(flat: Sequence[bytes] = ()) -> Mapping[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _add_score(
    scores: dict[str, dict[bytes, float]], fields: Mapping[bytes, bytes], number: int
) -> None:
    name, value = _text(fields, b"score"), _number(fields, b"value")
    if not is_name(name) or (name not in scores and len(scores) >= _MAX_NAMES):
        raise ValueError("no score")
    # The newest of a job comes first; a job that was scored again counts once.
    scores.setdefault(name, {}).setdefault(fields.get(b"job", b"%d" % number), value)


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")


def _number(fields: Mapping[bytes, bytes], name: bytes) -> float:
    written = _text(fields, name)
    if not _NUMBER.fullmatch(written):
        raise ValueError("no number")
    return float(written)
