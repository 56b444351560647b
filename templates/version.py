"""A published version: immutable, named by its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

from contract.canonical import digest
from contract.errors import CodecError
from contract.model_folder import ModelFolder
from contract.types import VersionRef
from templates.compiled import CompiledTemplate
from templates.spec import TemplateSpec, parse_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVersion:
    """What `templates publish` stores and workers load."""

    ref: VersionRef
    spec: TemplateSpec
    compiled: CompiledTemplate
    model_digest: str
    tokenizer_digest: str
    published_at: float  # Redis server time, seconds since the epoch

    def to_plain(self) -> dict[str, Any]:
        return {
            "tenant": self.ref.tenant,
            "template": self.ref.template,
            "version": self.ref.version,
            "digest": self.ref.digest,
            "spec": self.spec.to_plain(),
            "compiled": self.compiled.to_plain(),
            "model_digest": self.model_digest,
            "tokenizer_digest": self.tokenizer_digest,
            "published_at": self.published_at,
        }

    @classmethod
    def from_plain(cls, data: object) -> Self:
        """The inverse of `to_plain`. Raises CodecError or SpecInvalid for anything else."""
        try:
            return cls._from_mapping(cast(Mapping[str, Any], data))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CodecError(
                "a stored template version cannot be read",
                given=f"{type(error).__name__}: {error}"[:120],
                expected="what this release of prefillq publishes",
                remedy="Publish the template again.",
            ) from error

    @classmethod
    def _from_mapping(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            ref=VersionRef(
                tenant=data["tenant"],
                template=data["template"],
                version=data["version"],
                digest=data["digest"],
            ),
            spec=parse_spec(data["spec"], source="a stored version"),
            compiled=CompiledTemplate.from_plain(data["compiled"]),
            model_digest=data["model_digest"],
            tokenizer_digest=data["tokenizer_digest"],
            published_at=data["published_at"],
        )


def version_digest(spec: TemplateSpec, model: ModelFolder) -> str:
    """sha256 over the spec, the model's and tokenizer's digests and the chat template.

    Equal content has an equal digest, wherever and whenever it is published.
    """
    return digest(
        {
            "spec": spec.to_plain(),
            "model": model.model_digest,
            "tokenizer": model.tokenizer_digest,
            "chat_template": model.chat_template,
        }
    )
