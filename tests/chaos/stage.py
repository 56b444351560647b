"""Redis, workers and producers as processes, each behind a proxy of its own, kept running.

Whatever ends is started again a moment later, as a supervisor would. Each life of a process has
a log of its own.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from contract.errors import PrefillqError
from contract.model_folder import ModelFolder
from contract.redis_client import Client, connect
from contract.settings import Settings
from contract.worker_reports import list_workers
from local.redis_server import EmbeddedRedis
from local.workers import WorkerProcess
from templates.registry import Registry
from tests.chaos.ledger import Ledger
from tests.chaos.plan import CRASH, LEASE_S, MAX_ATTEMPTS, NAN, OWN, POISON, TEMPLATES
from tests.support.fakes import FakeWorker
from tests.support.kernels import share_kernels
from tests.support.proxy import Proxy
from tests.support.templates import make_spec, publish

Role = Literal["fake", "real", "producer"]

ROOT = Path(__file__).parents[2]

# Seconds that the workers' clocks are off; see tests.support.fake_worker.
CLOCK_OFFSETS = (0.0, 300.0, -120.0)
_RESTART_S = (0.1, 0.5)
_LOOK_S = 0.25
_STACKS = {"PYTHONFAULTHANDLER": "1"}  # SIGABRT writes all threads' stacks to the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process of an actor, from start to end."""

    actor: str
    role: Role
    pid: int
    log_path: Path


@dataclass(kw_only=True)
class Actor:
    """A worker or a producer through all its lives."""

    name: str
    role: Role
    proxy: Proxy
    build: Callable[[Path], WorkerProcess]
    process: WorkerProcess | None = None  # None until it is started again
    lives: list[Life] = field(default_factory=list)
    up: bool = False  # a worker that has reported itself
    paused: bool = False
    told_to_end: bool = False  # by SIGTERM
    killed: bool = False  # by us
    retired: bool = False  # what has ended stays ended
    starts_at: float = 0.0

    @property
    def fit(self) -> bool:
        """Whether it works and nobody has done anything to its process yet."""
        works = self.process is not None and (self.up or self.role == "producer")
        return works and not (self.paused or self.told_to_end or self.killed)

    @property
    def pid(self) -> int:
        return self.lives[-1].pid


class Stage:
    """All that runs. Use `open_stage`; call `tend` often."""

    def __init__(
        self, *, folder: Path, redis: EmbeddedRedis, settings: Settings, events: Ledger
    ) -> None:
        self.folder = folder
        self.redis = redis
        self.settings = settings  # straight to Redis
        self.events = events
        self.actors: list[Actor] = []
        self._random = random.Random()
        self._client = self.client()
        self._look_at = 0.0

    @property
    def lives(self) -> list[Life]:
        return [life for actor in self.actors for life in actor.lives]

    def of(self, *roles: Role) -> list[Actor]:
        return [actor for actor in self.actors if actor.role in roles]

    def client(self, *, timeout_s: float = 0.5) -> Client:
        """A connection that no proxy breaks, by default with little patience."""
        return connect(self.settings, timeout_s=timeout_s)

    def tend(self) -> None:
        """Note what has ended, start it again, and see who works."""
        for actor in self.actors:
            if actor.process is not None:
                self._note_end(actor, actor.process)
            if actor.process is None and not actor.retired and time.monotonic() >= actor.starts_at:
                self._start(actor)
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK_S
            self._see_who_works()

    def _see_who_works(self) -> None:
        try:
            reported = {worker["pid"] for worker in list_workers(self._client, self.settings)}
        except PrefillqError:
            return  # Redis is away: what worked still does
        for actor in self.of("fake", "real"):
            actor.up = actor.up or (actor.process is not None and actor.pid in reported)

    def tell_to_end(self, actor: Actor) -> None:
        """SIGTERM."""
        assert actor.process is not None
        assert actor.process.process is not None
        actor.told_to_end = True
        actor.process.process.terminate()

    def _note_end(self, actor: Actor, process: WorkerProcess) -> None:
        assert process.process is not None
        code = process.process.poll()
        if code is None:
            return
        process.kill()  # it is gone; this lets go of its guard
        self.events.write(
            "ended", actor=actor.name, pid=actor.pid, code=code, ours=actor.killed,
            told=actor.told_to_end,
        )  # fmt: skip
        actor.process = None
        actor.starts_at = time.monotonic() + self._random.uniform(*_RESTART_S)
        actor.up = actor.paused = actor.told_to_end = actor.killed = False

    def _start(self, actor: Actor) -> None:
        log_path = self.folder / f"{actor.name}.{len(actor.lives):03d}.log"
        actor.process = actor.build(log_path).start()
        life = Life(actor=actor.name, role=actor.role, pid=actor.process.pid, log_path=log_path)
        actor.lives.append(life)
        self.events.write("started", actor=actor.name, pid=life.pid)

    def end_all(self, *roles: Role, within_s: float) -> None:
        """SIGTERM to all of these; those that are still there after that say where they hang."""
        actors = self.of(*roles)
        for actor in actors:
            actor.retired = True
            if actor.process is not None and not actor.told_to_end:
                self.tell_to_end(actor)
        give_up = time.monotonic() + within_s
        while any(actor.process for actor in actors) and time.monotonic() < give_up:
            self.tend()
            time.sleep(0.05)
        for actor in actors:
            if actor.process is not None:
                self.events.write("hung", actor=actor.name, pid=actor.pid)
                actor.killed = True
                _abort(actor.process)
        self.tend()

    def close(self) -> None:
        """Kill what is left."""
        for actor in self.actors:
            if actor.process is not None:
                actor.process.kill()
        self._client.close()


@contextmanager
def open_stage(
    *, folder: Path, model: ModelFolder, seed: int, producers: int, per_second: float
) -> Iterator[Stage]:
    """A Redis with its templates, and actors that have not been started yet."""
    with ExitStack() as stack:
        events = stack.enter_context(Ledger(folder / "events.jsonl"))
        # What was answered is on disk: a crash of the server may then lose nothing.
        redis = stack.enter_context(EmbeddedRedis(config={"appendfsync": "always"}))
        cache_dir = folder / "cache"
        share_kernels(cache_dir)
        settings = Settings.load(redis_url=redis.url, cache_dir=cache_dir, lease_s=LEASE_S)
        stage = Stage(folder=folder, redis=redis, settings=settings, events=events)
        for number, offset in enumerate(CLOCK_OFFSETS, start=1):
            options = [
                f"--clock-offset={offset}", f"--die-on={POISON}", f"--fail-on={CRASH}",
                # What one worker fails on, another may do.
                *([f"--nan-on={NAN}"] if number != 2 else []),
            ]  # fmt: skip
            _add_worker(stage, stack, model, "fake", f"worker-{number}", options)
        real = f"worker-{len(CLOCK_OFFSETS) + 1}"
        _add_worker(stage, stack, model, "real", real, ["--batch=4", "--threads=1"])
        own = [own_template(actor) for actor in stage.actors]
        for number in range(1, producers + 1):
            options = [f"--seed={seed}", f"--per-second={per_second / producers}"]
            _add_producer(
                stage, stack, f"producer-{number}", options + [f"--own={name}" for name in own]
            )
        with stage.client(timeout_s=30.0) as client:
            registry = Registry(client, settings)
            for address in (*TEMPLATES, *own):
                tenant, name = address.split("/")
                publish(registry, make_spec(name, tenant=tenant), model)
        stack.callback(stage.close)
        yield stage


def own_template(worker: Actor) -> str:
    """The template that this worker alone serves."""
    return f"{OWN}/{worker.name}"


def _add_worker(
    stage: Stage,
    stack: ExitStack,
    model: ModelFolder,
    role: Literal["fake", "real"],
    name: str,
    options: list[str],
) -> None:
    proxy = stack.enter_context(Proxy(stage.redis.url))
    settings = stage.settings.model_copy(update={"redis_url": proxy.url})
    tenants = dict.fromkeys(address.split("/")[0] for address in TEMPLATES)
    patterns = [
        f"--template={pattern}" for pattern in (*(f"{t}/*" for t in tenants), f"{OWN}/{name}")
    ]
    env = {"PREFILLQ_MAX_ATTEMPTS": str(MAX_ATTEMPTS), **_STACKS}

    def build(log_path: Path) -> WorkerProcess:
        if role == "fake":
            return FakeWorker(
                settings,
                model=model.path,
                log_path=log_path,
                options=[*patterns, *options],
                env=env,
            )
        return WorkerProcess(
            settings,
            log_path=log_path,
            options=["--model", str(model.path), *patterns, *options],
            env={"PYTHONPATH": str(ROOT), **env},
        )

    stage.actors.append(Actor(name=name, role=role, proxy=proxy, build=build))


def _add_producer(stage: Stage, stack: ExitStack, name: str, options: list[str]) -> None:
    proxy = stack.enter_context(Proxy(stage.redis.url))
    settings = stage.settings.model_copy(update={"redis_url": proxy.url})
    ledger = ["--ledger", str(stage.folder / f"{name}.jsonl"), "--name", name]

    def build(log_path: Path) -> WorkerProcess:
        return WorkerProcess(
            settings,
            log_path=log_path,
            options=[*ledger, *options],
            env={"PYTHONPATH": str(ROOT), **_STACKS},
            command=(sys.executable, "-m", "tests.chaos.producing"),
        )

    # Retired until the workers are there.
    stage.actors.append(Actor(name=name, role="producer", proxy=proxy, build=build, retired=True))


def _abort(process: WorkerProcess) -> None:
    """End it with a signal on which it writes where it is, then for good."""
    assert process.process is not None
    process.process.send_signal(signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        process.process.wait(5)
    process.kill()
