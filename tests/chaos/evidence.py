"""What ledgers, records and logs say when a run is over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract import keys
from contract.codec import unpack
from contract.model_folder import ModelFolder
from contract.redis_client import Client, text
from contract.settings import Settings
from contract.types import JobState, VersionRef
from templates.fill import trusted_ids
from templates.registry import Registry
from templates.tokenizer import TemplateTokenizer
from templates.version import PublishedVersion
from tests.chaos.ledger import Entry
from tests.chaos.stage import Life
from worker.engine.base import Generation, GenerationRequest
from worker.engine.fake import digest_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A job as Redis has it."""

    job_id: str
    key: str  # from its input
    state: JobState
    committed: bool  # a worker wrote its result
    dead: bool
    cancel_requested: bool
    error: str  # code
    text: str
    attempt: int
    worker: str
    deadline_at: float
    finished_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A worker's log line of a job that it committed."""

    job_id: str
    worker: str
    status: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known, from sources that know nothing of each other."""

    ledger: list[Entry]  # of all producers
    records: Mapping[str, Record]  # by job id
    finished: list[Finished]
    # Job ids whose committed result their worker may not have logged, as it says.
    unsure: frozenset[str]
    # Pids of workers that ended without having been able to say all.
    cut_short: frozenset[int]
    expected: Mapping[str, str]  # by job id: the text of a succeeded job's answer
    indexed: frozenset[str]  # job ids among those that wait or run


class Archive:
    """Reads a stage's Redis once it is quiet."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings

    def records(self) -> dict[str, Record]:
        """Every job's record there is, whoever its producer was."""
        found = {}
        for key in self._client.scan_iter(match=keys.job("*.*"), count=1000):
            tenant, _, rest = text(key).removeprefix(keys.PREFIX).partition(":job:")
            if fields := self._client.hgetall(key):
                job_id = f"{tenant}.{rest}"
                found[job_id] = _record(job_id, fields)
        return found

    def refs(self, job_ids: Iterable[str]) -> dict[str, VersionRef]:
        """The version of each job."""
        found = {}
        for job_id in job_ids:
            template, version, digest = self._client.hmget(
                keys.job(job_id), "template", "version", "digest"
            )
            found[job_id] = VersionRef(
                tenant=job_id.partition(".")[0],
                template=text(template),
                version=int(version),
                digest=text(digest),
            )
        return found

    def indexed(self) -> frozenset[str]:
        """Job ids in the sets of those that wait and those that run."""
        found: set[str] = set()
        for pattern in (keys.queued("*"), keys.running("*"), keys.waiting("*", "*")):
            for key in self._client.scan_iter(match=pattern, count=1000):
                found.update(text(member) for member in self._client.zrange(key, 0, -1))
        return frozenset(found)

    def versions(self) -> Registry:
        return Registry(self._client, self._settings)


def _record(job_id: str, fields: Mapping[bytes, bytes]) -> Record:
    result = unpack(fields[b"result"]) if b"result" in fields else {}
    finished_at = fields.get(b"finished_at")
    return Record(
        job_id=job_id,
        key=key_in(unpack(fields[b"input"])["note"]),
        state=JobState(text(fields[b"state"])),
        committed=bool(result),
        dead=fields.get(b"dead") == b"1",
        cancel_requested=fields.get(b"cancel_requested") == b"1",
        error=(result.get("error") or {}).get("code", ""),
        text=result.get("text", ""),
        attempt=int(fields[b"attempt"]),
        worker=text(fields.get(b"worker", b"")),
        deadline_at=float(fields[b"deadline_at"]),
        finished_at=float(finished_at) if finished_at is not None else None,
    )


def key_in(note: str) -> str:
    """The key that is written into a job's input."""
    return note.partition("[")[2].partition("]")[0]


def worker_pid(worker: str) -> int:
    """The process id in a worker's id; 0 where there is none."""
    parts = worker.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """What the workers said in their logs."""

    finished: list[Finished]
    unsure: frozenset[str]  # job ids of results that could not be written, or seemed so
    tracebacks: list[str]  # which log, and the last line of each


def read_logs(lives: Iterable[Life]) -> Logged:
    """Read the logs of these processes."""
    finished: list[Finished] = []
    unsure: set[str] = set()
    tracebacks: list[str] = []
    for life in lives:
        for line in _json_lines(life.log_path):
            match line.get("event"):
                case "job_finished":
                    finished.append(
                        Finished(
                            job_id=line["job_id"],
                            worker=line["worker"],
                            status=line["status"],
                            attempt=line["attempt"],
                        )
                    )
                case "commit_given_up":
                    unsure.add(line["job_id"])
            if "exception" in line:
                tracebacks.append(f"{life.log_path.name}: {line['event']}: {_last(line)}")
    return Logged(finished=finished, unsure=frozenset(unsure), tracebacks=tracebacks)


def _json_lines(path: Path) -> Iterable[dict[str, Any]]:
    for raw in path.read_bytes().splitlines():
        if raw.startswith(b"{"):
            try:
                yield json.loads(raw)
            except ValueError:  # its process was killed while it wrote
                continue


def _last(line: Mapping[str, Any]) -> str:
    lines = str(line["exception"]).strip().splitlines()
    return lines[-1][:200] if lines else ""


class Answers:
    """What each job's answer must be, worked out from what its producer asked."""

    def __init__(self, model: ModelFolder, versions: Registry) -> None:
        self._model = model
        self._tokenizer = TemplateTokenizer.load(model.path)
        self._versions = versions
        self._known: dict[VersionRef, PublishedVersion] = {}
        self._generate: Callable[[GenerationRequest], Generation] | None = None

    def of(self, ref: VersionRef, note: str, *, real: bool) -> str:
        """The text that a fake worker answers, or the one with the model."""
        if ref not in self._known:
            self._known[ref] = self._versions.get(ref)
        version = self._known[ref]
        request = GenerationRequest(
            ids=trusted_ids(version.compiled, {"note": note}, self._tokenizer),
            generation=version.spec.generation,
        )
        return self._plain(request).text if real else digest_text(request)

    def _plain(self, request: GenerationRequest) -> Generation:
        """The model alone, one prompt at a time and without any cache."""
        if self._generate is None:
            import torch  # seconds, and only where a real worker answered

            from worker.engine.reference import UncachedEngine
            from worker.model import load_model

            loaded = load_model(self._model, device=torch.device("cpu"), dtype=torch.float32)
            self._generate = UncachedEngine(loaded).generate
        return self._generate(request)
