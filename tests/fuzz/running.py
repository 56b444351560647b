"""Many inputs for one target, by chance from a seed or guided by coverage."""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog
from hypothesis import HealthCheck, given, seed as seeded, settings

from contract.logs import configure_logs
from tests.fuzz.targets import Target

ROUND = 500  # inputs between two looks at the clock


@dataclass(slots=True, kw_only=True)
class Run:
    """What a target was given, and how that ended."""

    target: str
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    found: list[str] = field(default_factory=list)  # a traceback with the smallest input each

    def __str__(self) -> str:
        ends = ", ".join(f"{name} {count}" for name, count in self.outcomes.most_common())
        return (
            f"{self.target:14} {self.outcomes.total():8} inputs {self.seconds:7.1f} s"
            f"  found {len(self.found)}  ({ends})"
        )


def run_target(target: Target, *, inputs: int, seed: int) -> Run:
    """So many inputs, the same for the same seed and release of Hypothesis."""
    run = Run(target=target.name)
    started = time.monotonic()
    with quiet_logs():
        _round(target, run, inputs=inputs, seed=seed)
    run.seconds = time.monotonic() - started
    return run


def run_for(target: Target, *, seconds: float, seed: int) -> Run:
    """As many inputs as fit into the time; ends early at a finding."""
    run = Run(target=target.name)
    started = time.monotonic()
    with quiet_logs():
        while not run.found and time.monotonic() - started < seconds:
            _round(target, run, inputs=ROUND, seed=seed)
            seed += 1
    run.seconds = time.monotonic() - started
    return run


def fuzz_one_input(target: Target) -> Callable[[bytes], object]:
    """For a coverage-guided fuzzer: bytes become an input of the target, which is then run."""
    test: Any = _test(target, Run(target=target.name), inputs=1)
    fuzz: Callable[[bytes], object] = test.hypothesis.fuzz_one_input
    return fuzz


def _round(target: Target, run: Run, *, inputs: int, seed: int) -> None:
    try:
        seeded(seed)(_test(target, run, inputs=inputs))()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        several = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
        run.found += ["".join(traceback.format_exception(one)) for one in several]


def _test(target: Target, run: Run, *, inputs: int) -> Callable[[], None]:
    @settings(
        max_examples=inputs,
        database=None,
        deadline=None,  # `judge.bounded` has its own
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def one(value: Any) -> None:
        run.outcomes[target.run(value)] += 1

    test: Callable[[], None] = one
    return test


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Log lines are made and thrown away; after the block logging is as it was."""
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    configured = structlog.is_configured()
    configure_logs(stream=_Nowhere())  # type: ignore[arg-type]
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        if configured:
            structlog.configure(**config)
        else:
            structlog.reset_defaults()


class _Nowhere:
    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...
