"""A whole run: everything starts, is broken for a while, comes to rest, and is accounted for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from contract.errors import PrefillqError, TimedOut
from contract.model_folder import ModelFolder
from contract.types import JobState
from producer.client import Producer
from producer.handle import JobHandle
from tests.chaos.accounting import Fault, faults_of_processes, judge
from tests.chaos.deeds import Deeds
from tests.chaos.evidence import Answers, Archive, Evidence, Record, read_logs, worker_pid
from tests.chaos.ledger import Entry, Ledger, read_ledger
from tests.chaos.plan import TEMPLATES, planned_deeds, planned_job
from tests.chaos.recovery import Recoveries
from tests.chaos.report import Report, make_report
from tests.chaos.stage import Actor, Stage, open_stage, own_template

_TICK_S = 0.05
_START_S = 120.0
_ROLL_CALL_S = 20.0
_END_S = 60.0
_ROLL = "roll"  # in the input of the jobs of the roll call

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """What one run is to be."""

    seconds: float
    seed: int
    model: ModelFolder
    folder: Path  # ledgers and logs stay here
    every_s: float = 1.5  # between two deeds, on average
    per_second: float = 5.0  # jobs, of all producers together
    producers: int = 3
    drain_s: float = 240.0  # for all jobs to end, once nothing is broken any more


def run_chaos(options: ChaosOptions, *, say: Say = lambda _: None) -> Report:
    """See above. The stage is gone when this returns, the evidence is not."""
    with open_stage(
        folder=options.folder,
        model=options.model,
        seed=options.seed,
        producers=options.producers,
        per_second=options.per_second,
    ) as stage:
        return _Run(stage, options, say).all()


class _Run:
    def __init__(self, stage: Stage, options: ChaosOptions, say: Say) -> None:
        self._stage = stage
        self._options = options
        self._say = say
        self._client = stage.client()
        tenants = tuple(dict.fromkeys(address.split("/")[0] for address in TEMPLATES))
        self._recoveries = Recoveries(self._client, stage.settings, tenants, stage.events)
        self._deeds = Deeds(stage, self._recoveries)
        self._faults: list[Fault] = []

    def all(self) -> Report:
        stage, options = self._stage, self._options
        self._until(self._all_work, within_s=_START_S, what="the workers to start")
        for producer in stage.of("producer"):
            producer.retired = False
        self._say("started: everything is broken from now on")
        stage.events.write("begun", seconds=options.seconds, seed=options.seed)
        began = time.monotonic()
        self._deeds.plan(
            planned_deeds(options.seed, seconds=options.seconds, every_s=options.every_s)
        )
        self._break(until=began + options.seconds)
        self._say("nothing is broken any more: the jobs there are come to their end")
        stage.events.write("calm")
        self._deeds.forgive()
        drained_s = self._drain()
        self._call_the_roll()
        stage.end_all("fake", "real", within_s=_END_S)
        report = self._report(drained_s=drained_s)
        self._client.close()
        return report

    def _step(self) -> None:
        self._deeds.step()
        self._stage.tend()
        self._recoveries.look()
        time.sleep(_TICK_S)

    def _break(self, *, until: float) -> None:
        say_at = time.monotonic()
        while time.monotonic() < until or self._deeds.left:
            self._step()
            if time.monotonic() >= say_at + 10:
                say_at = time.monotonic()
                done = self._deeds.count
                left = max(0.0, until - say_at)
                self._say(
                    f"{left:4.0f} s left, {done.total()} deeds, {done['kill']} workers killed"
                )

    def _until(self, true: Callable[[], bool], *, within_s: float, what: str) -> None:
        give_up = time.monotonic() + within_s
        while not true():
            if time.monotonic() > give_up:
                raise TimedOut(f"waited for {what}", expected=f"within {within_s:g} s")
            self._step()

    def _all_work(self) -> bool:
        return all(worker.up for worker in self._stage.of("fake", "real"))

    def _drain(self) -> float:
        """Let the producers settle all that they began; the seconds until they had."""
        began = time.monotonic()
        producers = self._stage.of("producer")
        while not all(actor.retired and actor.process is None for actor in producers):
            if time.monotonic() > began + self._options.drain_s:
                self._stage.events.write("not_drained")
                break
            for actor in producers:
                # It hears SIGTERM once it has said that it is up.
                if actor.fit and self._is_up(actor):
                    actor.retired = True
                    self._stage.tell_to_end(actor)
            self._step()
        drained_s = time.monotonic() - began
        self._stage.end_all("producer", within_s=5)
        return drained_s

    def _ledger_of(self, actor: Actor) -> list[Entry]:
        return read_ledger(self._stage.folder / f"{actor.name}.jsonl")

    def _is_up(self, actor: Actor) -> bool:
        return any(entry.get("up") == actor.pid for entry in self._ledger_of(actor))

    def _call_the_roll(self) -> None:
        """Every worker must do a job that no other worker is given."""
        workers = self._stage.of("fake", "real")
        try:
            self._until(self._all_work, within_s=_START_S, what="the workers to be back")
        except TimedOut as error:
            self._faults.append(Fault(kind="idle", what="workers", detail=str(error)))
        with Producer(self._stage.settings, patience_s=_ROLL_CALL_S) as producer:
            called = {
                worker.name: producer.submit(own_template(worker), {"note": f"[{_ROLL}]"})
                for worker in workers
            }
            give_up = time.monotonic() + _ROLL_CALL_S
            waiting = dict(called)
            while waiting and time.monotonic() < give_up:
                waiting = {
                    name: handle for name, handle in waiting.items() if not _has_ended(handle)
                }
                self._step()
            for name in waiting:
                self._faults.append(
                    Fault(
                        kind="idle",
                        what=name,
                        detail=f"a job that only it may take was not done in {_ROLL_CALL_S:g} s",
                    )
                )

    # --- the reckoning

    def _report(self, *, drained_s: float) -> Report:
        stage = self._stage
        events = read_ledger(stage.folder / "events.jsonl")
        logged = read_logs(life for life in stage.lives if life.role != "producer")
        # A server whose disk is slow is slow, and this is no time to lose patience.
        client = stage.client(timeout_s=60.0)
        archive = Archive(client, stage.settings)
        records = {
            job_id: record for job_id, record in archive.records().items() if record.key != _ROLL
        }
        with Ledger(
            stage.folder / "records.jsonl"
        ) as kept:  # what Redis said, for whoever asks why
            for record in records.values():
                kept.write("record", **asdict(record))
        evidence = Evidence(
            ledger=[entry for actor in stage.of("producer") for entry in self._ledger_of(actor)],
            records=records,
            finished=logged.finished,
            unsure=logged.unsure,
            cut_short=frozenset(
                event["pid"] for event in events if event["event"] == "ended" and event["code"] != 0
            ),
            expected=self._expected(archive, records),
            indexed=archive.indexed(),
        )
        client.close()
        account = judge(evidence)
        account.faults += [*self._faults, *faults_of_processes(events)]
        return make_report(
            account,
            seed=self._options.seed,
            seconds=self._options.seconds,
            drained_s=drained_s,
            events=events,
            recoveries=self._recoveries,
            tracebacks=logged.tracebacks,
        )

    def _expected(self, archive: Archive, records: Mapping[str, Record]) -> dict[str, str]:
        """The answer that each job must have got from the worker that answered it."""
        real = {life.pid for life in self._stage.lives if life.role == "real"}
        answers = Answers(self._options.model, archive.versions())
        own = tuple(own_template(worker) for worker in self._stage.of("fake", "real"))
        answered = {i: it for i, it in records.items() if it.state is JobState.SUCCEEDED}
        refs = archive.refs(answered)
        expected = {}
        for job_id, record in answered.items():
            producer, _, number = record.key.rpartition("-")
            if number.isdecimal():  # else nobody's job, as the account says
                note = planned_job(self._options.seed, producer, int(number), own=own).note
                by_model = worker_pid(record.worker) in real
                expected[job_id] = answers.of(refs[job_id], note, real=by_model)
        return expected


def _has_ended(handle: JobHandle) -> bool:
    try:
        return handle.status().ended
    except PrefillqError:
        return False  # a Redis that does not answer says nothing
