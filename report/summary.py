"""The numbers of a report as plain data: what `--json` prints and the page shows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from report.distribution import RELATIVE_ERROR, Distribution, Mean
from report.lines import STAGES
from report.sources import Reading
from report.tally import OTHERS
from report.totals import Group, Totals, Version

PERCENTS = (50, 90, 95, 99)
STATUSES = ("succeeded", "failed", "cancelled", "expired")

SAVED_FORMULA = (
    "for each version and device: hits x mean prefill_s of its cold jobs in this log (its "
    "version_warmed lines where it has none), minus verify_s and fork_s of the hits"
)
DEVICE_FORMULA = "prefill_s + (fork_s + suffix_prefill_s + decode_s) / batch_size, summed over jobs"


def summarise(
    totals: Totals, reading: Reading, *, price_per_hour: float | None = None
) -> dict[str, Any]:
    """Everything, in the units that the names end in. Money is in the unit of the price."""
    versions, together = _versions(totals), totals.together()
    exact = _exact([together, *(one for _, one in versions)])
    return {
        "input": _input(totals, reading),
        "summary": _summary(totals, together, versions),
        "latency": {
            "of": "jobs that succeeded",
            "relative_error": 0.0 if exact else RELATIVE_ERROR,
            "all": _latency(together),
            "versions": [{"version": name, **_latency(one)} for name, one in versions],
        },
        "stages": {
            "of": "jobs that succeeded",
            "all": _stages(together),
            "versions": [{"version": name, **_stages(one)} for name, one in versions],
        },
        "cache": {
            **_cache(together),
            "versions": [{"version": name, **_cache(one)} for name, one in versions],
        },
        "tokens": {
            **_tokens(together),
            "versions": [{"version": name, **_tokens(one)} for name, one in versions],
        },
        "saved": _saved(totals, versions, price_per_hour),
        "cost": _cost(totals, together, price_per_hour),
        "batch_sizes": _by_number(totals.batch_sizes.to_dict()),
        "attempts": {
            "by_number": _by_number(totals.attempts.to_dict()),
            "beyond_the_first": totals.retries,
            # Lines of attempts name no template.
            "tried_later": None if totals.wanted.template else totals.tried_later.to_dict(),
        },
        "errors": totals.errors.to_dict(),
        "over_time": _over_time(totals),
        "workers": _workers(totals),
    }


def _input(totals: Totals, reading: Reading) -> dict[str, Any]:
    wanted = totals.wanted
    return {
        "files": reading.files,
        "lines": reading.lines,
        "job_lines": totals.jobs + totals.not_wanted,
        "not_wanted": totals.not_wanted,
        "unreadable": reading.unreadable,
        "too_long": reading.too_long,
        "bad_values": totals.bad_values,
        "without_time": totals.without_time,
        "broken": reading.broken,
        "twice": reading.twice,
        "since": _moment(wanted.since),
        "until": _moment(wanted.until),
        "template": wanted.template,
        "tenant": wanted.tenant,
    }


def _summary(
    totals: Totals, together: Group, versions: list[tuple[str, Version]]
) -> dict[str, Any]:
    timed = together.jobs - totals.without_time
    span_s = totals.ended - totals.began if timed else 0.0

    def per_second(amount: float) -> float | None:
        return _rounded(amount / span_s) if span_s > 0 else None

    counts = together.by_status.to_dict()
    return {
        "jobs": together.jobs,
        "by_status": {status: counts.get(status, 0) for status in STATUSES},
        "versions": len(versions),
        "workers": len(totals.workers),
        "began": _moment(totals.began) if timed else None,
        "ended": _moment(totals.ended) if timed else None,
        "span_s": _rounded(span_s),
        "jobs_per_s": per_second(timed),
        "prompt_tokens_per_s": per_second(totals.timed_prompt_tokens),
        "completion_tokens_per_s": per_second(totals.timed_completion_tokens),
    }


def _latency(group: Group) -> dict[str, Any]:
    return {name: _percentiles(values) for name, values in group.latency.items()}


def _percentiles(values: Distribution) -> dict[str, Any]:
    return {
        "count": values.count,
        "mean": _rounded(values.mean),
        **{f"p{percent}": _rounded(values.percentile(percent)) for percent in PERCENTS},
        "max": _rounded(values.largest) if values.count else None,
    }


def _stages(group: Group) -> dict[str, Any]:
    """Mean seconds per job. `other_s`: in no stage, such as waiting for a row of the engine."""
    jobs = group.staged
    if not jobs:
        return {"jobs": 0, **dict.fromkeys((*STAGES, "other_s", "total_s"))}
    other_s = max(group.total_s - sum(group.stages), 0.0)
    return {
        "jobs": jobs,
        **{name: _rounded(s / jobs) for name, s in zip(STAGES, group.stages, strict=True)},
        "other_s": _rounded(other_s / jobs),
        "total_s": _rounded(group.total_s / jobs),
    }


def _cache(group: Group) -> dict[str, Any]:
    states = group.cache.to_dict()
    hits, misses = states.get("hit", 0), states.get("miss", 0)
    return {
        "hits": hits,
        "misses": misses,
        "off": states.get("off", 0),
        "hit_ratio": _ratio(hits, hits + misses),
        "miss_reasons": group.misses.to_dict(),
        "off_reasons": group.off.to_dict(),
    }


def _tokens(group: Group) -> dict[str, Any]:
    return {
        "prompt_tokens": group.prompt_tokens,
        "cached_tokens": group.cached_tokens,
        "completion_tokens": group.completion_tokens,
        "cached_share": _ratio(group.cached_tokens, group.prompt_tokens),
    }


def _saved(
    totals: Totals, versions: list[tuple[str, Version]], price: float | None
) -> dict[str, Any]:
    rows = [
        {
            "version": name,
            **_saved_of(one, totals.warmed.find(name) or Mean(), mixed=name == OTHERS),
        }
        for name, one in versions
    ]
    known = [row["seconds"] for row in rows if row["seconds"] is not None]
    seconds = sum(known) if known else None
    return {
        "estimate": True,
        "formula": SAVED_FORMULA,
        "cached_tokens": sum(row["cached_tokens"] for row in rows),
        "tokens_without_estimate": sum(row["tokens_without_estimate"] for row in rows),
        "seconds": _rounded(seconds),
        "money": _money(seconds, price),
        "versions": rows,
    }


def _saved_of(version: Version, warmed: Mean, *, mixed: bool) -> dict[str, Any]:
    """`mixed`: several versions together, whose prefixes differ in length."""
    hits = tokens = unknown = 0
    seconds: float | None = None
    for prefills in version.prefills.values():
        hits += prefills.hits
        tokens += prefills.cached_tokens
        mean_s = None if mixed else prefills.cold.value or warmed.value
        if mean_s is None:
            unknown += prefills.cached_tokens
        elif prefills.hits:
            seconds = (seconds or 0.0) + prefills.hits * mean_s - prefills.overhead_s
    return {
        "hits": hits,
        "cached_tokens": tokens,
        "tokens_without_estimate": unknown,
        "seconds": _rounded(seconds),
    }


def _cost(totals: Totals, together: Group, price: float | None) -> dict[str, Any]:
    templates: dict[str, Group] = {}
    for name, version in totals.versions.items():
        template = OTHERS if name == OTHERS else version.address
        into = templates.setdefault(template, Group())
        into.jobs += version.jobs
        into.device_s += version.device_s
        into.engine_s += version.engine_s
    rows = [{"template": name, **_cost_of(group, price)} for name, group in templates.items()]
    rows = [row for row in rows if row["jobs"]]
    return {
        "estimate": True,
        "formula": DEVICE_FORMULA,
        "price_per_hour": price,
        **_cost_of(together, price),
        "templates": sorted(rows, key=lambda row: (-row["device_s"], row["template"])),
    }


def _cost_of(group: Group, price: float | None) -> dict[str, Any]:
    per_job = group.device_s / group.jobs if group.jobs else 0.0
    return {
        "jobs": group.jobs,
        "device_s": _rounded(group.device_s),
        "engine_s": _rounded(group.engine_s),
        "device_s_per_job": _rounded(per_job),
        "money": _money(group.device_s, price),
        "money_per_1000_jobs": _money(1000 * per_job, price),
    }


def _over_time(totals: Totals) -> dict[str, Any]:
    width_s = totals.timeline.width_s
    return {
        "width_s": width_s,
        "spans": [
            {
                "begin": _moment(begin),
                "jobs": bucket.jobs,
                "failed": bucket.failed,
                "jobs_per_s": _rounded(bucket.jobs / width_s),
                "completion_tokens_per_s": _rounded(bucket.completion_tokens / width_s),
                "p95_total_s": _rounded(bucket.total_s.percentile(95)),
            }
            for begin, bucket in totals.timeline
        ],
    }


def _workers(totals: Totals) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "worker": name,
            "model": worker.model,
            "device": worker.device,
            "jobs": worker.jobs,
            "device_s": _rounded(worker.device_s),
        }
        for name, worker in totals.workers.items()
    ]
    return sorted(rows, key=lambda row: (-row["jobs"], row["worker"]))


def _versions(totals: Totals) -> list[tuple[str, Version]]:
    """Those with jobs, most jobs first; what was too many to keep apart comes last."""
    found = [(name, one) for name, one in totals.versions.items() if one.jobs]
    return sorted(found, key=lambda item: (item[0] == OTHERS, -item[1].jobs, item[0]))


def _exact(groups: Iterable[Group]) -> bool:
    return all(values.exact for group in groups for values in group.latency.values())


def _by_number(counts: dict[str, int]) -> dict[str, int]:
    def key(item: tuple[str, int]) -> tuple[bool, int]:
        return (not item[0].isdecimal(), int(item[0]) if item[0].isdecimal() else 0)

    return dict(sorted(counts.items(), key=key))


def _money(seconds: float | None, price: float | None) -> float | None:
    return None if seconds is None or price is None else _rounded(seconds / 3600 * price)


def _ratio(part: int, whole: int) -> float | None:
    return _rounded(part / whole) if whole else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _moment(at: float | None) -> str | None:
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
