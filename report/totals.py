"""Sums over the lines of a log, in memory that does not grow with it.

What could have any number of names (versions, workers, error codes) keeps the first of them apart
and the rest together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

from contract.types import JobState
from report.distribution import Distribution, Mean
from report.lines import STAGES, JobLine, Line, TriedLaterLine, WarmedLine
from report.tally import Named, Tally
from report.timeline import Timeline

MAX_VERSIONS = 200
MAX_WORKERS = 100
MAX_WARMED = 10_000  # versions, of which most may have no job: they take no job's place
_MAX_DEVICES = 8
MEASURES = ("total_s", "ttft_s", "queue_s")
_MOST_ATTEMPTS = 20  # and more are counted as so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which lines count. None means all; `since` <= time < `until`, seconds since the epoch."""

    since: float | None = None
    until: float | None = None
    template: str | None = None  # a pattern as `prefillq worker start --template` takes
    tenant: str | None = None

    def takes(self, line: Line) -> bool:
        """A line without a time is in no span of time, one without a template in no template."""
        if self.tenant is not None and line.tenant != self.tenant:
            return False
        if self.template is not None:
            if isinstance(line, TriedLaterLine):
                return False
            address = line.address
            if not _matches(address, f"{address}@{line.version}", self.template):
                return False
        if self.since is None and self.until is None:
            return True
        return line.at is not None and (
            (self.since is None or line.at >= self.since)
            and (self.until is None or line.at < self.until)
        )


@lru_cache(maxsize=4096)
def _matches(address: str, version: str, pattern: str) -> bool:
    return fnmatchcase(address, pattern) or fnmatchcase(version, pattern)


@dataclass(slots=True, kw_only=True)
class Prefills:
    """What one version's prefix cost on one kind of device, and how often it was spared."""

    cold: Mean = field(default_factory=Mean)  # seconds
    hits: int = 0
    cached_tokens: int = 0  # of the hits
    overhead_s: float = 0.0  # verify and fork of the hits


@dataclass(slots=True, kw_only=True)
class Group:
    """The jobs of one version, or of several."""

    jobs: int = 0
    by_status: Tally = field(default_factory=Tally)
    latency: dict[str, Distribution] = field(
        default_factory=lambda: {name: Distribution() for name in MEASURES}
    )
    stages: list[float] = field(default_factory=lambda: [0.0] * len(STAGES))
    total_s: float = 0.0  # of the same jobs as `stages`
    staged: int = 0  # how many they are
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cache: Tally = field(default_factory=Tally)
    misses: Tally = field(default_factory=Tally)
    off: Tally = field(default_factory=Tally)
    device_s: float = 0.0
    engine_s: float = 0.0

    def merge(self, other: Group) -> None:
        """Count what the other one has counted."""
        self.jobs += other.jobs
        self.total_s += other.total_s
        self.staged += other.staged
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens
        self.device_s += other.device_s
        self.engine_s += other.engine_s
        for place, seconds in enumerate(other.stages):
            self.stages[place] += seconds
        for name, values in other.latency.items():
            self.latency[name].merge(values)
        self.by_status.merge(other.by_status)
        self.cache.merge(other.cache)
        self.misses.merge(other.misses)
        self.off.merge(other.off)


@dataclass(slots=True, kw_only=True)
class Version(Group):
    """A Group with what is only asked of single versions."""

    address: str = ""
    prefills: Named[Prefills] = field(default_factory=lambda: Named(Prefills, at_most=_MAX_DEVICES))


@dataclass(slots=True, kw_only=True)
class Worker:
    """What one worker did."""

    jobs: int = 0
    device_s: float = 0.0
    model: str = ""
    device: str = ""


class Totals:
    """Takes one line after the other; `report.summary` makes the numbers of it."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.jobs = 0
        self.versions: Named[Version] = Named(Version, at_most=MAX_VERSIONS)
        self.warmed: Named[Mean] = Named(Mean, at_most=MAX_WARMED)  # seconds, by version
        self.workers: Named[Worker] = Named(Worker, at_most=MAX_WORKERS)
        self.timeline = Timeline()
        self.batch_sizes = Tally(at_most=256)
        self.attempts: Tally = Tally(at_most=_MOST_ATTEMPTS)
        self.retries = 0
        self.errors = Tally()
        self.tried_later = Tally()
        self.began = math.inf
        self.ended = 0.0
        self.not_wanted = 0
        self.without_time = 0
        self.timed_prompt_tokens = 0
        self.timed_completion_tokens = 0
        self.bad_values = 0

    def add(self, line: Line) -> None:
        """Count one line, if it is wanted."""
        if not self.wanted.takes(line):
            self.not_wanted += isinstance(line, JobLine)
            return
        match line:
            case JobLine():
                self._add_job(line)
            case WarmedLine():
                self.warmed.of(f"{line.address}@{line.version}").add(line.prefill_s)
            case TriedLaterLine():
                self.tried_later.add(line.error or "(none)")

    def together(self) -> Group:
        """All versions' jobs."""
        group = Group()
        for version in self.versions.values():
            group.merge(version)
        return group

    def _version(self, address: str, number: str) -> Version:
        version = self.versions.of(f"{address}@{number}")
        if not version.address:
            version.address = address  # of OTHERS: the first one's, which nobody reads
        return version

    def _add_job(self, line: JobLine) -> None:
        version = self._version(line.address, line.version)
        engine_s, device_s = _device_seconds(line)
        self.jobs += 1
        _count(version, line, engine_s, device_s)
        _count_prefill(version, line)
        worker = self.workers.of(line.worker or "(unknown)")
        worker.jobs += 1
        worker.device_s += device_s
        worker.model, worker.device = line.model, line.device
        self.bad_values += line.bad_values
        if line.batch_size:
            self.batch_sizes.add(str(line.batch_size))
        attempt = line.attempt or 1
        self.attempts.add(str(min(attempt, _MOST_ATTEMPTS)))
        self.retries += attempt - 1
        if line.status != JobState.SUCCEEDED:
            self.errors.add(line.error or "(none)")
        self._count_time(line)

    def _count_time(self, line: JobLine) -> None:
        if line.at is None:
            self.without_time += 1
            return
        total_s = line.seconds.get("total_s")
        self.began = min(self.began, line.at - (total_s or 0.0))
        self.ended = max(self.ended, line.at)
        self.timed_prompt_tokens += line.prompt_tokens or 0
        self.timed_completion_tokens += line.completion_tokens or 0
        bucket = self.timeline.at(line.at)
        bucket.jobs += 1
        bucket.completion_tokens += line.completion_tokens or 0
        if line.status != JobState.SUCCEEDED:
            bucket.failed += line.status == JobState.FAILED
        elif total_s is not None:
            bucket.total_s.add(total_s)


def _count(group: Group, line: JobLine, engine_s: float, device_s: float) -> None:
    group.jobs += 1
    group.by_status.add(line.status)
    group.engine_s += engine_s
    group.device_s += device_s
    group.prompt_tokens += line.prompt_tokens or 0
    group.cached_tokens += line.cached_tokens or 0
    group.completion_tokens += line.completion_tokens or 0
    if line.cache_state:
        group.cache.add(line.cache_state)
        if line.cache_state != "hit":
            reasons = group.misses if line.cache_state == "miss" else group.off
            reasons.add(line.cache_reason or "(none)")
    if line.status != JobState.SUCCEEDED:
        return
    seconds = line.seconds
    for name in MEASURES:
        value = seconds.get(name)
        if value is not None and (value or name != "ttft_s"):  # 0: there was no token
            group.latency[name].add(value)
    total_s = seconds.get("total_s")
    if total_s is not None:
        group.staged += 1
        group.total_s += total_s
        for place, name in enumerate(STAGES):
            group.stages[place] += seconds.get(name, 0.0)


def _device_seconds(line: JobLine) -> tuple[float, float]:
    """(seconds that the engine had this job, its share of the device in them).

    A prefix is computed alone; in the rest a job shares the device with its batch. `batch_size` is
    the most that shared a step with it, so that the share is, if anything, too small.
    """
    seconds = line.seconds
    alone = seconds.get("prefill_s", 0.0)
    together = (
        seconds.get("fork_s", 0.0)
        + seconds.get("suffix_prefill_s", 0.0)
        + seconds.get("decode_s", 0.0)
    )
    return alone + together, alone + together / max(line.batch_size or 1, 1)


def _count_prefill(version: Version, line: JobLine) -> None:
    if line.cache_state == "hit":
        prefills = version.prefills.of(line.device)
        prefills.hits += 1
        prefills.cached_tokens += line.cached_tokens or 0
        prefills.overhead_s += line.seconds.get("verify_s", 0.0) + line.seconds.get("fork_s", 0.0)
    elif line.cache_reason == "cold" and line.seconds.get("prefill_s"):
        version.prefills.of(line.device).cold.add(line.seconds["prefill_s"])
