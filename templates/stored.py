"""Names and numbers of templates as they come out of Redis, where a tenant's admin may write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from contract.errors import CodecError
from contract.ids import TemplateAddress, is_name
from contract.redis_client import text
from contract.types import VersionRef

_NUMBER = re.compile(rb"[1-9][0-9]{0,8}")
_DIGEST = re.compile(rb"[0-9a-f]{64}")
_REVISION = re.compile(rb"[0-9]{1,15}")


def read_names(found: Iterable[bytes]) -> list[str]:
    """Names read from Redis, sorted. What is no name was written by hand and is left out.

    A tenant's admin can write what it likes into its own keys; whoever reads all tenants' must not
    stumble over it.
    """
    return sorted(name for raw in found if is_name(name := raw.decode("utf-8", errors="replace")))


def read_refs(tenant: str, template: str, found: Mapping[bytes, bytes]) -> list[VersionRef]:
    """The versions in a hash `keys.versions`, oldest first; as `read_names`."""
    refs = [
        VersionRef(tenant=tenant, template=template, version=int(number), digest=digest.decode())
        for number, digest in found.items()
        if _NUMBER.fullmatch(number) and _DIGEST.fullmatch(digest)
    ]
    return sorted(refs, key=lambda ref: ref.version)


def read_numbers(found: Iterable[bytes]) -> list[int]:
    """Version numbers, sorted; as `read_names`."""
    return sorted(int(number) for number in found if _NUMBER.fullmatch(number))


def read_revision(value: bytes | None, address: TemplateAddress) -> int:
    """The number in a key `keys.revision`; 0 where nothing was counted yet. Raises CodecError."""
    if value is None:
        return 0
    if not _REVISION.fullmatch(value):
        raise CodecError(
            f"the revision of {address.tenant}/{address.name} is damaged",
            given="a value that is no number",
            expected="the revision of the last entry of 'prefillq templates history'",
            remedy="Write that into the key of contract.keys.revision.",
        )
    return int(value)


def version_number(value: bytes | str) -> int | None:
    """The version number that a field of Redis holds, or None for what is none."""
    digits = text(value)
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else None


def known_number(value: bytes | str, tenant: str, name: str) -> int:
    """The number under which a digest is known. Raises CodecError."""
    number = version_number(value)
    if number is None:
        raise CodecError(
            f"a version of {tenant}/{name} has a number in Redis that is none",
            expected="1 or more",
            remedy="See the key in contract.keys.numbers.",
        )
    return number


def labelled_number(address: TemplateAddress, value: bytes | str) -> int:
    """The number that a label points to. Raises CodecError."""
    number = version_number(value)
    if number is None:
        raise CodecError(
            f"the label {address.label} of {address.tenant}/{address.name} is damaged",
            given="a value that is no number",
            expected="the number of a version",
            remedy=f"Point it anew: prefillq templates label "
            f"{address.tenant}/{address.name}@VERSION {address.label}.",
        )
    return number
