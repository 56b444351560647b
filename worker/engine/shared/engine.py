"""Continuous batching over shared prefixes: rows join and leave between steps.

One thread computes; callers hand it their requests and wait. What a row reads is its version's
one prefix, read-only, and its own blocks; what it writes is its own blocks. So isolation costs
no copy, whatever the prefix's length.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from contract.errors import InvalidInput
from contract.logs import get_logger
from worker.device import synchronize
from worker.engine.base import (
    EngineBroken,
    EngineClosed,
    Generation,
    GenerationRequest,
    non_finite,
)
from worker.engine.checks import check_entry, check_ids, check_key, check_length
from worker.engine.choices import Choices
from worker.engine.masks import forbid
from worker.engine.shared.batch import make_batch
from worker.engine.shared.forward import Forward
from worker.engine.shared.pool import BLOCK_TOKENS, SuffixPool
from worker.engine.shared.sampler import BatchSampler
from worker.engine.shared.scheduler import Chunk, Row, Scheduler
from worker.engine.shared.sequences import Completion, Member, PrefixBuild, Scored
from worker.engine.stopping import Ending
from worker.model import LoadedModel
from worker.prefix.entry import PrefixEntry, PrefixKey

log = get_logger(__name__)

DEFAULT_ROWS = 32
# Prefill tokens in one step: what a long suffix may delay those that generate.
DEFAULT_CHUNK_TOKENS = 512


class SharedPrefixEngine:
    """See `worker.engine.base.Engine`."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        forward: Forward,
        pool: SuffixPool,
        rows: int = DEFAULT_ROWS,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    ) -> None:
        self.name = f"shared-prefix ({forward.name})"
        self.batch_size = rows
        self._model = model
        self._forward = forward
        self._pool = pool
        self._scheduler = Scheduler(
            rows=rows, blocks=pool.blocks, block_tokens=BLOCK_TOKENS, chunk_tokens=chunk_tokens
        )
        self._sampler = BatchSampler(
            vocab_size=model.module.config.vocab_size,
            slots=rows,
            eos_ids=model.folder.eos_ids,
            device=model.device,
        )
        self._members: dict[int, Member] = {}  # by id of their row
        self._arrived: list[Member] = []
        self._wake = threading.Condition()
        self._closing = False
        self.stepped_at = time.monotonic()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def prefill(self, key: PrefixKey, ids: Sequence[int]) -> PrefixEntry:
        """See `Engine.prefill`. Runs in chunks among the others' steps. Raises NeverFits."""
        check_key(self._model, key)
        if not ids:
            raise InvalidInput("an empty prefix cannot be prefilled", given="0 ids")
        check_length(self._model, len(ids), 1)
        check_ids(self._model, ids)
        build = PrefixBuild(ids, self._collect)
        kv, seconds = self._submit(build)
        return PrefixEntry.freeze(key=key, ids=tuple(ids), kv=kv, prefill_s=seconds)

    def generate(self, request: GenerationRequest) -> Generation:
        """See `Engine.generate`. Raises NeverFits for more than the pool can hold."""
        model = self._model
        choices = None
        if request.choices is not None:
            choices = Choices(request.choices, model.folder.eos_ids)
        ending = Ending(
            request.generation,
            eos_ids=model.folder.eos_ids,
            decode=model.tokenizer.decode,
            should_stop=request.should_stop,
            grammar=request.grammar,
        )
        new_tokens = ending.max_new_tokens if choices is None else choices.longest
        check_length(model, len(request.ids), new_tokens)
        check_ids(model, request.ids)
        if request.entry is not None:
            check_entry(model, request.entry, request.ids, new_tokens)
        if choices is not None:
            answer: Generation = self._submit(Scored(request, choices, model.tokenizer.decode))
        else:
            answer = self._submit(Completion(request, ending))
        return answer

    def close(self) -> None:
        """See `Engine.close`."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _submit(self, member: Member) -> Any:
        with self._wake:
            if self._closing:
                raise EngineClosed("the engine is closed", remedy="Start another worker.")
            self._arrived.append(member)
            self._wake.notify()
        return member.future.result()

    def _loop(self) -> None:
        try:
            with torch.no_grad():
                while self._take_arrived():
                    self._admit()
                    self._drop_unwanted()
                    if chunks := self._scheduler.plan():
                        self._step(chunks)
                        self.stepped_at = time.monotonic()
        except BaseException as error:
            log.exception("engine_broken", rows=len(self._members))
            self._abandon(error)

    def _abandon(self, error: BaseException) -> None:
        """Tell all who wait, and take nothing more."""
        with self._wake:
            self._closing = True
            arrived, self._arrived = self._arrived, []
        for member in self._members.values():
            broken = EngineBroken(f"the engine ended by {type(error).__name__}")
            broken.__cause__ = error
            _fail(member, broken)
        for member in arrived:
            _fail(member, EngineClosed("the engine has ended", remedy="Start another worker."))

    def _take_arrived(self) -> bool:
        """Wait for something to do; False when the engine closes and all is done."""
        with self._wake:
            while not (self._arrived or self._members or self._closing):
                self._wake.wait()
            arrived, self._arrived = self._arrived, []
            if not (arrived or self._members):
                return False
        for member in arrived:
            try:
                self._scheduler.add(member.row)
            except Exception as error:  # noqa: BLE001 - the caller's to see
                member.future.set_exception(error)
            else:
                self._members[id(member.row)] = member
        return True

    def _drop_unwanted(self) -> None:
        """Answer those that are no longer wanted, whether they have room and a chunk or not."""
        for row in (*self._scheduler.waiting, *self._scheduler.running):
            member = self._members[id(row)]
            if self._guarded(member, member.stopped):
                self._leave(member, clean=row.slot < 0)

    def _admit(self) -> None:
        for row in self._scheduler.admit():
            member = self._members[id(row)]
            if isinstance(member, Completion):
                spec, ids = member.request.generation, member.request.ids
                if self._guarded(member, partial(self._sampler.admit, row.slot, spec, ids)):
                    self._leave(member, clean=True)

    def _step(self, chunks: list[Chunk]) -> None:
        members = [self._members[id(chunk.row)] for chunk in chunks]
        now = time.perf_counter()
        for member in members:
            member.started_at = member.started_at or now
            member.largest_batch = max(member.largest_batch, len(members))
        try:
            self._compute(members, chunks)
        except BaseException as error:  # noqa: BLE001 - all that were in the step fail with it
            left = [member for member in members if id(member.row) in self._members]
            for member in left:  # all of them before any of what may fail again
                _fail(member, error)
            for member in left:
                self._leave(member, clean=False)

    def _compute(self, members: list[Member], chunks: list[Chunk]) -> None:
        batch, order = make_batch(
            [m.tokens(c) for m, c in zip(members, chunks, strict=True)],
            block_tokens=BLOCK_TOKENS,
            device=self._model.device,
        )
        scores = self._forward(batch, self._pool)
        synchronize(self._model.device)
        self._scheduler.done(chunks)
        in_order = [members[index] for index in order]
        self._give_out(scores, list(zip(in_order, batch.wanted_counts, strict=True)))

    def _give_out(self, scores: Tensor, members: list[tuple[Member, int]]) -> None:
        """Hand each row its scores, in the batch's order, and choose the next tokens."""
        now = time.perf_counter()
        at = 0
        choosing: list[tuple[Completion, int]] = []
        for member, wanted in members:
            if not wanted:
                continue
            own = scores[at : at + wanted]
            if self._guarded(member, partial(member.take, own, now)):
                self._leave(member, clean=member.future.exception() is None)
            elif isinstance(member, Completion):
                choosing.append((member, at))
            at += wanted
        if choosing:
            self._choose(scores, choosing)

    def _choose(self, scores: Tensor, choosing: list[tuple[Completion, int]]) -> None:
        if len(choosing) < len(scores):
            scores = scores[[at for _, at in choosing]]
        if any(member.run is not None for member, _ in choosing):
            scores, choosing = self._masked(scores, choosing)
        if not choosing:
            return
        chosen = self._sampler.choose(scores, [member.row.slot for member, _ in choosing])
        now = time.perf_counter()
        for (member, _), token, finite in zip(
            choosing, chosen.token_ids, chosen.finite, strict=True
        ):
            if not finite:
                _fail(member, non_finite())
                self._leave(member, clean=False)
            elif self._guarded(member, partial(member.append, token, now)):
                self._leave(member, clean=True)

    def _masked(
        self, scores: Tensor, choosing: list[tuple[Completion, int]]
    ) -> tuple[Tensor, list[tuple[Completion, int]]]:
        """Scores without what grammars forbid, of the rows that are left."""
        held = [(n, m.run) for n, (m, _) in enumerate(choosing) if m.run is not None]
        try:
            forbid(scores, [n for n, _ in held], [run for _, run in held])
        except BaseException:  # noqa: BLE001 - some row's: asked one by one it shows whose
            left = []
            for n, (member, at) in enumerate(choosing):
                ask = partial(forbid, scores, [n], [member.run]) if member.run else _nothing
                if self._guarded(member, ask):
                    self._leave(member, clean=False)
                else:
                    left.append((n, (member, at)))
            return scores[[n for n, _ in left]], [one for _, one in left]
        return scores, choosing

    def _guarded(self, member: Member, call: Callable[[], bool | None]) -> bool:
        """What a row does of its own must not end others; True when the row has ended."""
        try:
            return bool(call())
        except BaseException as error:  # noqa: BLE001 - the caller's to see, a panic of Rust's too
            _fail(member, error)
            return True

    def _leave(self, member: Member, *, clean: bool) -> None:
        row = member.row
        if not clean and row.blocks:
            self._pool.wipe(row.blocks)
        if isinstance(member, Completion) and row.slot >= 0:
            self._sampler.release(row.slot)
        self._scheduler.remove(row)
        del self._members[id(row)]

    def _collect(self, row: Row, tokens: int) -> DynamicCache:
        kv = DynamicCache(config=self._model.module.config)
        for layer in range(len(self._pool.layers)):
            keys, values = self._pool.read(layer, row.blocks, tokens)
            kv.update(keys, values, layer)
        return kv


def _nothing() -> None:
    pass


def _fail(member: Member, error: BaseException) -> None:
    """Raise an error in who asked, unless that was answered. A panic of Rust's is no Exception,
    and would end the caller's thread.
    """
    if not isinstance(error, Exception):
        wrapped = RuntimeError(f"{type(error).__name__} in a library")
        wrapped.__cause__ = error
        error = wrapped
    if not member.future.done():
        member.future.set_exception(error)
