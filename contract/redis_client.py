"""Redis connections that give up in bounded time, and errors that say what to do.

Both socket timeouts are set on every connection: a half-open socket otherwise blocks a
command for ever. One retry covers a connection that the server closed while it was idle; a
timeout is not tried again, since that would double the wait for a server that is away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError as RedisConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
    TimeoutError as RedisTimeoutError,
)
from redis.retry import Retry

from contract.errors import RedisRefused, RedisUnreachable
from contract.settings import Settings

Client = redis.Redis


def connect(settings: Settings, *, timeout_s: float | None = None) -> Client:
    """A client for `settings.redis_url`; nothing is sent before the first command."""
    seconds = settings.redis_timeout_s if timeout_s is None else timeout_s
    over_tcp = not settings.redis_url.startswith("unix")
    return redis.Redis.from_url(
        settings.redis_url,
        socket_timeout=seconds,
        **({"socket_connect_timeout": seconds, "socket_keepalive": True} if over_tcp else {}),
        retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        health_check_interval=30,
        client_name="prefillq",
    )


def redacted(url: str) -> str:
    """The URL without its user and password, fit for messages and logs."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


@contextmanager
def errors_explained(settings: Settings) -> Iterator[None]:
    """Turn redis-py's errors inside the block into RedisUnreachable or RedisRefused."""
    where = redacted(settings.redis_url)
    try:
        yield
    except (AuthenticationError, NoPermissionError) as error:
        raise RedisRefused(
            "Redis refused these credentials or this command",
            given=f"{where}: {_without_arguments(str(error))}",
            remedy="Check the user and password in PREFILLQ_REDIS_URL.",
        ) from error
    except BusyLoadingError as error:
        raise RedisUnreachable(
            "Redis is still loading its data", given=where, remedy="Try again in a moment."
        ) from error
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        raise RedisUnreachable(
            "Redis cannot be reached",
            given=f"{where} ({type(error).__name__})",
            expected=f"an answer within {settings.redis_timeout_s:g} s",
            remedy="Start Redis or set PREFILLQ_REDIS_URL.",
        ) from error
    except ResponseError as error:
        text = _without_arguments(str(error))
        remedy = (
            "Raise maxmemory or drop old results; nothing was written."
            if isinstance(error, OutOfMemoryError)
            else "See the Redis log."
        )
        raise RedisRefused("Redis refused a command", given=text[:200], remedy=remedy) from error
    except RedisError as error:
        raise RedisRefused("Redis failed", given=_without_arguments(str(error))[:200]) from error


def _without_arguments(text: str) -> str:
    """Redis's words, without the command that redis-py or Redis itself repeats in them."""
    # Two forms: "Command # 1 (SET key value) of pipeline caused error: ...", and "unknown command
    # 'X', with args beginning with: ...".
    text = re.sub(r"^Command # \d+ \(.*?\) of pipeline caused error: ", "", text, flags=re.DOTALL)
    return text.partition(", with args")[0]


def text(value: Any) -> str:
    """A reply as text; replies are bytes because records hold msgpack.

    Bytes that are no UTF-8 come out escaped: they are no name of ours, and no reason to fail.
    """
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
