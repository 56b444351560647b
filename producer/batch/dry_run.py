"""What a batch would cost, in tokens: counted with the model's tokenizer, without its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from contract.errors import ModelError
from contract.model_folder import ModelFolder
from contract.model_store import find_model
from contract.settings import Settings
from templates.fill import check_positions, fill, most_new_tokens
from templates.tokenizer import TemplateTokenizer
from templates.version import PublishedVersion


@dataclass(slots=True)
class Tokens:
    """Sums over lines."""

    lines: int = 0
    prompt: int = 0
    prefix: int = 0  # of the prompts, what is computed once per version and worker
    new: int = 0  # at most

    def add(self, other: Tokens) -> None:
        self.lines += other.lines
        self.prompt += other.prompt
        self.prefix += other.prefix
        self.new += other.new

    def to_dict(self) -> dict[str, int]:
        return {
            "lines": self.lines,
            "prompt_tokens": self.prompt,
            "cached_prefix_tokens": self.prefix,
            "most_new_tokens": self.new,
        }


class DryRun:
    """Counts lines of published versions, each with the tokenizer it was compiled for.

    Without `use_cache` no prefix is counted: each job computes its own anew.
    """

    def __init__(self, settings: Settings, *, use_cache: bool = True) -> None:
        self._settings = settings
        self._use_cache = use_cache
        # By model and tokenizer digest: models with one tokenizer differ in what they can read.
        self._models: dict[tuple[str, str], tuple[ModelFolder, TemplateTokenizer]] = {}
        self._versions: dict[str, Tokens] = {}

    def add(self, version: PublishedVersion, variables: Mapping[str, Any]) -> None:
        """Count a line. Raises InvalidInput when it is too long, ModelError without a tokenizer."""
        folder, tokenizer = self._model(version)
        prompt = len(fill(version.compiled, variables, tokenizer).ids)
        new = most_new_tokens(version.spec, tokenizer)
        check_positions(prompt, new, folder.max_positions)
        prefix = len(version.compiled.prefix_ids) if self._use_cache else 0
        self._versions.setdefault(str(version.ref), Tokens()).add(Tokens(1, prompt, prefix, new))

    @property
    def total(self) -> Tokens:
        total = Tokens()
        for tokens in self._versions.values():
            total.add(tokens)
        return total

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        versions = {name: tokens.to_dict() for name, tokens in sorted(self._versions.items())}
        return {"dry_run": True, **self.total.to_dict(), "versions": versions}

    def lines(self) -> Iterator[str]:
        """For people."""
        for name, tokens in sorted(self._versions.items()):
            yield f"{name}: {_in_words(tokens)}"
        if len(self._versions) != 1:
            yield f"all: {_in_words(self.total)}"

    def _model(self, version: PublishedVersion) -> tuple[ModelFolder, TemplateTokenizer]:
        key = (version.spec.model, version.tokenizer_digest)
        found = self._models.get(key)
        if found is None:
            folder = find_model(version.spec.model, self._settings)
            if folder.tokenizer_digest != version.tokenizer_digest:
                raise ModelError(
                    f"{version.ref} was compiled with another tokenizer than is here",
                    given=f"tokenizer digest {folder.tokenizer_digest[:12]}",
                    expected=version.tokenizer_digest[:12],
                    remedy="Fetch the model that it was published with, or publish it again.",
                )
            found = self._models[key] = (folder, TemplateTokenizer.load(folder.path))
        return found


def _in_words(tokens: Tokens) -> str:
    share = tokens.prefix / tokens.prompt if tokens.prompt else 0.0
    return (
        f"{tokens.lines} lines, {tokens.prompt} prompt tokens, {tokens.prefix} of them "
        f"({share:.0%}) cached prefix, at most {tokens.new} new tokens"
    )
