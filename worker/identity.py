"""Who a worker is: a name that is unique among running workers and readable in a log."""

from __future__ import annotations

import os
import re
import secrets
import socket


def new_worker_id() -> str:
    """`<host>-<pid>-<4 hex>`, from characters that are safe in keys and host names."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:32] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(2)}"
