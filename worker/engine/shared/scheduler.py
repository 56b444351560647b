"""Which tokens of which rows are computed in the next step. Plain Python, no torch.

A row is one request in the batch. Its own tokens are those beyond the prefix: first the suffix
of the prompt, then what it generates. A step computes the next tokens of every row: one for a
row that generates, a chunk for one whose suffix is long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from contract.errors import PrefillqError


class NeverFits(PrefillqError):
    """A request that needs more memory for its own tokens than the engine has for all."""

    code = "over_suffix_budget"


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One request in the batch. The scheduler owns `computed`, `slot` and `blocks`."""

    tokens: int  # the most tokens of its own that it will ever hold
    known: int  # its own tokens whose ids are known; grows as it generates
    computed: int = 0  # of those, how many are in the KV cache
    slot: int = -1  # its place among the rows, -1 while it waits
    blocks: tuple[int, ...] = ()  # where its keys and values live


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The tokens `[start, start + count)` of a row, to be computed in one step."""

    row: Row
    start: int
    count: int

    @property
    def completes(self) -> bool:
        """True when nothing known is left to compute, so that the next token can be chosen."""
        return self.start + self.count == self.row.known


class Scheduler:
    """Admits rows in order of arrival while there is room, and plans steps.

    A row reserves memory for all tokens it may ever hold, so a row that was admitted can always
    finish: nothing is ever evicted or computed again for want of memory. Admission is first
    come, first served: a large row waits for room, and those behind it wait with it.
    """

    def __init__(self, *, rows: int, blocks: int, block_tokens: int, chunk_tokens: int) -> None:
        """`chunk_tokens` bounds the prefill work of one step, and so how long it may take."""
        self._block_tokens = block_tokens
        self._chunk_tokens = chunk_tokens
        self._all_blocks = blocks
        self._free_blocks = list(range(blocks - 1, -1, -1))
        self._free_slots = list(range(rows - 1, -1, -1))
        self._waiting: deque[Row] = deque()
        self._running: list[Row] = []

    @property
    def running(self) -> Sequence[Row]:
        """Admitted rows, oldest first."""
        return self._running

    @property
    def waiting(self) -> Sequence[Row]:
        """Rows not admitted yet, in order of arrival."""
        return self._waiting

    @property
    def free_blocks(self) -> int:
        return len(self._free_blocks)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return -(-tokens // self._block_tokens)

    def fits(self, tokens: int) -> bool:
        """Whether a row of so many tokens can ever be admitted."""
        return self.blocks_for(tokens) <= self._all_blocks

    def add(self, row: Row) -> None:
        """Queue a row. Raises NeverFits."""
        if not self.fits(row.tokens):
            raise NeverFits(
                "the request's own tokens need more memory than the engine has",
                given=f"{row.tokens} tokens beyond the prefix",
                expected=f"{self._all_blocks * self._block_tokens} at most",
                remedy="Raise the worker's --suffix-bytes, or shorten the variables or the answer.",
            )
        self._waiting.append(row)

    def admit(self) -> list[Row]:
        """Give waiting rows a slot and blocks, in order, until one does not fit."""
        admitted: list[Row] = []
        while self._waiting and self._free_slots:
            needed = self.blocks_for(self._waiting[0].tokens)
            if needed > len(self._free_blocks):
                break
            row = self._waiting.popleft()
            row.slot = self._free_slots.pop()
            row.blocks = tuple(self._free_blocks.pop() for _ in range(needed))
            self._running.append(row)
            admitted.append(row)
        return admitted

    def plan(self) -> list[Chunk]:
        """The next step: one token for each row that generates, and a share of the prefills.

        Prefills are served in order of admission, `chunk_tokens` in all, so that a long suffix
        makes no step longer than that.
        """
        budget = self._chunk_tokens
        chunks: list[Chunk] = []
        for row in self._running:
            pending = row.known - row.computed
            count = pending if pending == 1 else min(pending, budget)
            if pending > 1:
                budget -= count
            if count:
                chunks.append(Chunk(row=row, start=row.computed, count=count))
        return chunks

    def done(self, chunks: Sequence[Chunk]) -> None:
        """The step was computed."""
        for chunk in chunks:
            chunk.row.computed = chunk.start + chunk.count

    def remove(self, row: Row) -> None:
        """Forget a row, waiting or running; its blocks are free at once."""
        if row.slot < 0:
            self._waiting.remove(row)
            return
        self._running.remove(row)
        self._free_slots.append(row.slot)
        self._free_blocks.extend(row.blocks)
        row.slot, row.blocks = -1, ()

    def check_integrity(self) -> None:
        """Raise RuntimeError when the books do not balance. For tests and idle moments."""
        held = [block for row in self._running for block in row.blocks]
        everything = sorted(held + self._free_blocks)
        if everything != list(range(self._all_blocks)):
            raise RuntimeError("scheduler: blocks lost or given twice")
        slots = [row.slot for row in self._running] + self._free_slots
        if len(set(slots)) != len(slots):
            raise RuntimeError("scheduler: a slot given twice")
