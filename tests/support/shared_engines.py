"""Shared-prefix engines over small models, whose steps a test can watch, hold up and spoil."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from torch import Tensor

from contract.settings import Settings
from templates.spec import GenerationSpec
from worker.engine.base import Engine, Generation, GenerationRequest
from worker.engine.native.build import NativeUnavailable, load_kernels
from worker.engine.shared.batch import Batch
from worker.engine.shared.engine import SharedPrefixEngine
from worker.engine.shared.forward import Forward, FusedForward, TransformersForward
from worker.engine.shared.kernels import NativeKernels, TorchKernels
from worker.engine.shared.layers import layer_shapes
from worker.engine.shared.pool import BLOCK_TOKENS, SuffixPool
from worker.model import LoadedModel

PLUG_IDS = [5, 6]  # the prompt that `together` holds a step with
PATIENCE_S = 120.0  # for what takes milliseconds on a free machine


class Watched:
    """A forward that records each step; `hold` stops before the next one until `release`."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self.name = forward.name
        self.steps: list[Batch] = []
        self.before: Callable[[Batch], None] = lambda _batch: None
        self.after: Callable[[Batch, Tensor], Tensor] = lambda _batch, scores: scores
        self._open = threading.Event()
        self._open.set()
        self.held = threading.Event()  # set while a step waits

    def hold(self) -> None:
        self.held.clear()
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def __call__(self, batch: Batch, pool: SuffixPool) -> Tensor:
        if not self._open.is_set():
            self.held.set()
            assert self._open.wait(PATIENCE_S)
        self.steps.append(batch)
        self.before(batch)
        return self.after(batch, self._forward(batch, pool))

    @property
    def tokens(self) -> list[int]:
        """Tokens of each step."""
        return [len(step.ids) for step in self.steps]


def shared_engine(
    model: LoadedModel,
    kernels: str = "transformers",
    *,
    rows: int = 8,
    chunk_tokens: int = 64,
    blocks: int = 64,
) -> tuple[SharedPrefixEngine, Watched]:
    """An engine with a pool of so many blocks, and its forward."""
    shapes = layer_shapes(model.module)
    per_token = sum(s.kv_heads * (s.key_dim + s.value_dim) for s in shapes) * model.dtype.itemsize
    pool = SuffixPool(
        shapes,
        max_bytes=blocks * BLOCK_TOKENS * per_token,
        dtype=model.dtype,
        device=model.device,
    )
    forward = Watched(_forward(model, kernels, pool))
    engine = SharedPrefixEngine(
        model, forward=forward, pool=pool, rows=rows, chunk_tokens=chunk_tokens
    )
    return engine, forward


def _forward(model: LoadedModel, kernels: str, pool: SuffixPool) -> Forward:
    if kernels == "transformers":
        return TransformersForward(model.module)
    if kernels == "native":
        need_native()
        return FusedForward(model.module, NativeKernels(), pool=pool)
    packed = {"torch": False, "onednn": True}[kernels]
    return FusedForward(model.module, TorchKernels(packed=packed), pool=pool)


def need_native() -> None:
    """Load the native kernels from where a worker keeps them. Skips, or in CI fails, without."""
    try:
        load_kernels(Settings().cache_dir / "native")
    except NativeUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def wait_until(condition: Callable[[], bool]) -> None:
    """Return once it holds."""
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.001)


def ask(engine: Engine, request: GenerationRequest) -> Future[Generation]:
    """The answer to come. On a thread that no test waits for, should the engine never answer."""
    future: Future[Generation] = Future()

    def run() -> None:
        try:
            future.set_result(engine.generate(request))
        except BaseException as error:  # noqa: BLE001 - the test's to see
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def ask_in_order(
    engine: SharedPrefixEngine, requests: Sequence[GenerationRequest]
) -> list[Future[Generation]]:
    """Requests handed over one after the other, while a step is held or the engine is idle."""
    return [_handed_over(engine, request) for request in requests]


def _handed_over(engine: SharedPrefixEngine, request: GenerationRequest) -> Future[Generation]:
    before = arrivals(engine)
    future = ask(engine, request)
    wait_until(lambda: arrivals(engine) > before or future.done())
    return future


def together(
    engine: SharedPrefixEngine,
    forward: Watched,
    requests: Sequence[GenerationRequest],
    *,
    then: Callable[[], None] = lambda: None,
) -> list[Any]:
    """What becomes of requests that all join in one step, in this order: answers or errors.

    `then` is called when all wait, before the engine goes on.
    """
    forward.hold()
    plug = ask(
        engine, GenerationRequest(ids=tuple(PLUG_IDS), generation=GenerationSpec(max_new_tokens=1))
    )
    assert forward.held.wait(PATIENCE_S)
    futures = ask_in_order(engine, requests)
    then()
    forward.release()
    assert isinstance(outcome(plug), Generation)
    return [outcome(future) for future in futures]


def outcome(future: Future[Any]) -> Any:
    """The answer or the error."""
    error = future.exception(PATIENCE_S)
    return future.result() if error is None else error


def arrivals(engine: SharedPrefixEngine) -> int:
    """Requests handed over and not yet looked at by the engine's thread."""
    return len(engine._arrived)
