"""Small templates for tests that need no tokenizer: what the registry stores, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contract.model_folder import ModelFolder
from contract.types import VersionRef
from templates.compiled import CompiledTemplate, Control, Piece, Span
from templates.placeholders import Literal, Variable
from templates.spec import TemplateSpec, parse_spec
from templates.version import PublishedVersion, version_digest

COMPILED = CompiledTemplate(
    segments=(
        Control(1, "<start>"),
        Piece(spans=(Span(parts=(Literal("Sort this: "), Variable("ticket"))),)),
    ),
    prefix_ids=(1,),
)
MODEL = ModelFolder(
    name="test-model",
    path=Path("nowhere"),
    model_digest="a" * 64,
    tokenizer_digest="b" * 64,
    chat_template="",
    bos_token="",
    eos_token="",
    eos_ids=(2,),
    max_positions=128,
    architecture="TestForCausalLM",
)


def make_spec(
    tenant: str = "acme",
    name: str = "triage",
    *,
    text: str = "Sort this: ",
    schema: dict[str, Any] | None = None,
    **more: Any,
) -> TemplateSpec:
    """A spec with the one variable `ticket`; equal arguments give equal content."""
    return parse_spec(
        {
            "tenant": tenant,
            "name": name,
            "model": MODEL.name,
            "messages": [{"role": "user", "content": text + "{{ ticket }}"}],
            "input": {
                "schema": schema
                or {
                    "type": "object",
                    "properties": {"ticket": {"type": "string", "maxLength": 2_000_000}},
                    "required": ["ticket"],
                    "additionalProperties": False,
                }
            },
            **more,
        }
    )


def make_version(spec: TemplateSpec | None = None, *, number: int = 1) -> PublishedVersion:
    """What publishing the spec would store."""
    spec = spec or make_spec()
    ref = VersionRef(
        tenant=spec.tenant,
        template=spec.name,
        version=number,
        digest=version_digest(spec, MODEL),
    )
    return PublishedVersion(
        ref=ref,
        spec=spec,
        compiled=COMPILED,
        model_digest=MODEL.model_digest,
        tokenizer_digest=MODEL.tokenizer_digest,
        published_at=0.0,
    )
