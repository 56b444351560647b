"""Moves rollouts on, or back: one worker at a time looks, and makes at most one move a look.

A rollout is gates, then for each step warming and baking; `templates.rollouts.moves` has the order.
Every move is a compare-and-set on the rollout that was looked at, so whatever happens to a worker
in the midst of it, or to two that look at once, a move is made once or not at all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract import keys
from contract.errors import Conflict, PrefillqError, RedisUnreachable
from contract.ids import TemplateAddress
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained
from contract.settings import Settings
from contract.worker_reports import list_workers
from templates.rollouts.journal import stable_since
from templates.rollouts.judge import enough_to_compare, judge
from templates.rollouts.outcomes import Outcomes, keep_outcomes, read_both, read_outcomes
from templates.rollouts.rollout import Finding, Outcome, Phase, Rollout
from templates.rollouts.split import WHOLE
from templates.stored import read_names
from templates.version import PublishedVersion
from worker.rollouts.decide import (
    Decision,
    after_gates,
    while_baking,
    while_unserved,
    while_warming,
)
from worker.rollouts.gates import Interrupted
from worker.rollouts.seams import Moves, Tries, Versions
from worker.rollouts.shadow import Shadowing
from worker.rollouts.turns import Turns
from worker.rollouts.warmth import warmth_of

log = get_logger(__name__)

LOOK_S = 1.0
LONGEST_LOOK_S = 10.0  # between two looks at a rollout that bakes for long
# What a version's gates could not tell is tried again after half the time that it has waited.
TRY_AGAIN_S, LONGEST_TRY_AGAIN_S = 30.0, 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A rollout as one look finds it."""

    tenant: str
    name: str
    rollout: Rollout
    canary: PublishedVersion
    stable: PublishedVersion


class Conductor:
    """One worker's part in all rollouts. `look` and `try_versions` have a thread each."""

    def __init__(
        self,
        *,
        client: Client,
        settings: Settings,
        worker_id: str,
        moves: Moves,
        versions: Versions,
        gates: Tries,
        matches: Callable[[str, str], bool],  # tenant, template: may this worker serve it?
        draining: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
        self._worker_id = worker_id
        self._moves = moves
        self._versions = versions
        self._gates = gates
        self._matches = matches
        self._draining = draining
        self._clock = clock
        self._turns = Turns(client, settings, worker_id)
        # As the last look found them, by tenant and template; replaced as a whole.
        self._active: Mapping[tuple[str, str], Rollout] = {}
        # By rollout: since when the jobs count of a stable version that has none any more.
        self._since: dict[str, float] = {}
        # By rollout: when, by `clock`, its canary was first seen without any worker.
        self._unserved: dict[str, float] = {}

    def look(self) -> None:
        """Look at every active rollout, and move those that may be moved."""
        self._active = found = self._find()
        active = {rollout.id for rollout in found.values()}
        self._since = {known: since for known, since in self._since.items() if known in active}
        self._unserved = {known: at for known, at in self._unserved.items() if known in active}
        if not found or self._draining():
            return
        addresses = [f"{tenant}/{name}" for tenant, name in found]
        reports = list_workers(self._client, self._settings, templates=addresses)
        for (tenant, name), rollout in found.items():
            self._guarded(tenant, name, rollout, lambda seen: self._look_at(seen, reports))

    def try_versions(self) -> None:
        """Try the canaries whose gates nobody has tried yet; takes as long as their samples do."""
        for (tenant, name), rollout in _by_turns(self._active):
            if self._draining():
                return
            if rollout.phase is Phase.GATES and not rollout.paused:
                self._guarded(tenant, name, rollout, self._try)

    def canaries(self) -> list[PublishedVersion]:
        """Versions that passed their gates and that this worker is to keep warm."""
        found: list[PublishedVersion] = []

        def add(seen: Look) -> None:
            if self._serves(seen):
                found.append(seen.canary)

        for (tenant, name), rollout in self._active.items():
            if rollout.phase is not Phase.GATES:
                self._guarded(tenant, name, rollout, add)
        return found

    def shadowing(self) -> list[Shadowing]:
        """Rollouts whose canary passed its gates here and answers copies of jobs, unseen."""
        found: list[Shadowing] = []

        def add(seen: Look) -> None:
            if self._serves(seen):
                found.append(
                    Shadowing(
                        tenant=seen.tenant,
                        name=seen.name,
                        rollout=seen.rollout,
                        canary=seen.canary,
                    )
                )

        for (tenant, name), rollout in self._active.items():
            if rollout.plan.shadow and rollout.phase is not Phase.GATES:
                self._guarded(tenant, name, rollout, add)
        return found

    def _find(self) -> dict[tuple[str, str], Rollout]:
        found: dict[tuple[str, str], Rollout] = {}
        with errors_explained(self._settings):
            tenants = read_names(self._client.smembers(keys.TENANTS))
        for tenant in tenants:
            try:
                active = self._moves.active(tenant)
            except RedisUnreachable:
                raise
            except PrefillqError as error:
                # Something is wrong with this one's keys: no reason to forget the others.
                log.warning("rollouts_not_read", tenant=tenant, error=str(error))
                continue
            found |= {(tenant, name): rollout for name, rollout in active.items()}
        return found

    def _guarded(
        self, tenant: str, name: str, rollout: Rollout, act: Callable[[Look], None]
    ) -> None:
        """One tenant's rollout, whatever is wrong with it, keeps no other one waiting."""
        try:
            act(
                Look(
                    tenant=tenant,
                    name=name,
                    rollout=rollout,
                    canary=self._version(tenant, name, rollout.plan.canary),
                    stable=self._version(tenant, name, rollout.plan.stable),
                )
            )
        except RedisUnreachable:
            raise
        except Conflict as error:
            log.info("rollout_moved_meanwhile", tenant=tenant, template=name, error=str(error))
        except PrefillqError as error:
            log.warning("rollout_not_looked_at", tenant=tenant, template=name, error=str(error))
        except Exception:
            log.exception("rollout_not_looked_at", tenant=tenant, template=name)

    def _version(self, tenant: str, name: str, number: int) -> PublishedVersion:
        address = TemplateAddress(tenant=tenant, name=name, selector=str(number))
        return self._versions.get(self._versions.resolve(address, with_retired=True))

    def _serves(self, seen: Look) -> bool:
        ours = self._gates.model_digest == seen.canary.model_digest
        return ours and self._matches(seen.tenant, seen.name)

    def _look_at(self, seen: Look, reports: Sequence[Mapping[str, Any]]) -> None:
        warmth, serves = warmth_of(reports, seen.canary), self._serves(seen)
        served = serves or warmth.workers > 0
        unserved_s = self._unserved_for(seen.rollout, served=served)
        if served and not serves:
            return  # those look
        if serves and seen.rollout.phase is Phase.GATES:
            return  # `try_versions` does
        with self._turns.take(seen.tenant, seen.rollout.id, rest_s=_rest_s(seen)) as turn:
            fresh = None if turn is None else self._fresh(seen)
            if turn is None or fresh is None:
                return
            if not serves:
                told, judged = _no_worker(fresh), self._judged(fresh)
                decision = while_unserved(fresh.rollout, judged, told, unserved_s=unserved_s)
                self._make(fresh, decision)
            elif fresh.rollout.phase is not Phase.GATES:
                decision = self._decide(fresh, reports)
                if decision.act != "note":
                    turn.rest_s = 0.0
                self._make(fresh, decision)

    def _unserved_for(self, rollout: Rollout, *, served: bool) -> float:
        """For how many seconds this worker has seen nobody serve a canary with a share of the jobs,
        look after look.
        """
        if served or rollout.weight == 0:
            self._unserved.pop(rollout.id, None)
            return 0.0
        now = self._clock()
        return now - self._unserved.setdefault(rollout.id, now)

    def _try(self, seen: Look) -> None:
        if not self._serves(seen):
            return
        with self._turns.take(seen.tenant, seen.rollout.id, rest_s=TRY_AGAIN_S) as turn:
            fresh = None if turn is None else self._fresh(seen)
            if turn is None or fresh is None:
                return
            if fresh.rollout.phase is not Phase.GATES or fresh.rollout.paused:
                turn.rest_s = 0.0
                return
            place, rollout_id = (seen.tenant, seen.name), fresh.rollout.id

            def stopping() -> bool:
                now = self._active.get(place)
                return self._draining() or now is None or now.id != rollout_id or now.paused

            try:
                findings = self._gates.try_version(fresh.canary, fresh.stable, stopping=stopping)
            except Interrupted:
                turn.rest_s = 0.0  # another worker may begin at once
                return
            decision = after_gates(fresh.rollout, findings)
            waited = self._now() - fresh.rollout.since
            again = min(LONGEST_TRY_AGAIN_S, max(TRY_AGAIN_S, waited / 2))
            turn.rest_s = again if decision.act == "note" else 0.0
            self._make(fresh, decision)

    def _decide(self, seen: Look, reports: Sequence[Mapping[str, Any]]) -> Decision:
        judged = self._judged(seen)
        if seen.rollout.phase is Phase.WARMING:
            warmth = warmth_of(reports, seen.canary)
            return while_warming(seen.rollout, warmth, judged, stable=self._of_stable(seen))
        return while_baking(seen.rollout, judged, now=self._now())

    def _judged(self, seen: Look) -> tuple[Finding, ...]:
        """What the jobs of this phase say; nothing before the first step."""
        rollout = seen.rollout
        if rollout.step < 0:
            return ()
        digests = (seen.canary.ref.digest, seen.stable.ref.digest)
        keep_outcomes(
            self._client, self._settings, tenant=seen.tenant, rollout=rollout.id, digests=digests
        )
        if rollout.weight < WHOLE:
            canary, stable = read_both(
                self._client,
                self._settings,
                tenant=seen.tenant,
                rollout=rollout.id,
                digests=digests,
                since=rollout.since,
            )
        else:
            # A stable version without a share of the jobs is judged by those it had.
            canary = self._outcomes(seen, seen.canary, since=rollout.since)
            stable = self._outcomes(seen, seen.stable, since=self._stable_since(seen))
        return judge(canary, stable, rollout.plan.limits)

    def _of_stable(self, seen: Look) -> tuple[Finding, ...]:
        """Where the first step is all jobs: what the canary is to be compared with comes before."""
        rollout = seen.rollout
        if rollout.step >= 0 or rollout.plan.steps[0] < WHOLE:
            return ()
        stable = self._outcomes(seen, seen.stable, since=rollout.since)
        return (enough_to_compare(stable, rollout.plan.limits),)

    def _stable_since(self, seen: Look) -> float:
        """Looked up once: the journal may be long."""
        rollout = seen.rollout
        if (since := self._since.get(rollout.id)) is None:
            found = stable_since(self._moves.journal(seen.tenant, seen.name), rollout)
            since = self._since[rollout.id] = rollout.started_at if found is None else found
        return since

    def _outcomes(self, seen: Look, version: PublishedVersion, *, since: float) -> Outcomes:
        return read_outcomes(
            self._client,
            self._settings,
            tenant=seen.tenant,
            rollout=seen.rollout.id,
            digest=version.ref.digest,
            since=since,
        )

    def _fresh(self, seen: Look) -> Look | None:
        """The same rollout as it is now; None when it is over."""
        rollout = self._moves.get(seen.tenant, seen.name)
        if rollout is None or (rollout.id, rollout.plan) != (seen.rollout.id, seen.rollout.plan):
            return None
        return Look(
            tenant=seen.tenant,
            name=seen.name,
            rollout=rollout,
            canary=seen.canary,
            stable=seen.stable,
        )

    def _now(self) -> float:
        with errors_explained(self._settings):
            seconds, micros = self._client.time()
        return float(seconds) + float(micros) / 1e6

    def _make(self, seen: Look, decision: Decision) -> None:
        """Raises Conflict when the rollout is not any more what was looked at."""
        place = (seen.tenant, seen.name)
        rollout, findings, why = seen.rollout, decision.findings, decision.why
        match decision.act:
            case "note":
                if findings != rollout.findings:
                    self._moves.note(*place, expect=rollout, findings=findings)
            case "abort":
                self._moves.abort(*place, expect=rollout, who=self._worker_id, why=why)
                self._tell(seen, "aborted", 0, why)
            case "promote":
                self._moves.promote(*place, expect=rollout, who=self._worker_id, why=why)
                self._tell(seen, "promoted", WHOLE, why)
            case "advance" if decision.phase is not None:
                after = self._moves.advance(
                    *place,
                    expect=rollout,
                    phase=decision.phase,
                    step=decision.step,
                    findings=findings,
                    who=self._worker_id,
                    why=why,
                )
                self._tell(seen, str(after.phase), after.weight, why)

    def _tell(self, seen: Look, to: str, weight: int, why: str) -> None:
        rollout = seen.rollout
        log.info(
            "rollout_moved",
            rollout=rollout.id,
            tenant=seen.tenant,
            template=seen.name,
            stable=rollout.plan.stable,
            stable_digest=seen.stable.ref.digest,
            canary=rollout.plan.canary,
            canary_digest=seen.canary.ref.digest,
            was=str(rollout.phase),
            now=to,
            weight_was=rollout.weight,
            weight=weight,
            step=rollout.step,
            why=why,
        )


def _by_turns(
    active: Mapping[tuple[str, str], Rollout],
) -> list[tuple[tuple[str, str], Rollout]]:
    """One of each tenant, then a second of each: many of one tenant's hold up no other's."""
    counts: Counter[str] = Counter()
    order = {}
    for place in active:
        order[place] = counts[place[0]]
        counts[place[0]] += 1
    return sorted(active.items(), key=lambda item: order[item[0]])


def _rest_s(seen: Look) -> float:
    """Often enough that a fail is seen within a tenth of the time to bake."""
    plan = seen.rollout.plan
    return 0.8 * min(LONGEST_LOOK_S, max(LOOK_S, plan.bake_s / 10))


def _no_worker(seen: Look) -> Finding:
    return Finding(
        gate="workers",
        outcome=Outcome.INCONCLUSIVE,
        message=f"no live worker serves version {seen.rollout.plan.canary}, "
        f"whose model has the digest {seen.canary.model_digest[:12]}",
    )
