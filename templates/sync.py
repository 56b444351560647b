"""Template files as the source: what publishing a folder comes to, and doing it.

`make_plan` looks at everything before anything is published. What a file holds is published if it
is new; a version whose content is there already is left alone, and is not compiled again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from contract.errors import NotFound, PrefillqError, RedisRefused, RedisUnreachable, SpecInvalid
from contract.ids import DEFAULT_LABEL
from contract.model_store import find_model
from contract.settings import Settings
from templates.finding import Finding, finding_of
from templates.prepare import Prepared, Preparer
from templates.registry import Registry
from templates.spec import TemplateSpec
from templates.transfer import Bundle, parse_bundle
from templates.tree import Blocked, walk
from templates.version import version_digest
from templates.yaml_source import ContentPlace, content_places, parse_documents, read_source

Action = Literal["new_template", "new_version", "unchanged", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelMove:
    """A label that is to point elsewhere; None: nowhere."""

    label: str
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One version of a file, or a file that cannot be read as any."""

    path: str  # below the folder
    template: str  # tenant/name, or "" when the file does not tell
    action: Action
    version: int | None = None  # the number it has, or will have unless others publish meanwhile
    prefix_tokens: int | None = None
    findings: tuple[Finding, ...] = ()  # warnings, or why it is refused

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.path,
            "template": self.template,
            "action": self.action,
            "version": self.version,
            "prefix_tokens": self.prefix_tokens,
            "findings": [finding.to_dict() for finding in self.findings],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file's versions, each with what publishing it needs; None for one that is there already."""

    path: str
    bundle: Bundle
    prepared: tuple[Prepared | None, ...]
    steps: tuple[Step, ...]
    moves: tuple[LabelMove, ...] = ()

    @property
    def refused(self) -> bool:
        return any(step.action == "refused" for step in self.steps)

    @property
    def template(self) -> tuple[str, str]:
        first = self.bundle.specs[0]
        return first.tenant, first.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All files below a folder. `broken` are those that are no templates and should be."""

    sources: tuple[Source, ...]
    broken: tuple[Step, ...] = ()
    ignored: tuple[str, ...] = field(default=())  # YAML files of something else

    @property
    def steps(self) -> list[Step]:
        """In the order of the files."""
        every = [*self.broken, *(step for source in self.sources for step in source.steps)]
        return sorted(every, key=lambda step: step.path)

    @property
    def refused(self) -> list[Step]:
        return [step for step in self.steps if step.action == "refused"]
