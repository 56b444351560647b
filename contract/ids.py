"""Names that appear in keys: tenants, templates, labels and job ids."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass

from contract.errors import InvalidInput

NAME = r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?"
_NAME = re.compile(NAME)
_JOB_ID = re.compile(rf"({NAME})\.([0-9a-f]{{32}})")


def check_name(kind: str, value: str) -> str:
    """Return `value` if it can be a tenant, template or label name, else raise InvalidInput."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidInput(
            f"not a {kind} name",
            given=repr(value)[:80],
            expected="1 to 64 of a-z, 0-9, '-' and '_', a letter or digit at both ends",
        )
    return value


def is_name(value: str) -> bool:
    """True for what `check_name` takes."""
    return _NAME.fullmatch(value) is not None


def new_job_id(tenant: str) -> str:
    """A fresh id that names its tenant and sorts by time: 48 bits of milliseconds, 80 random."""
    return f"{tenant}.{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def tenant_of(job_id: str) -> str:
    """The tenant inside a job id; InvalidInput when it is no job id."""
    match = _JOB_ID.fullmatch(job_id) if isinstance(job_id, str) else None
    if match is None:
        raise InvalidInput(
            "not a job id",
            given=repr(job_id)[:80],
            expected="<tenant>.<32 hex digits>, as printed by 'prefillq submit'",
        )
    return match.group(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateAddress:
    """What a producer writes: `tenant/name`, `tenant/name@3` or `tenant/name@canary`."""

    tenant: str
    name: str
    selector: str | None = None  # a version number or a label; None means the default label

    def __str__(self) -> str:
        tail = "" if self.selector is None else f"@{self.selector}"
        return f"{self.tenant}/{self.name}{tail}"

    @property
    def version(self) -> int | None:
        """The version number when the selector is one."""
        return int(self.selector) if self.selector and self.selector.isdecimal() else None

    @property
    def label(self) -> str | None:
        """The label to resolve when the selector is no number."""
        return None if self.version is not None else (self.selector or DEFAULT_LABEL)


DEFAULT_LABEL = "production"


def parse_address(text: str) -> TemplateAddress:
    """Parse `tenant/name[@version-or-label]`; InvalidInput names the part that is wrong."""
    if not isinstance(text, str):
        raise InvalidInput(
            "a template address is text", given=type(text).__name__, expected="tenant/name"
        )
    path, at, selector = text.partition("@")
    tenant, slash, name = path.partition("/")
    if not slash or (at and not selector):
        raise InvalidInput(
            "not a template address",
            given=repr(text)[:120],
            expected="tenant/name, tenant/name@3 or tenant/name@label",
        )
    check_name("tenant", tenant)
    check_name("template", name)
    if selector and selector.isdecimal():
        if len(selector) > 9 or int(selector) < 1:
            raise InvalidInput("not a version number", given=selector[:40], expected="1 or more")
    elif selector:
        check_name("label", selector)
    return TemplateAddress(tenant=tenant, name=name, selector=selector or None)
