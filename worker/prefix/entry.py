"""One prefilled prefix: what it belongs to, its ids and its frozen cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixKey:
    """All that decides the numbers in an entry. Equal keys mean interchangeable entries.

    Digests, never names: new weights, another adapter or another tokenizer under an old name
    make another key. The tenant is part of it so that no tenant can find out, by timing, what
    another one has cached.
    """

    tenant: str
    digest: str  # of the template version
    model_digest: str
    tokenizer_digest: str
    adapter: str = ""  # digest of the adapter's weights; "" for none
    dtype: str
    device: str


# eq=False: an entry is itself and no other; comparing tensors here would be an accident.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixEntry:
    """A prefix's ids with the keys, values and states that the model computed for them.

    `kv` (a `transformers.Cache`) is never given to a model: every use gets a `fork()`.
    """

    key: PrefixKey
    ids: tuple[int, ...]
    nbytes: int  # memory that the tensors in `kv` keep alive
    checksum: str  # of every tensor and length in `kv`
    prefill_s: float
    kv: Any = field(repr=False)
    loaded: bool = False  # read from disk: this process did not compute it

    @classmethod
    def freeze(cls, *, key: PrefixKey, ids: tuple[int, ...], kv: Any, prefill_s: float) -> Self:
        """Make an entry from a cache just filled. The entry holds its own copy."""
        from worker.prefix import tensors  # late: the map and the fake engine need no torch

        own = tensors.own_copy(kv)
        return cls(
            key=key,
            ids=ids,
            nbytes=tensors.nbytes(own),
            checksum=tensors.checksum(own),
            prefill_s=prefill_s,
            kv=own,
        )

    def fork(self) -> Any:
        """A copy of the cache that a job may grow and crop. Shares no memory with the entry."""
        from worker.prefix import tensors

        return tensors.own_copy(self.kv)

    def audit(self) -> bool:
        """True while the cache is bit for bit what it was when the entry was made."""
        from worker.prefix import tensors

        return tensors.checksum(self.kv) == self.checksum
