"""A runner on an in-memory store and a fake engine, with a real tokenizer and template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contract.ids import new_job_id
from contract.job_store import StopReason
from contract.memory_store import MemoryJobStore
from contract.model_folder import ModelFolder
from contract.settings import Settings
from contract.types import Job, VersionRef
from templates.tokenizer import TemplateTokenizer
from templates.version import PublishedVersion
from tests.support.templates import make_spec, make_version
from worker.answer import JobAnswers
from worker.engine.fake import FakeEngine
from worker.leases import HeldLease, LeaseKeeper
from worker.model import LoadedModel
from worker.prefix.cache import PrefixCache
from worker.prefixes import PrefixService
from worker.runner import JobRunner


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Stack:
    """All parts of one worker in this process."""

    store: MemoryJobStore
    clock: Clock
    engine: FakeEngine
    prefixes: PrefixService
    leases: LeaseKeeper
    runner: JobRunner
    model: Any
    version: PublishedVersion
    versions: dict[str, PublishedVersion] = field(default_factory=dict)

    def get(self, ref: VersionRef) -> PublishedVersion:
        return self.versions[ref.digest]

    def publish(self, **changes: Any) -> PublishedVersion:
        version = make_version(make_spec(**changes), self.model.folder, self.model.tokenizer)
        self.versions[version.ref.digest] = version
        return version

    def submit(
        self, note: str = "hello", *, version: PublishedVersion | None = None, **options: Any
    ) -> str:
        ref = (version or self.version).ref
        deadline_s = options.pop("deadline_s", None)
        job = Job(id=new_job_id(ref.tenant), ref=ref, variables={"note": note}, **options)
        self.store.submit(job, input_digest=note, deadline_s=deadline_s)
        return job.id


class BareModel(SimpleNamespace):
    """A loaded model without its module, whose parts a test may change."""

    dtype_name = LoadedModel.dtype_name
    prefix_key = LoadedModel.prefix_key


@pytest.fixture
def look_every_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[Stack], None]:
    """Let a stack look at the record whenever its engine asks, instead of every half second."""

    def look(stack: Stack) -> None:
        def stop_reason(lease: HeldLease) -> StopReason | None:
            stack.leases.look_all()
            return lease._stop

        monkeypatch.setattr(HeldLease, "stop_reason", stop_reason)

    return look


@pytest.fixture(scope="session")
def tokenizer(smollm2: ModelFolder) -> TemplateTokenizer:
    return TemplateTokenizer.load(smollm2.path)


@pytest.fixture
def make_stack(smollm2: ModelFolder, tokenizer: TemplateTokenizer) -> Any:
    """Build a stack; keywords go to the runner, `engine` and `cache_bytes` apart."""

    def make(
        *,
        engine: FakeEngine | None = None,
        cache_bytes: int = 10**6,
        audit: bool = False,
        **options: Any,
    ) -> Stack:
        settings, clock = Settings(cache_dir=Path("unused")), Clock()
        store = MemoryJobStore(settings, clock=clock)
        engine = engine or FakeEngine()
        model = BareModel(
            folder=replace(smollm2, name="tiny"), tokenizer=tokenizer, device="cpu", dtype="float32"
        )
        prefixes = PrefixService(cache=PrefixCache(cache_bytes), engine=engine, model=model)
        leases = LeaseKeeper(store, settings=settings)
        stack = Stack(
            store=store,
            clock=clock,
            engine=engine,
            prefixes=prefixes,
            leases=leases,
            model=model,
            runner=None,
            version=None,
        )
        stack.version = stack.publish()
        stack.runner = JobRunner(
            worker_id="w1",
            store=store,
            answers=JobAnswers(
                versions=stack, model=model, engine=engine, prefixes=prefixes, audit=audit
            ),
            leases=leases,
            **options,
        )
        return stack

    return make
