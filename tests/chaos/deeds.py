"""What is done to the system, and undone."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable

from tests.chaos.plan import Act, PlannedDeed
from tests.chaos.recovery import Recoveries
from tests.chaos.stage import Actor, Role, Stage
from tests.support.proxy import Action, Rule, cut_reply, cut_request

_WORKERS: tuple[Role, ...] = ("fake", "real")
# Each act on an actor, by whom it is done to. What is not here is done to Redis.
_ROLES: dict[Act, tuple[Role, ...]] = {
    Act.KILL: ("fake",),
    Act.KILL_REAL: ("real",),
    Act.TERMINATE: _WORKERS,
    Act.HURRY: _WORKERS,
    Act.PAUSE: _WORKERS,
    Act.CUT: _WORKERS,
    Act.STALL: _WORKERS,
    Act.REFUSE: _WORKERS,
    Act.CUT_REPLY: _WORKERS,
    Act.LOSE_MESSAGE: _WORKERS,
    Act.CUT_PRODUCER: ("producer",),
    Act.CUT_SUBMIT: ("producer",),
    Act.STALL_PRODUCER: ("producer",),
    Act.KILL_PRODUCER: ("producer",),
}
# An act that can be done to nobody now is tried again later, so many times.
_LATER_S, _TRIES = 1.0, 60


class Deeds:
    """Does what is planned when its time has come; `count` is what was done."""

    def __init__(self, stage: Stage, recoveries: Recoveries) -> None:
        self.count: Counter[Act] = Counter()
        self._stage = stage
        self._recoveries = recoveries
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._redis_is_down = False
        self._rules: list[Rule] = []

    def plan(self, deeds: list[PlannedDeed]) -> None:
        for deed in deeds:
            self._at(deed.at_s, lambda deed=deed: self._do(deed))

    def step(self) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def forgive(self) -> None:
        """Call off what waits for a request that has not come."""
        for rule in self._rules:
            rule.left = 0

    @property
    def left(self) -> int:
        """What is still to be done or undone."""
        return len(self._due)

    def _at(self, in_s: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._due, (time.monotonic() + in_s, self._order, action))

    def _do(self, deed: PlannedDeed, *, tries: int = _TRIES) -> None:
        act = deed.act
        if act in (Act.RESTART_REDIS, Act.CRASH_REDIS):
            target = None
            can = not self._redis_is_down
        else:
            fit = [actor for actor in self._stage.of(*_ROLES[act]) if actor.fit]
            target = fit[int(deed.pick * len(fit))] if fit else None
            can = target is not None
        if not can:
            if tries > 1:
                self._at(_LATER_S, lambda: self._do(deed, tries=tries - 1))
            return
        self.count[act] += 1
        self._stage.events.write(
            "deed",
            act=str(act),
            actor=target.name if target else "redis",
            length_s=round(deed.length_s, 2),
        )
        if target is None:
            self._restart_redis(deed)
        else:
            self._do_to(target, deed)

    def _do_to(self, actor: Actor, deed: PlannedDeed) -> None:
        assert actor.process is not None
        assert actor.process.process is not None
        proxy = actor.proxy
        match deed.act:
            case Act.KILL | Act.KILL_REAL | Act.KILL_PRODUCER:
                actor.killed = True
                actor.process.process.kill()
                if actor.role != "producer":
                    self._recoveries.killed(actor.name, actor.pid)
            case Act.TERMINATE | Act.HURRY:
                self._stage.tell_to_end(actor)
                if deed.act is Act.HURRY:
                    self._at(0.3, actor.process.process.terminate)
            case Act.PAUSE:
                actor.paused = True
                actor.process.pause()
                self._at(deed.length_s, lambda: _resume(actor))
            case Act.CUT | Act.CUT_PRODUCER:
                proxy.drop()
            case Act.STALL | Act.STALL_PRODUCER:
                proxy.stall()
                self._at(deed.length_s, proxy.resume)
            case Act.REFUSE:
                proxy.refuse()
                self._at(deed.length_s, proxy.accept)
            case Act.CUT_REPLY:
                # Of a claim, whose arguments name the worker, or of a commit; one reply, or also
                # that of the client's own second try.
                mark = f"-{actor.pid}-".encode() if deed.pick < 0.5 else b"succeeded"
                times = 1 + (deed.pick % 0.5 < 0.25)
                self._cut(actor, cut_reply, holds=mark, times=times)
            case Act.LOSE_MESSAGE:
                self._rules.append(proxy.on("BRPOP", cut_reply, reply_holds=b"prefillq.run"))
            case Act.CUT_SUBMIT:
                # Perhaps also of the client's own second try; then perhaps it cannot take the job
                # back either.
                times = 1 + (deed.pick < 0.7)
                self._cut(actor, cut_reply, holds=b"use_cache", times=times)
                if deed.pick < 0.4:
                    self._cut(actor, cut_request, holds=b":idem:", times=2)

    def _cut(self, actor: Actor, action: Action, *, holds: bytes, times: int) -> None:
        """At the next calls of a script with this in it."""
        self._rules += [
            actor.proxy.on(command, action, holds=holds, times=times)
            for command in ("EVALSHA", "FCALL")
        ]

    def _restart_redis(self, deed: PlannedDeed) -> None:
        self._redis_is_down = True
        if deed.act is Act.RESTART_REDIS:
            self._stage.redis.restart()
            self._redis_back()
        else:
            self._stage.redis.kill()
            self._at(deed.length_s, self._start_redis)

    def _start_redis(self) -> None:
        self._stage.redis.start()
        self._redis_back()

    def _redis_back(self) -> None:
        self._redis_is_down = False
        self._stage.events.write("redis_back")


def _resume(actor: Actor) -> None:
    if actor.paused and actor.process is not None:
        actor.process.resume()
    actor.paused = False
