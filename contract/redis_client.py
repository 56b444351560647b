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

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import (
    Sentinel as AsyncSentinel,
    SentinelConnectionPool as AsyncSentinelPool,
)
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
from redis.sentinel import Sentinel, SentinelConnectionPool

from contract.errors import KeyDamaged, RedisFull, RedisRefused, RedisUnreachable
from contract.redis_url import SENTINEL, parse_sentinel_url, redacted
from contract.settings import Settings
from contract.tls import tls_failure, tls_options

Client = redis.Redis
AsyncClient = redis.asyncio.Redis

SENTINEL_TIMEOUT_S = 0.5
# A key of another type, or a script's "attempt to compare nil with number" and its like.
_DAMAGED = re.compile(r"WRONGTYPE|\battempt to \w+ ")


def connect(settings: Settings, *, timeout_s: float | None = None) -> Client:
    """A client for `settings.redis_url`; nothing is sent before the first command."""
    seconds = settings.redis_timeout_s if timeout_s is None else timeout_s
    options = _options(settings, seconds, Retry)
    if settings.redis_url.startswith(SENTINEL):
        client: Client = _connect_by_sentinel(
            settings.redis_url, options, Sentinel, _MasterClient, Retry
        )
        return client
    return redis.Redis.from_url(settings.redis_url, **options)


def connect_async(settings: Settings) -> AsyncClient:
    """A client for the event loop that sends the first command.

    It waits for ever: whoever asks it sets a time, with `contract.async_server.within`.
    """
    options = _options(settings, None, AsyncRetry)
    if settings.redis_url.startswith(SENTINEL):
        client: AsyncClient = _connect_by_sentinel(
            settings.redis_url, options, AsyncSentinel, _AsyncMasterClient, AsyncRetry
        )
        return client
    return redis.asyncio.Redis.from_url(settings.redis_url, **options)


def _options(settings: Settings, seconds: float | None, retry: Any) -> dict[str, Any]:
    over_tcp = not settings.redis_url.startswith("unix")
    return {
        "socket_timeout": seconds,
        **({"socket_connect_timeout": seconds, "socket_keepalive": True} if over_tcp else {}),
        "retry": retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
        "health_check_interval": 30,
        "client_name": "prefillq",
        **tls_options(settings),
    }


def sentinel_options(url: str, *, timeout_s: float, retry: Any = Retry) -> dict[str, Any]:
    """How to connect to the sentinels themselves, for redis-py (`retry`: the class of that name
    that the client is of) and for kombu.

    They are asked one after the other, so none may take long; and the next one is the retry.
    """
    address = parse_sentinel_url(url)
    seconds = min(timeout_s, SENTINEL_TIMEOUT_S)
    return {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": retry(NoBackoff(), 0),
        "username": address.sentinel_username,
        "password": address.sentinel_password,
    }


class _MasterClient(redis.Redis):
    """A client of whichever server is the master when a connection is made."""

    def close(self) -> None:
        super().close()
        pool = self.connection_pool
        if isinstance(pool, SentinelConnectionPool):
            pool.sentinel_manager.close()


class _AsyncMasterClient(redis.asyncio.Redis):
    """The same, in an event loop."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        pool = self.connection_pool
        if isinstance(pool, AsyncSentinelPool):
            for sentinel in pool.sentinel_manager.sentinels:
                await sentinel.aclose()


def _connect_by_sentinel(
    url: str, options: dict[str, Any], sentinel: Any, client: Any, retry: Any
) -> Any:
    # redis-py gives its sentinels no types.
    address = parse_sentinel_url(url)
    return sentinel(
        address.sentinels,
        sentinel_kwargs=sentinel_options(
            url, timeout_s=options["socket_timeout"] or SENTINEL_TIMEOUT_S, retry=retry
        ),
    ).master_for(
        address.master,
        redis_class=client,
        db=address.db,
        username=address.username,
        password=address.password,
        **options,
    )


@contextmanager
def errors_explained(settings: Settings) -> Iterator[None]:
    """Turn redis-py's errors inside the block into RedisUnreachable or RedisRefused."""
    where = redacted(settings.redis_url)
    try:
        yield
    except AuthenticationError as error:
        raise RedisRefused(
            "Redis refused these credentials",
            given=f"{where}: {_without_arguments(str(error))}",
            remedy="Check the user and password in PREFILLQ_REDIS_URL.",
        ) from error
    except NoPermissionError as error:
        raise RedisRefused(
            "Redis refused this command to this user",
            given=f"{where}: {_without_arguments(str(error))}",
            expected="a user who may do this, such as the tenant's admin for its templates",
            remedy="Check the user in PREFILLQ_REDIS_URL. After an upgrade, 'prefillq tenants "
            "update' gives all users the rights of the new release.",
        ) from error
    except BusyLoadingError as error:
        raise RedisUnreachable(
            "Redis is still loading its data", given=where, remedy="Try again in a moment."
        ) from error
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        if failure := tls_failure(error):
            raise RedisUnreachable(
                "no TLS connection to this Redis could be made",
                given=f"{where} ({failure.reason or failure})",
                expected="a server that speaks TLS, with a certificate for this host that the "
                "CA file or the system vouches for",
                remedy="Set PREFILLQ_REDIS_CA_FILE to the certificate of its authority; where the "
                "server asks for one, PREFILLQ_REDIS_CERT_FILE and PREFILLQ_REDIS_KEY_FILE too.",
            ) from error
        raise RedisUnreachable(
            "Redis cannot be reached",
            given=f"{where} ({type(error).__name__})",
            expected=f"an answer within {settings.redis_timeout_s:g} s",
            remedy="Start Redis or set PREFILLQ_REDIS_URL.",
        ) from error
    except ResponseError as error:
        text = _without_arguments(str(error))
        if "Function not found" in text:  # a pipeline names the call before it
            raise RedisRefused(
                "this Redis does not hold the functions of this release of prefillq",
                given=where,
                expected="those that 'prefillq tenants create' and 'update' store",
                remedy="Have an operator run 'prefillq tenants update' with this release.",
            ) from error
        if isinstance(error, OutOfMemoryError):
            raise RedisFull(
                "Redis refused a command",
                given=text[:200],
                remedy="Raise maxmemory or drop old results; nothing was written.",
            ) from error
        if _DAMAGED.search(text):
            raise KeyDamaged(
                "Redis refused a command",
                given=text[:200],
                remedy="A key was written by something other than prefillq.",
            ) from error
        raise RedisRefused(
            "Redis refused a command", given=text[:200], remedy="See the Redis log."
        ) from error
    except RedisError as error:
        raise RedisRefused(
            "Redis failed",
            given=_without_arguments(str(error))[:200],
            remedy="See the Redis log.",
        ) from error


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
