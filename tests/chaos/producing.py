"""A producer's process: submits at a random rate, cancels some, waits for all, and notes it.

`python -m tests.chaos.producing --help`. Killed and started again, it reads in its ledger what it
had promised, settles what it does not know by submitting it again under the same key, and goes
on. Told to end by SIGTERM, it submits nothing new and ends when it knows the end of each job.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from contract.errors import (
    Conflict,
    NotFound,
    PrefillqError,
    RedisRefused,
    RedisUnreachable,
    TimedOut,
)
from contract.settings import Settings
from producer.client import Producer
from producer.handle import JobHandle
from tests.chaos.ledger import Entry, Ledger, read_ledger
from tests.chaos.plan import PlannedJob, planned_job

_ROUND_S = 1.0  # how long the collector waits before it looks for new jobs to wait for
_TICK_S = 0.02


class Producing:
    """One producer's life after another, on one ledger."""

    def __init__(self, options: argparse.Namespace, producer: Producer, ledger: Ledger) -> None:
        self._options = options
        self._producer = producer
        self._ledger = ledger
        self._random = random.Random()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._next_number = 0
        self._watched: dict[str, tuple[str, JobHandle]] = {}  # job id -> key, handle
        self._lock = threading.Lock()
        self.ending = threading.Event()
        self._collector = threading.Thread(target=self._collect, name="collector", daemon=True)

    def run(self, past: Iterable[Entry]) -> None:
        """Go on from what the ledger holds until told to end and until all is known."""
        self._resume(past)
        self._collector.start()
        self._at(0.0, self._submit_next)
        while not (self.ending.is_set() and not self._due and not self._watched):
            if not self._due or self._due[0][0] > time.monotonic():
                time.sleep(_TICK_S)
                continue
            heapq.heappop(self._due)[2]()

    def _at(self, in_s: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._due, (time.monotonic() + in_s, self._order, action))

    def _plan(self, number: int) -> PlannedJob:
        options = self._options
        return planned_job(options.seed, options.name, number, own=tuple(options.own))

    def _resume(self, past: Iterable[Entry]) -> None:
        last: dict[int, Entry] = {}
        accepted: dict[int, str] = {}
        for entry in past:
            if "number" in entry:
                last[entry["number"]] = entry
                if entry["event"] == "accepted":
                    accepted[entry["number"]] = entry["job_id"]
        for number, entry in last.items():
            plan = self._plan(number)
            if entry["event"] in ("result", "vanished", "given_up"):
                continue
            if number in accepted:
                self._watch(plan, self._producer.handle(accepted[number]))
            else:
                self._at(0.0, lambda plan=plan: self._submit(plan, first=False))
        self._next_number = max(last, default=-1) + 1

    def _submit_next(self) -> None:
        if self.ending.is_set():
            return
        plan = self._plan(self._next_number)
        self._next_number += 1
        self._at(self._random.expovariate(self._options.per_second), self._submit_next)
        self._submit(plan, first=True)

    def _submit(self, plan: PlannedJob, *, first: bool) -> None:
        self._note("attempt", plan, template=plan.template, kind=str(plan.kind))
        try:
            handle = self._producer.submit(
                plan.template,
                {"note": plan.note},
                idempotency_key=plan.key,
                deadline_s=plan.deadline_s,
            )
        except PrefillqError as error:
            maybe = "may have been enqueued" in str(error)
            self._note("refused", plan, error=error.code, maybe=maybe, text=str(error)[:300])
            if not isinstance(error, (RedisUnreachable, RedisRefused)):
                return  # an auditor's matter
            if first and not maybe and plan.gives_up:
                self._note("given_up", plan)
                return
            again_s = self._random.uniform(0.2, 1.0)
            self._at(again_s, lambda: self._submit(plan, first=first and not maybe))
            return
        self._note("accepted", plan, job_id=handle.id)
        self._watch(plan, handle)
        if plan.cancel_after_s is not None:
            self._at(plan.cancel_after_s, lambda: self._cancel(plan, handle))

    def _cancel(self, plan: PlannedJob, handle: JobHandle) -> None:
        self._note("cancel", plan, job_id=handle.id)
        try:
            came_to = str(handle.cancel())
        except (Conflict, NotFound, RedisUnreachable, RedisRefused) as error:
            came_to = error.code
        self._note("cancel_told", plan, job_id=handle.id, came_to=came_to)

    def _watch(self, plan: PlannedJob, handle: JobHandle) -> None:
        with self._lock:
            self._watched[handle.id] = (plan.key, handle)

    def _collect(self) -> None:
        while True:
            with self._lock:
                handles = [handle for _, handle in self._watched.values()]
            if not handles:
                time.sleep(_TICK_S)
                continue
            try:
                for handle in self._producer.wait(handles, timeout=_ROUND_S):
                    self._note_end(handle)
            except TimedOut:
                pass
            except (RedisUnreachable, RedisRefused):
                time.sleep(0.2)

    def _note_end(self, handle: JobHandle) -> None:
        key = self._watched[handle.id][0]
        number = int(key.rpartition("-")[2])
        try:
            view = handle.view()
        except NotFound:
            self._ledger.write("vanished", number=number, key=key, job_id=handle.id)
        else:
            result = view.result
            self._ledger.write(
                "result",
                number=number,
                key=key,
                job_id=handle.id,
                status=str(view.state),
                text=result.text if result else None,
                attempt=result.attempt if result else None,
                worker=result.worker if result else None,
                error=result.error.code if result and result.error else None,
            )
        with self._lock:
            del self._watched[handle.id]

    def _note(self, event: str, plan: PlannedJob, **fields: object) -> None:
        self._ledger.write(event, number=plan.number, key=plan.key, **fields)


def main() -> int:
    options = _parser().parse_args()
    past = read_ledger(options.ledger)
    with Ledger(options.ledger) as ledger, Producer(Settings.load()) as producer:
        producing = Producing(options, producer, ledger)
        signal.signal(signal.SIGTERM, lambda *_: producing.ending.set())
        ledger.write("up", up=os.getpid())
        producing.run(past)
        ledger.write("done")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="producing", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--ledger", type=Path, required=True)
    add("--name", required=True)
    add("--seed", type=int, required=True)
    add("--per-second", type=float, default=2.0)
    add("--own", action="append", default=[], metavar="TEMPLATE", help="served by one worker alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
