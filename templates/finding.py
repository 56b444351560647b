"""One remark about a template: what it is, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from contract.errors import PrefillqError
from templates.spec import TemplateSpec
from templates.yaml_source import ContentPlace

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One remark. A file with a finding of level `error` cannot be published."""

    level: Level
    code: str
    message: str  # one sentence without its full stop
    remedy: str
    in_message: int | None = None  # the message's number, from 1
    at: int = 0  # the character of its content, from 0
    line: int | None = None  # of the file, from 1, once `located` knows it

    def __str__(self) -> str:
        return f"{self.level}: {self.message} [{self.code}]. {self.remedy}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "code": self.code,
            "message": self.message,
            "remedy": self.remedy,
            "in_message": self.in_message,
            "line": self.line,
        }


def finding_of(error: PrefillqError) -> Finding:
    """An error of reading or compiling a template, as a finding."""
    return Finding(
        level="error",
        code=error.code,
        message=str(error).removesuffix(error.remedy).rstrip(" ."),
        remedy=error.remedy,
    )


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """Those that keep a template from being published."""
    return [finding for finding in findings if finding.level == "error"]


def warnings_of(findings: Iterable[Finding]) -> list[Finding]:
    """Those that do not."""
    return [finding for finding in findings if finding.level == "warning"]


def located(
    findings: Iterable[Finding], spec: TemplateSpec, places: Sequence[ContentPlace | None]
) -> list[Finding]:
    """The same findings with the lines of the file that `places` come from."""
    return [_located(finding, spec, places) for finding in findings]


def _located(
    finding: Finding, spec: TemplateSpec, places: Sequence[ContentPlace | None]
) -> Finding:
    number = finding.in_message
    place = places[number - 1] if number is not None and number <= len(places) else None
    if number is None or place is None:
        return finding
    content = spec.messages[number - 1].content
    return replace(finding, line=place.line_of(content, finding.at))
