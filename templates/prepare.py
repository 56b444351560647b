"""From specs to published versions: find the model, compile, check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.errors import ModelError, PrefillqError, TemplateRefused
from contract.ids import DEFAULT_LABEL
from contract.model_folder import ModelFolder
from contract.model_store import find_model
from contract.settings import Settings
from templates.compile import compile_template
from templates.compiled import CompiledTemplate
from templates.lint import Finding, errors_of, finding_of, lint_prompt, lint_spec
from templates.registry import Published, Registry
from templates.spec import TemplateSpec, load_spec
from templates.tokenizer import TemplateTokenizer
from templates.transfer import Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A spec that compiles and has no lint errors, ready for `Registry.publish`."""

    spec: TemplateSpec
    compiled: CompiledTemplate
    model: ModelFolder


class Preparer:
    """Compiles specs, reading each model's tokenizer once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tokenizers: dict[str, TemplateTokenizer] = {}

    def tokenizer(self, model: ModelFolder) -> TemplateTokenizer:
        if model.tokenizer_digest not in self._tokenizers:
            self._tokenizers[model.tokenizer_digest] = TemplateTokenizer.load(model.path)
        return self._tokenizers[model.tokenizer_digest]

    def prepare(self, spec: TemplateSpec) -> Prepared:
        """Compile and check. Raises ModelError, or TemplateRefused with the first lint error."""
        wrong = errors_of(list(lint_spec(spec)))
        if not wrong:
            prepared = self._compile(spec)
            wrong = errors_of(self._in_tokens(prepared))
        if wrong:
            raise TemplateRefused(
                f"{spec.tenant}/{spec.name} cannot be published",
                given=wrong[0].message,
                remedy=wrong[0].remedy,
            )
        return prepared

    def lint(self, path: Path) -> list[Finding]:
        """All that can be said about a file, whether or not it is a template."""
        try:
            spec = load_spec(path)
        except PrefillqError as error:
            return [finding_of(error)]
        findings = list(lint_spec(spec))
        if errors_of(findings):
            return findings  # a sample that does not fit would only be refused once more
        try:
            return [*findings, *self._in_tokens(self._compile(spec))]
        except ModelError as error:
            skipped = Finding(
                level="warning",
                code="model_missing",
                message=f"not checked in tokens: {error.problem}",
                remedy=error.remedy,
            )
            return [*findings, skipped]
        except PrefillqError as error:
            return [*findings, finding_of(error)]

    def _compile(self, spec: TemplateSpec) -> Prepared:
        model = find_model(spec.model, self._settings)
        compiled = compile_template(spec, model, self.tokenizer(model))
        return Prepared(spec=spec, compiled=compiled, model=model)

    def _in_tokens(self, prepared: Prepared) -> list[Finding]:
        model = prepared.model
        return list(
            lint_prompt(
                prepared.spec,
                prepared.compiled,
                self.tokenizer(model),
                max_positions=model.max_positions,
            )
        )


def import_bundles(
    bundles: Sequence[Bundle], preparer: Preparer, registry: Registry
) -> list[Published]:
    """Publish what was exported, once all of it compiles; then set labels as they were.

    A label points to the version of the same content, whatever its number is here.
    """
    prepared = [[preparer.prepare(spec) for spec in bundle.specs] for bundle in bundles]
    done: list[Published] = []
    for bundle, items in zip(bundles, prepared, strict=True):
        published = [registry.publish(item.spec, item.compiled, item.model) for item in items]
        if bundle.labels is not None:
            _restore_labels(bundle.labels, published, registry)
        done += published
    return done


def _restore_labels(
    labels: Mapping[str, int], published: list[Published], registry: Registry
) -> None:
    for label, place in labels.items():
        ref = published[place].version.ref
        registry.set_label(ref.tenant, ref.template, label, ref.version)
    first = published[0]
    new_here = first.created and first.version.ref.version == 1
    if new_here and DEFAULT_LABEL not in labels:  # publishing set it, the exported one had none
        registry.remove_label(first.version.ref.tenant, first.version.ref.template, DEFAULT_LABEL)
