"""Are the canary's jobs worse than the stable version's by more than the plan allows?

Each gate has one rule. It passes when the difference, as measured, is within the limit. It fails
when the difference is over the limit also at the near end of its 99 % interval
(`templates.rollouts.intervals`). Between the two, and with fewer than `min_samples` jobs on
either side, it is inconclusive: more jobs will tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from templates.rollouts.intervals import Moments, least_excess, least_rise, moments, percentile
from templates.rollouts.outcomes import JobOutcome, Outcomes
from templates.rollouts.rollout import Finding, Limits, Outcome

SLOWEST = 0.05  # the share of jobs beyond p95
_CUT = "of the newest only: there are more than are read"


def judge(canary: Outcomes, stable: Outcomes, limits: Limits) -> tuple[Finding, ...]:
    """A finding per gate: failures, fallbacks, latency, length, and `score:<name>` for each limit.

    Pure. Cache states, seconds and tokens are compared among the jobs that succeeded: one that
    failed has its gate.
    """
    findings = _findings(canary, stable, limits)
    if not (canary.cut or stable.cut):
        return findings
    return tuple(replace(item, message=f"{item.message}; {_CUT}") for item in findings)


def _findings(canary: Outcomes, stable: Outcomes, limits: Limits) -> tuple[Finding, ...]:
    enough = max(1, limits.min_samples)
    ours, theirs = canary.answered, stable.answered
    return (
        _rate(
            "failures",
            "failed jobs",
            ours=[job.failed for job in canary.jobs],
            theirs=[job.failed for job in stable.jobs],
            limit=limits.failures,
            enough=enough,
        ),
        _rate(
            "fallbacks",
            "jobs without a cache hit",
            ours=[job.cache != "hit" for job in ours],
            theirs=[job.cache != "hit" for job in theirs],
            limit=limits.fallbacks,
            enough=enough,
        ),
        _latency(ours, theirs, limits.latency, enough),
        _length(ours, theirs, limits.length, enough),
        *(
            _score(
                name,
                canary.scores.get(name, ()),
                stable.scores.get(name, ()),
                limits.scores[name],
                enough,
            )
            for name in sorted(limits.scores)
        ),
    )


def enough_to_compare(stable: Outcomes, limits: Limits) -> Finding:
    """Whether a stable version that is to lose all its jobs has had enough to be compared with."""
    enough = max(1, limits.min_samples)
    counts = {"jobs": len(stable.answered)} | {
        f"scores {name}": len(stable.scores.get(name, ())) for name in sorted(limits.scores)
    }
    had = ", ".join(f"{what} {count}" for what, count in counts.items())
    return Finding(
        gate="stable_jobs",
        outcome=Outcome.PASS if min(counts.values()) >= enough else Outcome.INCONCLUSIVE,
        message=f"stable: {had}; {enough} are needed before all jobs are the canary's",
    )


def verdict(findings: Iterable[Finding]) -> Outcome:
    """All together: one fail is a fail, and only passes are a pass. Nothing is inconclusive."""
    outcomes = {finding.outcome for finding in findings}
    if Outcome.FAIL in outcomes:
        return Outcome.FAIL
    return Outcome.PASS if outcomes == {Outcome.PASS} else Outcome.INCONCLUSIVE


def _rate(
    gate: str,
    what: str,
    *,
    ours: Sequence[bool],
    theirs: Sequence[bool],
    limit: float,
    enough: int,
) -> Finding:
    if missing := _missing(gate, "jobs", len(ours), len(theirs), enough):
        return missing
    hits, base = sum(ours), sum(theirs)
    rise = hits / len(ours) - base / len(theirs)
    over = least_rise(hits, len(ours), base, len(theirs)) > limit
    return _finding(
        gate,
        within=rise <= limit,
        over=over,
        message=f"{what}: canary {_share(hits, len(ours))}, stable {_share(base, len(theirs))}; "
        f"a rise of {limit:.2%} is allowed",
    )


def _latency(
    ours: Sequence[JobOutcome], theirs: Sequence[JobOutcome], limit: float, enough: int
) -> Finding:
    """A job is slow when it took longer than `limit` times the stable version's p95.

    Of a version within the limit at most 5 in 100 are. It fails when the canary's share of slow
    jobs is over the stable version's by more than that, with Newcombe's interval: a single slow
    job, or a stable p95 of a few jobs, decides nothing.
    """
    if missing := _missing("latency", "jobs", len(ours), len(theirs), enough):
        return missing
    seconds, base = (sorted(job.seconds for job in jobs) for jobs in (ours, theirs))
    p95, base_p95 = percentile(seconds, 1 - SLOWEST), percentile(base, 1 - SLOWEST)
    slow, base_slow = (sum(s > limit * base_p95 for s in of) for of in (seconds, base))
    over = least_rise(slow, len(seconds), base_slow, len(base)) > SLOWEST
    return _finding(
        "latency",
        within=p95 <= limit * base_p95,
        over=over,
        message=f"p95 of the time to the end: canary {p95:.3g} s of {len(seconds)} jobs, "
        f"stable {base_p95:.3g} s of {len(base)}; {limit:g} times as long is allowed",
    )


def _length(
    ours: Sequence[JobOutcome], theirs: Sequence[JobOutcome], limit: float, enough: int
) -> Finding:
    if missing := _missing("length", "jobs", len(ours), len(theirs), enough):
        return missing
    tokens, base = (moments([float(job.tokens) for job in jobs]) for jobs in (ours, theirs))
    change = tokens.mean - base.mean
    longer = least_excess(tokens, base, 1 + limit)
    # How much shorter than what is left at least: the same, seen from the other side.
    shorter = least_excess(_negative(tokens), _negative(base), max(0.0, 1 - limit))
    return _finding(
        "length",
        within=abs(change) <= limit * base.mean,
        over=longer > 0 or shorter > 0,
        message=f"mean completion: canary {tokens.mean:.4g} tokens of {tokens.count} jobs, stable "
        f"{base.mean:.4g} of {base.count}; a change of {limit:.0%} is allowed",
    )


def _score(
    name: str, ours: Sequence[float], theirs: Sequence[float], limit: float, enough: int
) -> Finding:
    gate = f"score:{name}"
    if missing := _missing(gate, "scores", len(ours), len(theirs), enough):
        return missing
    values, base = moments(ours), moments(theirs)
    return _finding(
        gate,
        within=base.mean - values.mean <= limit,
        over=least_excess(base, values) > limit,
        message=f"mean score: canary {values.mean:.4g} of {values.count}, stable {base.mean:.4g} "
        f"of {base.count}; a drop of {limit:g} is allowed",
    )


def _missing(gate: str, what: str, ours: int, theirs: int, enough: int) -> Finding | None:
    if min(ours, theirs) >= enough:
        return None
    message = f"{what}: canary {ours}, stable {theirs}; {enough} of each are needed"
    return Finding(gate=gate, outcome=Outcome.INCONCLUSIVE, message=message)


def _finding(gate: str, *, within: bool, over: bool, message: str) -> Finding:
    # Within comes first: it is what was measured, and the interval of an equal sample may touch.
    outcome = Outcome.PASS if within else Outcome.FAIL if over else Outcome.INCONCLUSIVE
    return Finding(gate=gate, outcome=outcome, message=message)


def _negative(sample: Moments) -> Moments:
    return Moments(count=sample.count, mean=-sample.mean, variance=sample.variance)


def _share(hits: int, count: int) -> str:
    return f"{hits / count:.2%} of {count}"
