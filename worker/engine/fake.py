"""An engine without a model or torch, for tests: the same ids give the same text, at once."""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections.abc import Callable, Sequence

from worker.engine.base import Generation, GenerationRequest, PrefixMismatch, StopReason
from worker.prefix.entry import PrefixEntry, PrefixKey
from worker.prefix.verify import verify_prefix

_POLL_S = 0.002


class FakeEntry(PrefixEntry):
    """An entry whose cache is a dict with its ids; change that, and the audit fails."""

    __slots__ = ()

    def fork(self) -> dict[str, object]:
        """A copy of the pretended cache."""
        return dict(self.kv)

    def audit(self) -> bool:
        """True unless somebody changed the pretended cache."""
        return bool(self.kv == {"ids": self.ids})


class FakeEngine:
    """See `worker.engine.base.Engine`; the text is `answer(request)`, by default a digest.

    `delay_s` is spent between the first and the last token, and asks `should_stop` like a
    decode loop. `prefills` and `requests` record what was asked, in order of completion.
    """

    name = "fake"

    def __init__(
        self,
        *,
        answer: Callable[[GenerationRequest], str] | None = None,
        delay_s: float = 0.0,
        prefill_s: float = 0.0,
        bytes_per_token: int = 1,
        batch_size: int = 1,
    ) -> None:
        self.batch_size = batch_size
        self.prefills: list[PrefixKey] = []
        self.requests: list[GenerationRequest] = []
        self._answer = digest_text if answer is None else answer
        self._delay_s = delay_s
        self._prefill_s = prefill_s
        self._bytes_per_token = bytes_per_token
        self._seats = threading.BoundedSemaphore(batch_size)

    def prefill(self, key: PrefixKey, ids: Sequence[int]) -> PrefixEntry:
        """An entry of `bytes_per_token` a token, after `prefill_s` seconds."""
        with self._seats:
            time.sleep(self._prefill_s)
            self.prefills.append(key)
        return FakeEntry(
            key=key,
            ids=tuple(ids),
            nbytes=len(ids) * self._bytes_per_token,
            checksum="fake",
            prefill_s=self._prefill_s,
            kv={"ids": tuple(ids)},
        )

    def generate(self, request: GenerationRequest) -> Generation:
        """Refuses what a real engine refuses; picks a choice, or answers with a text."""
        started = time.perf_counter()
        if request.entry is not None and (reason := verify_prefix(request.entry.ids, request.ids)):
            raise PrefixMismatch("the entry is not an exact prefix", given=reason)
        with self._seats:
            stopped = self._wait(request)
        self.requests.append(request)
        elapsed = time.perf_counter() - started
        if stopped is not None:
            return Generation(
                token_ids=(), text="", finish_reason=stopped, batch_size=self.batch_size
            )
        index = None
        token_ids = tuple(b % 97 for b in zlib.crc32(repr(request.ids).encode()).to_bytes(4, "big"))
        text = self._answer(request)
        if request.choices is not None:
            index = token_ids[0] % len(request.choices)
            token_ids = request.choices[index]
            text = f"choice {index}"
        return Generation(
            token_ids=token_ids,
            text=text,
            choice_index=index,
            choice_probabilities=_all_on(index, request.choices),
            finish_reason="stop",
            decode_s=elapsed,
            first_token_s=elapsed,
            batch_size=self.batch_size,
        )

    @property
    def stepped_at(self) -> float:
        """Nothing is known of it: jobs tell."""
        return -math.inf

    def close(self) -> None:
        """Nothing runs between calls."""

    def _wait(self, request: GenerationRequest) -> StopReason | None:
        ends = time.monotonic() + self._delay_s
        while (reason := request.should_stop()) is None and time.monotonic() < ends:
            time.sleep(min(_POLL_S, self._delay_s))
        return reason


def _all_on(index: int | None, choices: tuple[tuple[int, ...], ...] | None) -> tuple[float, ...]:
    return tuple(float(i == index) for i in range(len(choices or ())))


def digest_text(request: GenerationRequest) -> str:
    """Text that differs for different ids."""
    return f"answer {zlib.crc32(repr(request.ids).encode()):08x}"
