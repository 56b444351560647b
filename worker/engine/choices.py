"""Answers restricted to a list: which tokens are scored, and what the scores say.

Where the choices' first tokens all differ, the first token decides, and its scores come with
the prompt: one forward pass over the suffix. Otherwise whole choices are compared, by the
product of their tokens' probabilities; and where one choice begins another, the end of the
sequence counts as a token of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from contract.errors import InvalidInput

_ROWS = 64  # of scores at once, in float64


class Choices:
    """The allowed answers as ids, without an end-of-sequence id."""

    def __init__(self, choices: Sequence[tuple[int, ...]], eos_ids: Sequence[int]) -> None:
        if not choices or not all(choices):
            raise InvalidInput("each output choice must come to at least one token", given=choices)
        if len(set(choices)) < len(choices):
            raise InvalidInput("two output choices are the same tokens", given=choices)
        self._choices = tuple(choices)
        self._eos = tuple(eos_ids)
        self._whole = len({choice[0] for choice in choices}) < len(choices)
        self._ended = self._whole and self._nested()
        if self._ended and not self._eos:
            raise InvalidInput(
                "an output choice is the beginning of another, and the model has no "
                "end-of-sequence token to tell them apart",
                given=choices,
                expected="choices none of which begins another",
            )
        scored = {token for choice in choices for token in choice} | set(self._eos)
        self._ids = sorted(scored)
        self._column = {token: column for column, token in enumerate(self._ids)}

    def __getitem__(self, index: int) -> tuple[int, ...]:
        return self._choices[index]

    def __len__(self) -> int:
        return len(self._choices)

    @property
    def branches(self) -> tuple[tuple[int, ...], ...]:
        """For each choice the ids to be read after the prompt: all whose next token is scored."""
        if not self._whole:
            return ((),) * len(self._choices)
        return tuple(choice if self._ended else choice[:-1] for choice in self._choices)

    @property
    def longest(self) -> int:
        """Tokens of the longest answer, its end included where that is scored."""
        return max(len(choice) for choice in self._choices) + self._ended

    def kept(self, scores: Tensor) -> Tensor:
        """What `probabilities` needs of raw scores [rows, vocabulary]: the logarithms of the
        probabilities of those ids that occur in a choice or end one, float64 on the CPU.

        A row of a large vocabulary is over a megabyte, and there may be a thousand rows.
        """
        rows = [
            wide[:, self._ids] - wide.logsumexp(dim=-1, keepdim=True)
            for at in range(0, len(scores) or 1, _ROWS)
            for wide in [scores[at : at + _ROWS].float().cpu().double()]
        ]
        return torch.cat(rows)

    def probabilities(self, first: Tensor, rest: Sequence[Tensor]) -> tuple[float, ...]:
        """Each choice's share of the probability of all of them.

        `first`: what `kept` gives of the scores after the prompt. `rest`, for each choice [branch
        length, ...]: of those after each id of its branch.
        """
        logs = []
        for choice, after in zip(self._choices, rest, strict=True):
            rows = torch.cat([first[None], after])
            targets = [self._column[token] for token in choice[: rows.shape[0]]]
            total = rows[torch.arange(len(targets)), targets].sum()
            if self._ended:
                ends = [self._column[token] for token in self._eos]
                total = total + rows[-1, ends].logsumexp(dim=-1)
            logs.append(total)
        return tuple(torch.stack(logs).softmax(dim=0).tolist())

    def _nested(self) -> bool:
        ordered = sorted(self._choices)
        return any(b[: len(a)] == a for a, b in pairwise(ordered))
