"""Enqueue jobs of prompt templates and read their results.

    from producer import Producer

    with Producer() as producer:
        handle = producer.submit("acme/support-triage", {"ticket": "Card declined twice."})
        print(handle.result(timeout=60).text)

In an event loop `AsyncProducer` does the same with `await`.

Names are loaded on first use: importing this package imports nothing but itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contract.errors import (
        Conflict,
        InvalidInput,
        JobFailed,
        NotFound,
        PrefillqError,
        RedisRefused,
        RedisUnreachable,
        TimedOut,
    )
    from contract.job_store import JobView
    from contract.pieces import Piece
    from contract.settings import Settings
    from contract.types import JobState, Result
    from producer.async_client import AsyncJobHandle, AsyncProducer
    from producer.client import Producer
    from producer.handle import JobHandle

__all__ = [
    "AsyncJobHandle",
    "AsyncProducer",
    "Conflict",
    "InvalidInput",
    "JobFailed",
    "JobHandle",
    "JobState",
    "JobView",
    "NotFound",
    "Piece",
    "PrefillqError",
    "Producer",
    "RedisRefused",
    "RedisUnreachable",
    "Result",
    "Settings",
    "TimedOut",
]

_HOMES = {
    "AsyncJobHandle": "producer.async_client",
    "AsyncProducer": "producer.async_client",
    "JobHandle": "producer.handle",
    "JobState": "contract.types",
    "JobView": "contract.job_store",
    "Piece": "contract.pieces",
    "Producer": "producer.client",
    "Result": "contract.types",
    "Settings": "contract.settings",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "contract.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
