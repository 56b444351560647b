"""A short run of every target, and proof that a run finds what there is to find."""

from __future__ import annotations

import time

import pytest
from hypothesis import strategies as st

from contract.errors import InvalidInput
from tests.fuzz import judge
from tests.fuzz.judge import bounded, check_shown, judged
from tests.fuzz.running import run_for, run_target
from tests.fuzz.targets import Target, targets

SEED = 1


@pytest.mark.parametrize("name", sorted(targets()))
def test_every_input_ends_as_designed(name: str) -> None:
    """Seeded, a few seconds in all; `python -m tests.fuzz` does the same for as long as wanted."""
    target = targets()[name]
    run = run_target(target, inputs=target.short, seed=SEED)
    assert not run.found, "\n".join(run.found)
    assert run.outcomes.total() >= target.short // 2
    assert len(run.outcomes) > 1, f"a target whose inputs all end alike tries little: {run}"


def _made(run: object) -> Target:
    return Target(name="made", about="", inputs=st.integers(0, 9), run=run, short=1)  # type: ignore[arg-type]


def _some(number: int) -> None:
    if number == 3:
        raise InvalidInput("three")
    if number == 5:
        raise TypeError("a bug")


def test_an_error_that_nobody_designed_is_found() -> None:
    """With the input that makes it; designed ones are counted."""
    run = run_target(_made(lambda n: judged(lambda: _some(n))), inputs=100, seed=SEED)
    [trace] = run.found
    assert "TypeError: a bug" in trace
    assert "value=5" in trace
    assert run.outcomes["ok"] > run.outcomes["invalid_input"] > 0


def test_the_same_seed_gives_the_same_inputs() -> None:
    """And another seed others."""
    seen: list[list[int]] = []
    for seed in (1, 1, 2):
        inputs: list[int] = []
        target = _made(lambda n, inputs=inputs: inputs.append(n) or "ok")
        run_target(target, inputs=50, seed=seed)
        seen.append(inputs)
    assert seen[0] == seen[1] != seen[2]


def test_an_input_without_end_is_found() -> None:
    """Even where the code catches every exception."""

    def stuck() -> None:
        while True:
            try:
                time.sleep(0.01)
            except Exception:  # noqa: BLE001, S112 - as careless as code can be
                continue

    with pytest.raises(AssertionError, match=r"over 0\.2 s"), bounded(seconds=0.2):
        stuck()


def test_an_input_that_fills_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak is what counts, also when it is given back at once."""
    peaks = iter((700.0, 700.0, 700.0, 800.0))
    monkeypatch.setattr(judge, "_peak_mib", lambda: next(peaks))
    with bounded(mib=64):
        pass
    with pytest.raises(AssertionError, match="100 MiB more"), bounded(mib=64):
        pass


def test_the_peak_of_memory_is_seen() -> None:
    """In MiB: filling a quarter of a gigabyte more than is in use shows at least in part."""
    peak = judge._peak_mib()
    assert 20 < peak < 64_000
    size = round(peak + 256) * 2**20
    assert len(bytearray(size)) == size
    assert judge._peak_mib() > peak + 200


def test_an_endless_error_is_found() -> None:
    """A message that quotes its whole input fits no log."""
    with pytest.raises(AssertionError, match="an error of"):
        check_shown(InvalidInput("too long", given="x" * 5000))


def test_a_run_by_time_ends_at_a_finding() -> None:
    """It is shown, not run over."""

    def broken(_: int) -> str:
        raise KeyError("gone")

    started = time.monotonic()
    run = run_for(_made(broken), seconds=30, seed=SEED)
    assert len(run.found) == 1
    assert time.monotonic() - started < 15
