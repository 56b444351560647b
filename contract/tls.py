"""TLS to Redis: one set of options for both libraries that open connections.

The server's certificate and name are always checked. redis-py does so by itself; kombu, left alone,
takes any certificate for `rediss://`.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from contract.settings import Settings


def tls_options(settings: Settings) -> dict[str, Any]:
    """Keywords of redis-py's SSLConnection, which kombu takes too; empty without `rediss://`."""
    if not settings.redis_url.startswith("rediss://"):
        return {}
    return {
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
        "ssl_check_hostname": True,
        # None: the certificates that the system trusts.
        "ssl_ca_certs": _name(settings.redis_ca_file),
        "ssl_certfile": _name(settings.redis_cert_file),
        "ssl_keyfile": _name(settings.redis_key_file),
    }


def tls_failure(error: BaseException) -> ssl.SSLError | None:
    """The TLS error behind another one: what it was raised from, or while handling."""
    found: list[BaseException | None] = [error]
    # Grows while it is walked. What is raised again from its own consequence leads in a circle.
    for each in found:
        if isinstance(each, ssl.SSLError):
            return each
        if each is not None:
            found += [e for e in (each.__cause__, each.__context__) if e not in found]
    return None


def _name(path: Path | None) -> str | None:
    return None if path is None else str(path)
