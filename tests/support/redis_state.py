"""States of a Redis server that tests put it into and take it out of again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def out_of_memory(client: Any) -> Iterator[None]:
    """Inside the block every command that needs memory is refused."""
    before = client.config_get("maxmemory")["maxmemory"]
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", before)
