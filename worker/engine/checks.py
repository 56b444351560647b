"""What every engine refuses before it computes: the wall behind the callers' own checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contract.errors import InvalidInput
from worker.engine.base import PrefixMismatch, RequestTooLong
from worker.model import LoadedModel
from worker.prefix.entry import PrefixEntry, PrefixKey
from worker.prefix.tensors import capacity
from worker.prefix.verify import verify_prefix


def check_key(model: LoadedModel, key: PrefixKey) -> None:
    """Raise PrefixMismatch for a key of another model or tokenizer."""
    ours = (model.folder.model_digest, model.folder.tokenizer_digest)
    if (key.model_digest, key.tokenizer_digest) != ours:
        raise PrefixMismatch(
            "a prefix of another model or tokenizer",
            given=f"digests {key.model_digest[:12]}, {key.tokenizer_digest[:12]}",
            expected=f"{ours[0][:12]}, {ours[1][:12]}",
        )


def check_entry(
    model: LoadedModel, entry: PrefixEntry, ids: Sequence[int], new_tokens: int
) -> None:
    """Raise PrefixMismatch or RequestTooLong where the entry cannot serve the request.

    Callers verify first and run the job uncached; this is the wall behind them.
    """
    check_key(model, entry.key)
    if reason := verify_prefix(entry.ids, ids):
        raise PrefixMismatch(
            "the entry is not an exact prefix of the request",
            given=reason,
            remedy="Run the request without the entry.",
        )
    limit = capacity(entry.kv)
    if limit is not None and len(ids) + new_tokens > limit:
        raise RequestTooLong(
            "the entry's cache has a fixed size",
            given=f"{len(ids)} prompt + {new_tokens} new = {len(ids) + new_tokens} tokens",
            expected=f"{limit} at most",
            remedy="Run the request without the entry.",
        )


def check_ids(model: LoadedModel, ids: Sequence[int]) -> None:
    """Raise InvalidInput for an id that the model has no embedding for.

    In a batch it would end the step of every neighbour, on a GPU the whole process.
    """
    embeddings: Any = model.module.get_input_embeddings()
    size = embeddings.weight.shape[0]
    lowest, highest = min(ids, default=0), max(ids, default=0)
    if lowest < 0 or highest >= size:
        raise InvalidInput(
            "an id outside the model's vocabulary",
            given=lowest if lowest < 0 else highest,
            expected=f"0 to {size - 1}",
            remedy="Publish the template with this model's own tokenizer.",
        )


def check_length(model: LoadedModel, prompt: int, new_tokens: int) -> None:
    """Raise InvalidInput for an empty prompt, RequestTooLong beyond the model's positions."""
    limit = model.folder.max_positions
    if prompt == 0:
        raise InvalidInput("an empty prompt cannot be answered", given="0 ids")
    if limit is not None and prompt + new_tokens > limit:
        raise RequestTooLong(
            f"the request does not fit {model.folder.name}",
            given=f"{prompt} prompt + {new_tokens} new = {prompt + new_tokens} tokens",
            expected=f"{limit} positions at most",
            remedy="Shorten the variables or lower generation.max_new_tokens.",
        )
