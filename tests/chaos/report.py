"""What a run came to, for people and as JSON."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from tests.chaos.accounting import Account
from tests.chaos.ledger import Entry
from tests.chaos.plan import LEASE_S, Act
from tests.chaos.recovery import Recoveries, Recovery

_SHOWN_FAULTS = 40
_REDIS = {str(Act.RESTART_REDIS), str(Act.CRASH_REDIS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """See `to_dict` for what it holds."""

    data: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Nothing was lost, nothing was done twice, and nothing else is wrong."""
        return not self.data["faults"]

    def to_dict(self) -> dict[str, Any]:
        return self.data

    def lines(self) -> Iterable[str]:
        """For a terminal."""
        data, jobs, kills = self.data, self.data["jobs"], self.data["kills"]
        yield f"seed {data['seed']}, {data['seconds']:g} s, lease {data['lease_s']:g} s"
        yield f"drained in {data['drained_s']} s, on {data['machine']}"
        yield ""
        yield f"kill -9          {kills['workers']} workers, {kills['producers']} producers"
        yield f"killed by a job  {kills['by_a_job']} workers"
        for act in Act:
            yield f"{act:16} {data['deeds'].get(act, 0)}"
        yield ""
        yield f"submits          {jobs['submits']}, refused {jobs['refusals']}"
        yield f"accepted         {jobs['accepted']} jobs"
        for outcome, count in sorted(jobs["outcomes"].items()):
            yield f"  {outcome:14} {count}"
        if jobs["dead_by"]:
            yield f"  dead by kind   {jobs['dead_by']}"
        yield f"lost             {data['lost']}"
        yield f"twice            {data['twice']}"
        for name in ("recovery", "recovery_undisturbed"):
            it = data[name]
            if it["jobs"]:
                yield (
                    f"{name.replace('_', ', '):16} median {it['median_s']} s, "
                    f"worst {it['worst_s']} s of {it['jobs']} jobs"
                )
        if data["tracebacks"]:
            yield f"tracebacks       {data['tracebacks']}"
        faults = data["faults"]
        for fault in faults[:_SHOWN_FAULTS]:
            yield f"{fault['kind'].upper():12} {fault['what']}  {fault['detail']}"
        if len(faults) > _SHOWN_FAULTS:
            yield f"... and {len(faults) - _SHOWN_FAULTS} more faults"


def make_report(
    account: Account,
    *,
    seed: int,
    seconds: float,
    drained_s: float,
    events: list[Entry],
    recoveries: Recoveries,
    tracebacks: list[str],
) -> Report:
    """Put together what is known."""
    ended = [event for event in events if event["event"] == "ended"]
    killed = [event for event in ended if event["ours"]]
    by_a_job = [event for event in ended if event["code"] == -9 and not event["ours"]]
    faults = Counter(fault.kind for fault in account.faults)
    return Report(
        data={
            "seed": seed,
            "seconds": seconds,
            "drained_s": round(drained_s, 1),
            "lease_s": LEASE_S,
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
            "kills": {
                "workers": sum(event["actor"].startswith("worker") for event in killed),
                "producers": sum(event["actor"].startswith("producer") for event in killed),
                "by_a_job": len(by_a_job),
            },
            "deeds": dict(Counter(e["act"] for e in events if e["event"] == "deed")),
            "starts": sum(event["event"] == "started" for event in events),
            "exit_codes": {
                str(code): count for code, count in Counter(e["code"] for e in ended).items()
            },
            "jobs": account.to_dict(),
            "lost": faults["lost"],
            "twice": faults["twice"],
            "recovery": _summary(recoveries.done),
            "recovery_undisturbed": _summary(
                it for it in recoveries.done if not _redis_was_away(it, events)
            ),
            "tracebacks": dict(Counter(text.partition(": ")[2] for text in tracebacks)),
            "faults": [asdict(fault) for fault in account.faults],
        }
    )


def _redis_was_away(recovery: Recovery, events: Iterable[Entry]) -> bool:
    """Whether Redis went away between the kill and the next claim, or a little before."""
    return any(
        event["event"] == "deed"
        and event["act"] in _REDIS
        and recovery.began_at - LEASE_S < event["at"] < recovery.ended_at
        for event in events
    )


def _summary(recoveries: Iterable[Recovery]) -> dict[str, Any]:
    seconds = sorted(it.seconds for it in recoveries)
    if not seconds:
        return {"jobs": 0, "median_s": None, "worst_s": None}
    return {
        "jobs": len(seconds),
        "median_s": round(median(seconds), 2),
        "worst_s": round(seconds[-1], 2),
    }
