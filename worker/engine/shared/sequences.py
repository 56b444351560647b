"""Requests in the batch: which tokens each gives to a step, and what it makes of its scores."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from worker.engine.base import Generation, GenerationRequest
from worker.engine.choices import Choices
from worker.engine.sampling import check_finite
from worker.engine.shared.batch import RowTokens
from worker.engine.shared.scheduler import Chunk, Row
from worker.engine.stopping import Decode, Ending
from worker.prefix.entry import PrefixEntry


class Member(ABC):
    """One row of the batch, from admission to its end. `future` gets its answer or its error."""

    def __init__(self, entry: PrefixEntry | None, ids: Sequence[int], *, tokens: int) -> None:
        """`ids`: those beyond the prefix; `tokens`: the most of its own it will ever hold."""
        self.entry = entry
        self.ids = list(ids)
        self.row = Row(tokens=tokens, known=len(self.ids))
        self.future: Future[Any] = Future()
        self.asked_at = time.perf_counter()
        self.started_at = 0.0  # the first step that computed a token of it
        self.largest_batch = 0
        self._offset = 0 if entry is None else len(entry.ids)

    def tokens(self, chunk: Chunk) -> RowTokens:
        """What it adds to a step."""
        own = range(chunk.start, chunk.start + chunk.count)
        return RowTokens(
            entry=self.entry,
            blocks=self.row.blocks,
            ids=self.ids[own.start : own.stop],
            indices=own,
            positions=[self._offset + self._place(at) for at in own],
            spans=[self._span(at) for at in own],
            wanted=[at - own.start for at in own if self._is_wanted(at)],
        )

    def stopped(self) -> bool:
        """Asked before each chunk of a prefill; True when it was answered as no longer wanted."""
        return False

    @abstractmethod
    def take(self, scores: Tensor, now: float) -> bool:
        """Scores [wanted, vocabulary] of its wanted tokens in one step; True when it has ended."""

    def _place(self, at: int) -> int:
        return at

    def _span(self, at: int) -> tuple[int, int, int]:
        return (at + 1, 0, 0)

    def _is_wanted(self, at: int) -> bool:
        return at == self.row.known - 1


class PrefixBuild(Member):
    """Computes a prefix; the answer is what `collect` makes of its row, and the seconds it took."""

    def __init__(self, ids: Sequence[int], collect: Callable[[Row, int], Any]) -> None:
        super().__init__(None, ids, tokens=len(ids))
        self._collect = collect

    def take(self, scores: Tensor, now: float) -> bool:
        check_finite(scores)
        kv = self._collect(self.row, len(self.ids))
        self.future.set_result((kv, now - self.started_at))
        return True


class Scored(Member):
    """A request with choices: the suffix, then all choices' branches side by side."""

    def __init__(self, request: GenerationRequest, choices: Choices, decode: Decode) -> None:
        offset = 0 if request.entry is None else len(request.entry.ids)
        suffix = request.ids[offset:]
        self._suffix = len(suffix)
        self._starts: list[int] = []
        ids = list(suffix)
        for branch in choices.branches:
            self._starts.append(len(ids))
            ids.extend(branch)
        super().__init__(request.entry, ids, tokens=len(ids))
        self._request, self._choices, self._decode = request, choices, decode
        self._branch = [
            b for b, branch in enumerate(choices.branches) for _ in branch
        ]  # of each token beyond the suffix
        self._kept: list[Tensor] = []
        self._first_scores: tuple[float, ...] = ()

    def stopped(self) -> bool:
        reason = self._request.should_stop()
        if reason is not None:
            self.future.set_result(Generation(token_ids=(), text="", finish_reason=reason))
        return reason is not None

    def take(self, scores: Tensor, now: float) -> bool:
        check_finite(scores)
        if self._request.keep_scores and not self._kept:
            self._first_scores = tuple(scores[0].tolist())
        self._kept.append(self._choices.kept(scores))
        if self.row.computed < self.row.known:
            return False
        every = torch.cat(self._kept)
        ends = [*self._starts[1:], len(self.ids)]
        shift = self._suffix - 1
        rest = [every[a - shift : b - shift] for a, b in zip(self._starts, ends, strict=True)]
        probabilities = self._choices.probabilities(every[0], rest)
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        self.future.set_result(
            Generation(
                token_ids=self._choices[best],
                text=self._decode(self._choices[best]),
                choice_index=best,
                choice_probabilities=probabilities,
                finish_reason="stop",
                suffix_prefill_s=now - self.started_at,
                first_token_s=now - self.asked_at,
                batch_size=self.largest_batch,
                first_scores=self._first_scores,
            )
        )
        return True

    def _place(self, at: int) -> int:
        if at < self._suffix:
            return at
        return self._suffix + at - self._starts[self._branch[at - self._suffix]]

    def _span(self, at: int) -> tuple[int, int, int]:
        if at < self._suffix:
            return (at + 1, 0, 0)
        return (self._suffix, self._starts[self._branch[at - self._suffix]], at + 1)

    def _is_wanted(self, at: int) -> bool:
        return at >= self._suffix - 1


class Completion(Member):
    """A request that generates token by token; the engine chooses the tokens."""

    def __init__(self, request: GenerationRequest, ending: Ending) -> None:
        offset = 0 if request.entry is None else len(request.entry.ids)
        suffix = request.ids[offset:]
        # The last token is never read again, so it takes no memory.
        super().__init__(request.entry, suffix, tokens=len(suffix) + ending.max_new_tokens - 1)
        self.request = request
        self.run = ending.run  # None: any token may be chosen
        self._ending = ending
        self._produced: list[int] = []
        self._first_scores: tuple[float, ...] = ()
        self._first_scores_at = 0.0
        self._first_token_at = 0.0

    def stopped(self) -> bool:
        # Once it generates, `Ending` asks after every token.
        if self._produced or self._ending.ask() is None:
            return False
        self._finish(time.perf_counter())
        return True

    def take(self, scores: Tensor, now: float) -> bool:
        """Note the first token's scores; `append` follows once the engine has chosen."""
        if not self._first_scores_at:
            self._first_scores_at = now
            if self.request.keep_scores:
                self._first_scores = tuple(scores[0].tolist())
        return False

    def append(self, token: int, now: float) -> bool:
        """The next token was chosen; True when it was the last."""
        self._produced.append(token)
        self._first_token_at = self._first_token_at or now
        if self.request.on_token is not None:
            self.request.on_token(token)
        if self._ending.after(self._produced):
            self._finish(now)
            return True
        self.ids.append(token)
        self.row.known += 1
        return False

    def _finish(self, now: float) -> None:
        token_ids = tuple(self._produced)
        self.future.set_result(
            Generation(
                token_ids=token_ids,
                text=self._ending.text(token_ids),
                finish_reason=self._ending.reason or "length",
                suffix_prefill_s=max(0.0, self._first_scores_at - self.started_at),
                decode_s=now - self._first_scores_at if self._first_scores_at else 0.0,
                first_token_s=self._first_token_at - self.asked_at if token_ids else 0.0,
                batch_size=self.largest_batch,
                first_scores=self._first_scores,
            )
        )
