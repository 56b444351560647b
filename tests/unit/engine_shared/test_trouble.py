"""What ends the engine ends nobody's wait in silence, and what ends a row ends that row alone."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import torch

from templates.spec import GenerationSpec
from tests.support.shared_engines import shared_engine, together
from tests.support.tiny_models import VOCABULARY, key_for, random_ids, tiny_model
from worker.engine.base import EngineBroken, EngineClosed, Generation, GenerationRequest
from worker.model import LoadedModel
from worker.trouble import passing_trouble


class Panic(BaseException):
    """As a library in Rust raises it."""


def request(seed: int, **fields: Any) -> GenerationRequest:
    spec = GenerationSpec(max_new_tokens=4, min_new_tokens=4)
    return GenerationRequest(**({"ids": random_ids(9, seed=seed), "generation": spec} | fields))


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model()


def test_whoever_waits_is_told_when_the_engine_cannot_go_on(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that fails a step and then cannot even zero memory: its thread ends, and says so."""
    engine, forward = shared_engine(model, rows=2)

    def lost(*_: object) -> None:
        raise RuntimeError("the device is gone")

    with closing(engine):
        forward.before = lost
        monkeypatch.setattr(engine._pool, "wipe", lost)
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(engine.generate, request(seed)) for seed in range(4)]
            errors = [one.exception(20) for one in asked]
        assert all(isinstance(error, RuntimeError | EngineClosed) for error in errors)
        with pytest.raises(EngineClosed):
            engine.generate(request(9))


def test_a_broken_engine_is_a_lost_device() -> None:
    """So its jobs are tried again elsewhere, with one attempt less, and the worker ends."""
    assert passing_trouble(EngineBroken("it ended")) == "device_lost"


def test_a_panic_in_a_callback_is_its_rows_alone(model: LoadedModel) -> None:
    """It is no Exception, and raised in the caller it is one."""

    def panic(_token: int) -> None:
        raise Panic

    engine, forward = shared_engine(model)
    with closing(engine):
        alone = engine.generate(request(1))
        good, bad = together(engine, forward, [request(1), request(2, on_token=panic)])
        assert good.token_ids == alone.token_ids
        assert isinstance(bad, RuntimeError)
        assert "Panic" in str(bad)
        assert engine.generate(request(1)).token_ids == alone.token_ids
        assert engine._scheduler.free_blocks == engine._pool.blocks


class Run:
    """A grammar that allows everything; or whose mask cannot be made."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    @property
    def masks(self) -> Run:
        return self

    def start(self) -> Run:
        return self

    def allowed(self, runs: list[Run]) -> torch.Tensor:
        for run in runs:
            if run.error is not None:
                raise run.error
        return torch.full((len(runs), -(-VOCABULARY // 32)), -1, dtype=torch.int32)

    def advance(self, _token_id: int) -> bool:
        return False


@pytest.mark.parametrize("error", [ValueError("no mask"), Panic()], ids=["error", "panic"])
def test_a_mask_that_cannot_be_made_is_its_rows_alone(
    model: LoadedModel, error: BaseException
) -> None:
    """Masks of all rows are made in one call; those of the others are made all the same."""
    engine, forward = shared_engine(model)
    with closing(engine):
        alone = engine.generate(request(1)).token_ids
        requests = [request(1), request(2, grammar=Run(error)), request(1, grammar=Run())]
        free, bad, held = together(engine, forward, requests)
        assert isinstance(bad, ValueError | RuntimeError)
        assert [answer.token_ids for answer in (free, held)] == [alone, alone]


def test_a_row_that_waits_for_its_share_of_a_step_can_be_cancelled(model: LoadedModel) -> None:
    """It has room, and an older row's long prefix takes all that a step may prefill."""
    engine, forward = shared_engine(model, rows=4, chunk_tokens=4)
    behind = threading.Event()
    entered = threading.Event()

    def slow(_batch: object) -> None:
        entered.set()
        time.sleep(0.1)

    with closing(engine), ThreadPoolExecutor(2) as pool:
        forward.before = slow
        prefix = pool.submit(engine.prefill, key_for(model), random_ids(200, seed=5))
        assert entered.wait(10)
        stop = lambda: "cancelled" if behind.is_set() else None  # noqa: E731
        waiting = pool.submit(engine.generate, request(3, should_stop=stop))
        time.sleep(0.2)
        behind.set()
        answer = waiting.result(3.0)
        assert isinstance(answer, Generation)
        assert answer.finish_reason == "cancelled"
        assert not prefix.done()
        prefix.result(30)
