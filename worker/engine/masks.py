"""Scores of the tokens that a grammar does not allow, out of the running."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from worker.engine.base import GrammarRun


def forbid(scores: Tensor, rows: Sequence[int], runs: Sequence[GrammarRun]) -> None:
    """Set to -inf, in place, what the runs do not allow in their rows of `scores` [rows, vocab].

    All runs are of one tokenizer. A row whose scores are not finite stays as it is, for whoever
    chooses to find; so does one where nothing is allowed, whose run then refuses what is chosen.
    """
    bits = runs[0].masks.allowed(runs)
    forbidden = _forbidden(bits, scores.shape[1]).to(scores.device)
    held = scores if len(rows) == len(scores) else torch.stack([scores[row] for row in rows])
    usable = held.amax(dim=-1).isfinite() & bits.any(dim=1).to(scores.device)
    forbidden &= usable[:, None]
    if held is scores:
        scores.masked_fill_(forbidden, -torch.inf)
        return
    for row, mask in zip(rows, forbidden, strict=True):
        scores[row].masked_fill_(mask, -torch.inf)


def _forbidden(bits: Tensor, vocab: int) -> Tensor:
    """[rows, words] of bits to booleans [rows, vocab], True where the bit is 0 or there is none."""
    # Little-endian words are little-endian bytes, and numpy unpacks those at a pass.
    unpacked = np.unpackbits((~bits).numpy().view(np.uint8), axis=1, bitorder="little")
    found = torch.from_numpy(unpacked[:, :vocab]).view(torch.bool)
    if missing := vocab - found.shape[1]:
        return torch.cat([found, torch.ones((len(found), missing), dtype=torch.bool)], dim=1)
    return found.contiguous()
