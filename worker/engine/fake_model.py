"""What a fake engine runs in a whole worker: a tokenizer and digests, and no weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from contract.model_folder import ModelFolder
from templates.tokenizer import TemplateTokenizer
from worker.prefix.entry import PrefixKey


@dataclass(frozen=True, slots=True, kw_only=True)
class NoModel:
    """A loaded model without weights."""

    folder: ModelFolder
    tokenizer: TemplateTokenizer
    device: str = "cpu"
    dtype_name: str = "float32"

    @property
    def label(self) -> str:
        return f"{self.folder.name} without weights"

    def prefix_key(self, tenant: str, digest: str) -> PrefixKey:
        return PrefixKey(
            tenant=tenant,
            digest=digest,
            model_digest=self.folder.model_digest,
            tokenizer_digest=self.folder.tokenizer_digest,
            dtype=self.dtype_name,
            device=self.device,
        )


class NothingProven:
    """The admission of an engine that computes nothing."""

    def to_dict(self) -> dict[str, Any]:
        return {"way": {"mode": "fake"}, "max_logit_error": 0.0, "seconds": 0.0, "refused": []}
