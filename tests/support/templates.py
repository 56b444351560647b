"""Small templates, published for whatever model a test uses."""

from __future__ import annotations

from typing import Any

from contract.model_folder import ModelFolder
from contract.types import VersionRef
from templates.compile import compile_template
from templates.registry import Registry
from templates.spec import TemplateSpec, parse_spec
from templates.tokenizer import TemplateTokenizer
from templates.version import PublishedVersion, version_digest

RULES = (
    "You answer in a few words. Read the note with care, and do not add what it does not say. "
    "Names, numbers and dates are repeated as they are written. When the note is empty, say so."
)


def make_spec(
    name: str = "notes",
    *,
    tenant: str = "acme",
    model: str = "tiny",
    rules: str = RULES,
    **more: Any,
) -> TemplateSpec:
    """One system message with a rule text, one user message with the variable `note`."""
    return parse_spec(
        {
            "tenant": tenant,
            "name": name,
            "model": model,
            "messages": [
                {"role": "system", "content": rules},
                {"role": "user", "content": "Note: {{ note }}"},
            ],
            "input": {
                "schema": {
                    "type": "object",
                    "properties": {"note": {"type": "string"}},
                    "required": ["note"],
                    "additionalProperties": False,
                }
            },
            "generation": {"max_new_tokens": 8},
            "samples": [{"input": {"note": "The parcel came on Monday."}}],
            **more,
        }
    )


def make_version(
    spec: TemplateSpec, model: ModelFolder, tokenizer: TemplateTokenizer, *, number: int = 1
) -> PublishedVersion:
    """A version that no registry knows."""
    return PublishedVersion(
        ref=VersionRef(
            tenant=spec.tenant,
            template=spec.name,
            version=number,
            digest=version_digest(spec, model),
        ),
        spec=spec,
        compiled=compile_template(spec, model, tokenizer),
        model_digest=model.model_digest,
        tokenizer_digest=model.tokenizer_digest,
        published_at=0.0,
    )


def publish(registry: Registry, spec: TemplateSpec, model: ModelFolder) -> PublishedVersion:
    """Compile and publish."""
    compiled = compile_template(spec, model, TemplateTokenizer.load(model.path))
    return registry.publish(spec, compiled, model).version
