"""The next token of every row of a batch at once, as `worker.engine.sampling` chooses one.

The cost is that of a few passes over the scores: no vocabulary is sorted, and a greedy row takes
its maximum and nothing more.

A row's token depends on its own scores and its job alone: whatever is summed over a row is made
of whole numbers that float64 adds without rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contract.errors import InvalidInput
from templates.spec import GenerationSpec
from worker.engine.sampling import keep_top_p, pick, uniforms, weigh

_BLOCK = 128  # ids; on a CPU torch's amax runs in SIMD and its argmax does not
_CHUNK_ROWS = 8  # rows that are drawn at a time: larger temporaries cost more in page faults
_BINS = 1024
_WEIGHTY = 24.5  # scores further below the highest have a weight of 0, since exp(-24.5) < 2**-35


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What each row comes to, in the order of the rows."""

    token_ids: list[int]
    # False: the row's scores, or what its spec makes of them, have no finite maximum. Its token
    # is a valid id without meaning.
    finite: list[bool]


@dataclass(slots=True, kw_only=True)
class _Job:
    """What a slot needs that asks for more than the highest score."""

    spec: GenerationSpec
    uniforms: Tensor | None  # None: greedy
    produced: int = 0
    seen: int = 0  # columns of `BatchSampler._seen` in use


class BatchSampler:
    """Not thread-safe. A slot is a place in the engine that holds one job at a time."""

    def __init__(
        self, *, vocab_size: int, slots: int, eos_ids: tuple[int, ...], device: torch.device
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        # MPS has no float64.
        self._drawing_device = torch.device("cpu") if device.type == "mps" else device
        eos = [i for i in eos_ids if i < vocab_size]
        self._eos = torch.tensor(eos, dtype=torch.long, device=device)
        self._admitted: set[int] = set()
        self._jobs: dict[int, _Job] = {}
        # Ids that a slot's penalty counts; the columns beyond `_Job.seen` repeat the first.
        self._seen = torch.zeros((slots, 1), dtype=torch.long, device=device)

    def admit(self, slot: int, spec: GenerationSpec, prompt_ids: Sequence[int]) -> None:
        """Begin a job. `prompt_ids` is the whole prompt. Raises InvalidInput if it cannot."""
        if slot in self._admitted or not 0 <= slot < len(self._seen):
            raise InvalidInput(
                "a job needs a free slot",
                given=f"slot {slot}",
                expected=f"one of {len(self._seen)} that is not in use",
            )
        job = _Job(
            spec=spec,
            uniforms=None if spec.greedy else uniforms(spec.seed, spec.max_new_tokens),
        )
        if spec.repetition_penalty != 1:
            # An id without a score of its own has none to lower.
            ids = sorted({i for i in prompt_ids if 0 <= i < self._vocab_size})
            if not ids:
                raise InvalidInput("a repetition penalty needs a prompt", given="no ids")
            job.seen = len(ids)
            self._widen(job.seen)
            self._seen[slot] = ids[0]
            self._seen[slot, : job.seen] = torch.tensor(ids, device=self._device)
        self._admitted.add(slot)
        if self._is_special(job):
            self._jobs[slot] = job

    def release(self, slot: int) -> None:
        """End a job; a slot that has none is left as it is."""
        self._admitted.discard(slot)
        self._jobs.pop(slot, None)

    def choose(self, scores: Tensor, slots: Sequence[int]) -> Chosen:
        """The next token of each of `slots`, all different, from its row of `scores`.

        `scores` [rows, vocab] of any float dtype are left as they are. The chosen tokens count
        as produced. Raises InvalidInput, and then changes nothing, for a slot without a job and
        for one that samples or penalizes and has all its `max_new_tokens`.
        """
        self._check(scores, slots)
        best, tokens = _highest(scores)
        finite = best.isfinite()
        if not self._jobs.keys().isdisjoint(slots):
            self._choose_special(scores, slots, tokens, finite)
        token_ids, flags = torch.cat([tokens, finite.long()], dim=1).T.tolist()
        return Chosen(token_ids=token_ids, finite=list(map(bool, flags)))

    def _check(self, scores: Tensor, slots: Sequence[int]) -> None:
        if scores.shape != (len(slots), self._vocab_size):
            raise InvalidInput(
                "each slot needs one row of scores",
                given=f"scores {list(scores.shape)}",
                expected=f"[{len(slots)}, {self._vocab_size}]",
            )
        if not self._admitted.issuperset(slots):
            raise InvalidInput("a slot without a job", given=set(slots) - self._admitted)
        for slot in self._jobs.keys() & set(slots):
            job = self._jobs[slot]
            if job.produced >= job.spec.max_new_tokens:
                raise InvalidInput(
                    "a job has all its tokens",
                    given=f"slot {slot}",
                    expected=f"{job.spec.max_new_tokens} at most",
                )

    def _is_special(self, job: _Job) -> bool:
        return (
            job.uniforms is not None
            or job.spec.repetition_penalty != 1
            or self._is_held(job)  # only until the minimum is reached
        )

    def _is_held(self, job: _Job) -> bool:
        return job.produced < job.spec.min_new_tokens and len(self._eos) > 0

    def _choose_special(
        self, scores: Tensor, slots: Sequence[int], tokens: Tensor, finite: Tensor
    ) -> None:
        """Overwrite `tokens` and clear `finite` [rows, 1] of rows that are not plainly greedy."""
        places = [n for n, slot in enumerate(slots) if slot in self._jobs]
        slots = [slots[n] for n in places]
        jobs = [self._jobs[slot] for slot in slots]
        rows = self._adjusted(_take(scores, places), slots, jobs)
        best, chosen = _highest(rows)
        fine = best.isfinite()
        if sampled := [n for n, job in enumerate(jobs) if job.uniforms is not None]:
            draw = _Draw(
                _take(rows, sampled).to(self._drawing_device),
                _take(best, sampled).to(self._drawing_device),
                [jobs[n] for n in sampled],
            )
            chosen[sampled] = draw.tokens().to(self._device)
            fine[sampled] = draw.top.isfinite().to(self._device)
        tokens[places] = chosen
        finite[places] &= fine
        self._record(slots, jobs, chosen)

    def _adjusted(self, rows: Tensor, slots: Sequence[int], jobs: Sequence[_Job]) -> Tensor:
        """Scores in float32 after penalties and without the ends that come too early."""
        rows = rows.float()
        penalized = [n for n, job in enumerate(jobs) if job.spec.repetition_penalty != 1]
        held = [n for n, job in enumerate(jobs) if self._is_held(job)]
        if penalized or held:
            rows = rows.clone()
        if penalized:
            width = max(jobs[n].seen for n in penalized)
            seen = self._seen[[slots[n] for n in penalized], :width]
            penalties = [[jobs[n].spec.repetition_penalty] for n in penalized]
            penalty = torch.tensor(penalties, device=self._device)
            at = torch.tensor(penalized, device=self._device)[:, None], seen
            old = rows[at]
            rows[at] = torch.where(old < 0, old * penalty, old / penalty)
        if held:
            rows[torch.tensor(held, device=self._device)[:, None], self._eos] = -torch.inf
        return rows

    def _record(self, slots: Sequence[int], jobs: Sequence[_Job], chosen: Tensor) -> None:
        penalized = [n for n, job in enumerate(jobs) if job.spec.repetition_penalty != 1]
        if penalized:
            columns = [jobs[n].seen for n in penalized]
            self._widen(max(columns) + 1)
            self._seen[[slots[n] for n in penalized], columns] = chosen[penalized, 0]
        for n in penalized:
            jobs[n].seen += 1
        for slot, job in zip(slots, jobs, strict=True):
            job.produced += 1
            if not self._is_special(job):
                del self._jobs[slot]

    def _widen(self, width: int) -> None:
        missing = width - self._seen.shape[1]
        if missing > 0:
            # By half at least, so that a token's cost does not grow with the text.
            more = max(missing, self._seen.shape[1] // 2)
            self._seen = torch.cat([self._seen, self._seen[:, :1].expand(-1, more)], dim=1)


class _Draw:
    """One token for each of the rows that sample; all settings are columns [rows, 1]."""

    def __init__(self, scores: Tensor, best: Tensor, jobs: Sequence[_Job]) -> None:
        self._scores = scores  # [rows, vocab] float32, before the temperature
        specs = [job.spec for job in jobs]
        drawn = [float(j.uniforms[j.produced]) for j in jobs if j.uniforms is not None]
        self._uniform = _column(drawn, scores)
        self._temperature = _column([s.temperature for s in specs], scores).float()
        self._top_p = _column([s.top_p for s in specs], scores)
        self._limited = [n for n, s in enumerate(specs) if 0 < s.top_k < scores.shape[1]]
        self._least = self._least_of_top_k([s.top_k for s in specs])
        self.top = best / self._temperature

    def tokens(self) -> Tensor:
        """[rows, 1]; without meaning where `top` is not finite."""
        tokens = torch.zeros_like(self._uniform, dtype=torch.long)
        usable: list[int] = self.top.isfinite()[:, 0].nonzero()[:, 0].tolist()
        for start in range(0, len(usable), _CHUNK_ROWS):
            at = usable[start : start + _CHUNK_ROWS]
            tokens[at] = self._draw(at)
        return tokens

    def _least_of_top_k(self, top_k: Sequence[int]) -> Tensor:
        """The k-th highest score, after the temperature; -inf where all may stay."""
        least = torch.full_like(self._temperature, -torch.inf)
        if self._limited:
            counts = torch.tensor([[top_k[n]] for n in self._limited], device=least.device)
            highest = _take(self._scores, self._limited).topk(int(counts.max()), dim=-1).values
            least[self._limited] = highest.gather(-1, counts - 1) / self._temperature[self._limited]
        return least

    def _draw(self, at: list[int]) -> Tensor:
        scores, top = _take(self._scores, at) / self._temperature[at], self.top[at]
        weights = weigh(scores, top)
        if not set(at).isdisjoint(self._limited):
            # Ties with the k-th stay, as in the warper. A mask of floats is the faster one here.
            weights *= torch.ge(scores, self._least[at], out=torch.empty_like(scores))
        top_p = self._top_p[at]
        if bool((top_p < 1).any()):
            # Nothing is as heavy as an infinite room.
            room = top_p.masked_fill(top_p == 1, torch.inf) * _total(weights)
            _drop_outside(scores, top, weights, room)
        return _pick_among_all(weights, self._uniform[at])


def _drop_outside(scores: Tensor, top: Tensor, weights: Tensor, room: Tensor) -> None:
    """`keep_top_p` in place, without sorting the vocabulary.

    Tokens are put into bins by their score. The bins above the one where `room` is reached are
    inside the nucleus and those below it outside; only that one has to be sorted.
    """
    bins = ((top - scores) * (_BINS / _WEIGHTY)).clamp_(max=_BINS - 1).floor_()
    mass = torch.zeros((len(bins), _BINS), dtype=torch.float64, device=bins.device)
    mass.scatter_add_(1, bins.long(), weights.double())
    summed = mass.cumsum(-1)
    border = torch.searchsorted(summed, room).clamp_(max=_BINS - 1)
    left = room - (summed - mass).gather(-1, border)
    weights *= torch.le(bins, border, out=torch.empty_like(bins))
    for row in (room[:, 0] < torch.inf).nonzero()[:, 0].tolist():
        ids = (bins[row] == border[row]).nonzero()[:, 0]
        kept = keep_top_p(scores[row, ids][None], weights[row, ids][None], left[row, None])
        weights[row, ids] = kept[0]


def _total(weights: Tensor) -> Tensor:
    return weights.sum(-1, keepdim=True, dtype=torch.float64)


def _pick_among_all(weights: Tensor, uniform: Tensor) -> Tensor:
    """`pick` in two steps, first the block and then the id: the same place, sooner."""
    sums = _by_block(weights, lambda block: block.sum(-1, dtype=torch.float64))
    block = pick(sums, uniform)
    before = sums.cumsum(-1)
    goal = uniform * before[:, -1:]
    ids = _ids_of(block, weights)
    within = (before - sums).gather(-1, block) + weights.gather(-1, ids).cumsum(
        -1, dtype=torch.float64
    )
    return ids.gather(-1, torch.searchsorted(within, goal, right=True).clamp_(max=_BLOCK - 1))


def _highest(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The highest score of each row and the first id that has it, both [rows, 1]."""
    block = _by_block(rows, lambda block: block.amax(-1)).argmax(dim=-1, keepdim=True)
    ids = _ids_of(block, rows)
    values = rows.gather(-1, ids)
    at = values.argmax(dim=-1, keepdim=True)
    return values.gather(-1, at), ids.gather(-1, at)


def _by_block(rows: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """[rows, N] to [rows, blocks]; the last block may be shorter."""
    count, rest = divmod(rows.shape[1], _BLOCK)
    parts = [reduce(rows[:, : count * _BLOCK].view(-1, count, _BLOCK))] if count else []
    if rest:
        parts.append(reduce(rows[:, None, count * _BLOCK :]))
    return torch.cat(parts, dim=1)


def _ids_of(block: Tensor, rows: Tensor) -> Tensor:
    """The ids of a block, [rows, 1] to [rows, _BLOCK]; the last one repeats its last id."""
    ids = block * _BLOCK + torch.arange(_BLOCK, device=rows.device)
    return ids.clamp_(max=rows.shape[1] - 1)


def _take(rows: Tensor, places: list[int]) -> Tensor:
    """Some rows, in ascending order. Not `index_select`, which wakes all threads for each row."""
    if len(places) == len(rows):
        return rows
    return torch.stack([rows[n] for n in places])


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device)[:, None]
