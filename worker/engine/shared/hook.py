"""The shared attention under Transformers' models, through their `AttentionInterface`.

A model's own code computes everything but attention. Inside `attending` its attention is ours;
outside, and in other threads, it is what the model was loaded with.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from worker.engine.base import PrefixUnsupported
from worker.engine.shared.attention import Scoring, attend
from worker.engine.shared.batch import Batch
from worker.engine.shared.pool import SuffixPool

PREFIX = "prefillq_"
# Arguments that models give to attention and that change nothing in what it computes here.
_HARMLESS = frozenset(
    {"dropout", "is_causal", "position_ids", "output_attentions", "use_cache", "cache", "kwargs"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    batch: Batch
    pool: SuffixPool


_active = threading.local()


@contextmanager
def attending(batch: Batch, pool: SuffixPool) -> Iterator[None]:
    """In this thread, and inside the block, attention is over the batch's prefixes and the pool."""
    _active.step = _Step(batch=batch, pool=pool)
    try:
        yield
    finally:
        _active.step = None


def install(module: Any) -> None:
    """Let the model call our attention inside `attending`. Idempotent.

    Raises PrefixUnsupported where the model does not take its attention from the interface.
    """
    current = module.config._attn_implementation  # noqa: SLF001 - the documented field has no public name
    if current.startswith(PREFIX):
        return
    if not module._supports_attention_backend:  # noqa: SLF001 - likewise
        raise PrefixUnsupported(
            "the model does not take its attention from transformers.AttentionInterface",
            given=type(module).__name__,
        )
    name = PREFIX + current
    AttentionInterface.register(name, _attention_beside(current))
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[current])
    module.set_attn_implementation(name)
    if module.config._attn_implementation != name:  # noqa: SLF001 - as above
        raise PrefixUnsupported(
            "the model refuses another attention", given=type(module).__name__, expected=name
        )


def _attention_beside(original: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **given: Any
    ) -> tuple[Tensor, Tensor | None]:
        step = getattr(_active, "step", None)
        if step is None:
            return _original(original, module)(module, query, key, value, mask, **given)
        layer = module.layer_idx
        step.pool.store(layer, step.batch.dest, key[0].transpose(0, 1), value[0].transpose(0, 1))
        scoring = _scoring(query.shape[-1], step.pool.layers[layer].window, given)
        return attend(query[0].transpose(0, 1), step.batch, step.pool, layer, scoring)[None], None

    return attention


def _original(name: str, module: Any) -> Callable[..., tuple[Tensor, Tensor | None]]:
    if name != "eager":
        found: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS[name]
    else:  # each modeling file has its own, under the same name
        found = sys.modules[type(module).__module__].eager_attention_forward
    return found


def _scoring(dim: int, window: int | None, given: dict[str, Any]) -> Scoring:
    """What the model passed to its attention, beside queries, keys and values."""
    scale, softcap = given.pop("scaling", None), given.pop("softcap", None)
    # The cache's own notion of a window, too: not all models pass theirs on.
    window = given.pop("sliding_window", None) or window
    if unknown := sorted(k for k, v in given.items() if v is not None and k not in _HARMLESS):
        raise PrefixUnsupported(
            "the model's attention has something that shared-prefix attention has not",
            given=", ".join(unknown),
        )
    return Scoring(scale=dim**-0.5 if scale is None else scale, softcap=softcap, window=window)
