"""A published version: immutable, named by its digest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

from contract.canonical import digest
from contract.codec import unpack_unchecked
from contract.errors import CodecError, SpecInvalid
from contract.model_folder import ModelFolder
from contract.types import VersionRef
from templates.compiled import CompiledTemplate
from templates.output_schema import schema_text
from templates.spec import TemplateSpec, parse_spec

T = TypeVar("T")
_DIGEST = re.compile("[0-9a-f]{64}")
_END_OF_TIME = 253_402_300_800.0  # the year 10000, which no calendar here knows


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
        """The inverse of `to_plain`. Raises CodecError, without quoting, for anything else."""
        try:
            return cls._from_mapping(cast(Mapping[str, Any], data))
        except SpecInvalid as error:
            raise _unreadable(error.problem) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(type(error).__name__) from error

    @classmethod
    def _from_mapping(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            ref=VersionRef(
                tenant=_of(str, data, "tenant"),
                template=_of(str, data, "template"),
                version=_of(int, data, "version"),
                digest=_of(str, data, "digest"),
            ),
            spec=parse_spec(data["spec"], source="a stored version"),
            compiled=CompiledTemplate.from_plain(data["compiled"]),
            model_digest=_of(str, data, "model_digest"),
            tokenizer_digest=_of(str, data, "tokenizer_digest"),
            published_at=_time(data["published_at"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionKind:
    """Of a version what a look at many of them needs, and can read many times as fast."""

    model: str  # its name, as the template has it
    model_digest: str
    has_prefix: bool

    @classmethod
    def read(cls, ref: VersionRef, data: bytes) -> Self:
        """From what is stored for `ref`. Raises CodecError, without quoting, for what is not it."""
        try:
            return cls._from_mapping(ref, unpack_unchecked(data))
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable(type(error).__name__) from error

    @classmethod
    def _from_mapping(cls, ref: VersionRef, data: Mapping[str, Any]) -> Self:
        names = ("tenant", "template", "version", "digest")
        if [data[name] for name in names] != [getattr(ref, name) for name in names]:
            raise ValueError("another version")
        model_digest, prefix = _of(str, data, "model_digest"), data["compiled"]["prefix_ids"]
        if not _DIGEST.fullmatch(model_digest) or not isinstance(prefix, list):
            raise ValueError("model_digest or prefix_ids")
        return cls(
            model=_of(str, data["spec"], "model"),
            model_digest=model_digest,
            has_prefix=bool(prefix),
        )


def _of(kind: type[T], data: Mapping[str, Any], name: str) -> T:
    value = data[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is of type {type(value).__name__}")
    return value


def _time(value: object) -> float:
    if not isinstance(value, float) or not 0 <= value < _END_OF_TIME:
        raise ValueError("published_at is no time")
    return value


def _unreadable(why: str) -> CodecError:
    return CodecError(
        "a stored template version cannot be read",
        given=why,
        expected="what this release of prefillq publishes",
        remedy="Publish the template again.",
    )


def version_digest(spec: TemplateSpec, model: ModelFolder) -> str:
    """sha256 over the spec, the model's and tokenizer's digests and the chat template.

    Equal content has an equal digest, wherever and whenever it is published.
    """
    content: dict[str, Any] = {
        "spec": spec.to_plain(),
        "model": model.model_digest,
        "tokenizer": model.tokenizer_digest,
        "chat_template": model.chat_template,
    }
    if spec.output.json_schema is not None:
        # A digest sorts keys, and theirs is the order in which the model writes its answer.
        content["output_order"] = schema_text(spec.output.json_schema)
    return digest(content)
