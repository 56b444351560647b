"""Which templates a worker serves and which prefixes it never evicts, as an operator names them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from contract.errors import InvalidInput
from contract.ids import is_name

# Letters of either case: what no name can match is no mistake of form.
_PART = re.compile(r"[A-Za-z0-9_*?-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Templates whose labelled versions are never evicted; `label` None: whatever the label."""

    pattern: str
    label: str | None = None

    def __str__(self) -> str:
        return self.pattern if self.label is None else f"{self.pattern}@{self.label}"

    def wants(self, tenant: str, template: str, label: str) -> bool:
        """True for what a label of a template points to."""
        return self.label in (None, label) and self.names(tenant, template)

    def names(self, tenant: str, template: str) -> bool:
        """True for a template of which it may want a version."""
        return match(self.pattern, tenant, template)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns:
    """What is served: what any of `include` names (none: all), but nothing that `exclude` does."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def serve(self, tenant: str, template: str) -> bool:
        """True for a template that may be served."""
        included = not self.include or any(match(p, tenant, template) for p in self.include)
        return included and not any(match(p, tenant, template) for p in self.exclude)


def check_pattern(pattern: str) -> str:
    """Return `tenant/template` with `*` and `?` as it is; InvalidInput otherwise."""
    tenant, _, template = pattern.partition("/")
    if not (_PART.fullmatch(tenant) and _PART.fullmatch(template)):
        raise InvalidInput(
            "not a template pattern",
            given=repr(pattern)[:80],
            expected="acme/* or acme/triage: a tenant's and a template's name, with * and ?",
        )
    return pattern


def parse_pin(text: str) -> Pin:
    """A pattern as `check_pattern` takes it, and perhaps `@label`. Raises InvalidInput."""
    pattern, at, label = text.partition("@")
    check_pattern(pattern)
    if at and (not is_name(label) or label.isdecimal()):
        raise InvalidInput(
            "not a label to pin",
            given=repr(text)[:120],
            expected="TEMPLATE or TEMPLATE@label, such as acme/*@production",
            remedy="Pins follow labels; point one to a version to pin just that.",
        )
    return Pin(pattern=pattern, label=label if at else None)


def match(pattern: str, tenant: str, template: str) -> bool:
    """True for a template that the pattern names, whole and by case."""
    return fnmatchcase(f"{tenant}/{template}", pattern)
