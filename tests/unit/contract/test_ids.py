"""Names, job ids and template addresses: what parses, and what is refused."""

from __future__ import annotations

import contextlib
import string

import pytest
from hypothesis import given, strategies as st

from contract import keys
from contract.errors import InvalidInput
from contract.ids import TemplateAddress, check_name, new_job_id, parse_address, tenant_of

names = st.from_regex(r"[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?", fullmatch=True)
labels = names.filter(lambda name: not name.isdecimal())
versions = st.integers(1, 999_999_999).map(str)


@given(names)
def test_a_job_id_names_its_tenant(tenant: str) -> None:
    """The tenant comes back from every id made for it, and ids differ."""
    first, second = new_job_id(tenant), new_job_id(tenant)
    assert tenant_of(first) == tenant_of(second) == tenant
    assert first != second


@given(names)
def test_every_key_of_a_tenant_lies_under_its_prefix(tenant: str) -> None:
    """One ACL pattern covers all that a tenant owns, and no shared key."""
    owned = [
        keys.job(new_job_id(tenant)),
        keys.idempotency(tenant, "any key"),
        keys.queued(tenant),
        keys.running(tenant),
        keys.notices(tenant),
        keys.templates(tenant),
        keys.waiting(tenant, "triage"),
        keys.version(tenant, "triage", "0" * 64),
    ]
    assert all(key.startswith(f"pq:{tenant}:") for key in owned)
    shared = [keys.WORKERS, keys.TENANTS, keys.BROKER_PREFIX]
    assert not any(key.startswith(f"pq:{tenant}:") for key in shared)


@given(names, names, st.none() | labels | versions)
def test_an_address_parses_to_its_parts(tenant: str, name: str, selector: str | None) -> None:
    """Text and parts are two spellings of one address."""
    address = TemplateAddress(tenant=tenant, name=name, selector=selector)
    assert parse_address(str(address)) == address
    assert (address.version is None) != (address.label is None)


@given(st.text(string.printable, max_size=20))
def test_no_other_text_is_an_address(text: str) -> None:
    """Any text either parses and prints back as it was, or is InvalidInput."""
    with contextlib.suppress(InvalidInput):
        assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "acme", "acme/", "/triage", "acme/triage@", "acme/triage@0", "acme/triage@" + "9" * 10,
     "Acme/triage", "acme/tri age", "acme/triage@Prod", "acme/a/b", "-acme/triage", "a:b/c"],
)  # fmt: skip
def test_bad_addresses_are_refused(text: str) -> None:
    """Each says what an address looks like, or which part is wrong."""
    with pytest.raises(InvalidInput) as caught:
        parse_address(text)
    assert caught.value.expected


@pytest.mark.parametrize("text", ["", "acme", "acme.", "acme.12", "ACME." + "0" * 32, ".." * 20])
def test_bad_job_ids_are_refused(text: str) -> None:
    """A job id that no submit can have printed is InvalidInput."""
    with pytest.raises(InvalidInput):
        tenant_of(text)


def test_a_name_of_another_type_is_refused() -> None:
    """A number or None is no name, and does not crash the check."""
    for value in (None, 7, b"acme"):
        with pytest.raises(InvalidInput):
            check_name("tenant", value)  # type: ignore[arg-type]
