"""Prefix entries that no model computed: quick to make in a process that loads none."""

from __future__ import annotations

import torch
from transformers import DynamicCache

from worker.prefix.entry import PrefixEntry, PrefixKey


def made_entry(digest: str = "v1", *, tokens: int = 64) -> PrefixEntry:
    """Two layers of 2 heads of width 16 in float32; equal arguments give equal entries."""
    random = torch.Generator().manual_seed(tokens)
    kv = DynamicCache(
        ddp_cache_data=[
            (
                torch.randn(1, 2, tokens, 16, generator=random),
                torch.randn(1, 2, tokens, 16, generator=random),
            )
            for _ in range(2)
        ]
    )
    key = PrefixKey(
        tenant="acme",
        digest=digest,
        model_digest="m",
        tokenizer_digest="t",
        dtype="float32",
        device="cpu",
    )
    return PrefixEntry.freeze(key=key, ids=tuple(range(tokens)), kv=kv, prefill_s=1.0)
