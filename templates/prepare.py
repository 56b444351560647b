"""From specs to published versions: find the model, compile, check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.errors import ModelError, PrefillqError, TemplateRefused
from contract.ids import DEFAULT_LABEL
from contract.model_folder import ModelFolder
from contract.model_store import find_model
from contract.settings import Settings
from templates.compile import compile_template
from templates.compiled import CompiledTemplate
from templates.finding import Finding, errors_of, finding_of, located, warnings_of
from templates.lint import lint_prompt, lint_spec
from templates.lint_prefix import Compiled
from templates.lint_texts import lint_control_tokens
from templates.registry import Published, Registry
from templates.spec import TemplateSpec, spec_of
from templates.tokenizer import TemplateTokenizer
from templates.transfer import Bundle
from templates.yaml_source import ContentPlace, content_places, read_source

if TYPE_CHECKING:
    from llguidance import LLTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A spec that compiles and has no lint errors, ready for `Registry.publish`."""

    spec: TemplateSpec
    compiled: CompiledTemplate
    model: ModelFolder
    warnings: tuple[Finding, ...] = ()


class Preparer:
    """Compiles and checks specs, reading each model's tokenizer once.

    With `strict` a warning refuses a template as an error does.
    """

    def __init__(self, settings: Settings, *, strict: bool = False) -> None:
        self._settings = settings
        self._strict = strict
        self._tokenizers: dict[str, TemplateTokenizer] = {}
        self._grammar_tokenizers: dict[str, LLTokenizer] = {}

    def model(self, spec: TemplateSpec) -> ModelFolder:
        """The model that a spec names. Raises ModelError."""
        return find_model(spec.model, self._settings)

    def tokenizer(self, model: ModelFolder) -> TemplateTokenizer:
        if model.tokenizer_digest not in self._tokenizers:
            self._tokenizers[model.tokenizer_digest] = TemplateTokenizer.load(model.path)
        return self._tokenizers[model.tokenizer_digest]

    def prepare(
        self, spec: TemplateSpec, *, places: Sequence[ContentPlace | None] = ()
    ) -> Prepared:
        """Compile and check. Raises ModelError, or TemplateRefused with the first finding.

        `places` are those of the messages in the spec's file, for findings to name lines.
        """
        prepared, findings = self._examine(spec, places)
        wrong = self._refusing(findings)
        if prepared is None or wrong:
            raise _refused(spec, wrong)
        return prepared

    def prepare_file(self, path: Path) -> Prepared:
        """As `prepare`, of a file that holds one template. Raises SpecInvalid too."""
        text = read_source(path)
        spec = spec_of(text, source=str(path))
        return self.prepare(spec, places=content_places(text)[0])

    def lint(self, path: Path) -> list[Finding]:
        """All that can be said about a file, whether or not it is a template."""
        try:
            text = read_source(path)
            spec = spec_of(text, source=str(path))
        except PrefillqError as error:
            return [finding_of(error)]
        places = content_places(text)[0]
        try:
            return self._examine(spec, places)[1]
        except ModelError as error:
            skipped = Finding(
                level="warning",
                code="model_missing",
                message=f"not checked in tokens: {error.problem}",
                remedy=error.remedy,
            )
            return located([*lint_spec(spec), skipped], spec, places)

    def _examine(
        self, spec: TemplateSpec, places: Sequence[ContentPlace | None]
    ) -> tuple[Prepared | None, list[Finding]]:
        """What the spec compiles to, unless something is wrong with it, and all that is to say."""
        it, found = self._compile(spec)
        findings = located(found, spec, places)
        if it is None:
            return None, findings
        warnings = tuple(warnings_of(findings))
        prepared = Prepared(spec=spec, compiled=it.compiled, model=it.model, warnings=warnings)
        return prepared, findings

    def _compile(self, spec: TemplateSpec) -> tuple[Compiled | None, list[Finding]]:
        findings = list(lint_spec(spec))
        if errors_of(findings):
            # A sample that does not fit would only be refused once more.
            return None, findings
        model = self.model(spec)
        tokenizer = self.tokenizer(model)
        findings += lint_control_tokens(spec, tokenizer)
        if errors_of(findings):
            return None, findings
        try:
            compiled = compile_template(spec, model, tokenizer)
        except TemplateRefused as error:
            return None, [*findings, finding_of(error)]
        if spec.output.json_schema is not None:
            try:
                self._check_grammar(spec.output.json_schema, model, tokenizer)
            except PrefillqError as error:
                return None, [*findings, finding_of(error)]
        it = Compiled(spec=spec, compiled=compiled, model=model, tokenizer=tokenizer)
        return it, [*findings, *lint_prompt(it)]

    def _check_grammar(
        self, schema: Mapping[str, Any], model: ModelFolder, tokenizer: TemplateTokenizer
    ) -> None:
        # Most templates have no schema, and then nothing of this is loaded.
        from templates.grammar import compile_schema, grammar_tokenizer

        key = model.tokenizer_digest
        if key not in self._grammar_tokenizers:
            self._grammar_tokenizers[key] = grammar_tokenizer(tokenizer, model.eos_ids)
        compile_schema(self._grammar_tokenizers[key], schema)

    def _refusing(self, findings: Sequence[Finding]) -> list[Finding]:
        return [*errors_of(findings), *(warnings_of(findings) if self._strict else ())]


def _refused(spec: TemplateSpec, wrong: Sequence[Finding]) -> TemplateRefused:
    line = "" if wrong[0].line is None else f"line {wrong[0].line}: "
    more = f" (and {len(wrong) - 1} more; see 'prefillq templates lint')" if wrong[1:] else ""
    return TemplateRefused(
        f"{spec.tenant}/{spec.name} cannot be published",
        given=f"{line}{wrong[0].message} [{wrong[0].code}]{more}",
        remedy=wrong[0].remedy,
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
