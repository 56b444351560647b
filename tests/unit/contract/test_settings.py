"""Settings: bounds, and no password in what is said about them."""

from __future__ import annotations

import pytest

from contract.errors import SettingsError
from contract.redis_url import redacted
from contract.settings import Settings


@pytest.mark.parametrize(
    "url",
    [
        "user:s3cretpw@127.0.0.1:6379",
        "http://:s3cretpw@127.0.0.1",
        "redis://:s3cretpw/x@127.0.0.1:6379",
        "redis://:s3cretpw@127.0.0.1:port",
        "redis://:s3cretpw@127.0.0.1:999999",
    ],
)
def test_bad_redis_url_is_not_shown(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Not in the message, nor in what the error was raised from: a URL may hold a password."""
    monkeypatch.setenv("PREFILLQ_REDIS_URL", url)
    with pytest.raises(SettingsError) as caught:
        Settings.load()
    assert "s3cretpw" not in f"{caught.value} {caught.value.to_dict()} {caught.value.__cause__}"
    assert "PREFILLQ_REDIS_URL" in str(caught.value)


def test_a_good_url_is_shown_without_its_password() -> None:
    """What logs and errors name is the host, the port and the database."""
    assert redacted("redis://user:s3cretpw@host:6380/2") == "redis://host:6380/2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("result_ttl_s", 1e16),
        ("result_ttl_s", float("inf")),
        ("default_deadline_s", 1e300),
        ("redis_timeout_s", 1e300),
        ("redis_timeout_s", float("nan")),
        ("lease_s", 1),
        ("max_variables_bytes", 0),
    ],
)
def test_values_that_redis_or_the_clock_cannot_hold_are_refused(name: str, value: float) -> None:
    """Before they lose a job: Redis would take an expiry that overflows and drop the record."""
    with pytest.raises(SettingsError, match=name):
        Settings.load(**{name: value})
