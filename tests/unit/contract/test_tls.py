"""TLS settings: what both libraries are given, and what is refused before a connection."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from contract.celery_app import make_celery
from contract.errors import SettingsError
from contract.redis_client import connect
from contract.settings import Settings
from contract.tls import tls_failure, tls_options

URL = "rediss://host:6380/0"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Files of the three settings; nothing reads them before a connection is made."""
    found = {f"redis_{part}_file": tmp_path / f"{part}.pem" for part in ("ca", "cert", "key")}
    for path in found.values():
        path.touch()
    return found


def test_without_tls_there_are_no_options() -> None:
    """Nothing is passed on that would make a plain connection fail."""
    assert tls_options(Settings(redis_url="redis://host")) == {}
    assert make_celery(Settings(redis_url="redis://host")).connection_for_write().ssl is False


def test_both_libraries_check_the_server_with_the_same_options(files: dict[str, Path]) -> None:
    """kombu by itself would take any certificate for rediss://."""
    for settings in (Settings(redis_url=URL), Settings(redis_url=URL, **files)):
        options = tls_options(settings)
        assert options["ssl_cert_reqs"] is ssl.CERT_REQUIRED
        assert options["ssl_check_hostname"] is True
        assert options["ssl_ca_certs"] == (settings.redis_ca_file and str(settings.redis_ca_file))
        assert make_celery(settings).connection_for_write().ssl == options
        with connect(settings) as client:
            given = client.connection_pool.connection_kwargs
            assert {name: given[name] for name in options} == options


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"redis_url": "redis://host", "redis_ca_file": "ca"}, "rediss://"),
        ({"redis_url": URL, "redis_ca_file": "missing"}, "REDIS_CA_FILE"),
        ({"redis_url": URL, "redis_ca_file": "x" * 5000}, "REDIS_CA_FILE"),
        ({"redis_url": URL, "redis_ca_file": "a\0b"}, "REDIS_CA_FILE"),
        ({"redis_url": URL, "redis_key_file": "key"}, "redis_cert_file"),
        ({"redis_url": f"{URL}?ssl_cert_reqs=none"}, "PREFILLQ_REDIS_CA_FILE"),
        ({"redis_url": f"{URL}?db=1&ssl_check_hostname=false"}, "PREFILLQ_REDIS_CA_FILE"),
    ],
)
def test_what_would_not_be_checked_is_refused(
    files: dict[str, Path], given: dict[str, str], names: str
) -> None:
    """A CA file beside an unencrypted URL, a file that is not there, checks turned off."""
    paths = {f"{part}": files[f"redis_{part}_file"] for part in ("ca", "key")}
    chosen = {name: paths.get(value, value) for name, value in given.items()}
    with pytest.raises(SettingsError) as caught:
        Settings.load(**chosen)
    assert names in str(caught.value)


def test_a_tls_error_is_found_behind_what_hides_it() -> None:
    """Libraries raise their own error while they handle it."""
    inner = ssl.SSLCertVerificationError("no")
    outer = ConnectionError("could not connect")
    outer.__context__ = inner
    assert tls_failure(outer) is inner
    assert tls_failure(ConnectionError("refused")) is None


def test_errors_that_lead_in_a_circle_have_an_end() -> None:
    """The bell raises what caused an error anew, from that error; what is behind both is found."""
    first, second = ConnectionError("one"), ConnectionError("two")
    first.__cause__, second.__cause__ = second, first
    assert tls_failure(first) is None
    first.__context__ = inner = ssl.SSLError("no")
    assert tls_failure(first) is tls_failure(second) is inner
