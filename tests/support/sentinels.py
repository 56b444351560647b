"""A Redis with two replicas and three sentinels, as real processes on this machine."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import redis

from local.guard import start_guarded
from local.redis_server import EmbeddedRedis, _binary_or_error, _free_port

MASTER = "prefillq"
DOWN_AFTER_MS = 1000  # a master that is silent for this long is thought to be down
_HOST = "127.0.0.1"


class Sentinel:
    """One `redis-server --sentinel`."""

    def __init__(self, folder: Path, master_port: int) -> None:
        self.port = _free_port()
        config = folder / f"sentinel-{self.port}.conf"
        config.write_text(
            f"bind {_HOST}\nport {self.port}\ndir {folder}\n"
            f"sentinel monitor {MASTER} {_HOST} {master_port} 2\n"
            f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {MASTER} 5000\n",
            "utf-8",
        )
        with (folder / f"sentinel-{self.port}.log").open("wb") as log:
            self.process, self._guard = start_guarded(
                [str(_binary_or_error()), str(config), "--sentinel"],
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._guard.release()

    def master_port(self) -> int:
        """Where it thinks the master is; 0 when it does not say."""
        try:
            with redis.Redis(_HOST, self.port, socket_timeout=1.0) as client:
                found = cast(Any, client).sentinel_get_master_addr_by_name(MASTER)
                return 0 if found is None else int(found[1])
        except redis.RedisError:
            return 0

    def sees(self) -> tuple[int, int]:
        """How many replicas and other sentinels it knows."""
        try:
            with redis.Redis(_HOST, self.port, socket_timeout=1.0) as client:
                state = cast(Any, client).sentinel_master(MASTER)
                return state["num-slaves"], state["num-other-sentinels"]
        except redis.RedisError:
            return 0, 0


class SentinelGroup:
    """Three servers, one of them the master, and three sentinels that agree on which.

    A master writes only while a replica listens: one that was replaced and does not know it yet
    would take writes which are lost when it learns.
    """

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sentinels-")))
        config = {"min-replicas-to-write": "1"}
        servers = [self._stack.enter_context(EmbeddedRedis(config=config)) for _ in range(3)]
        first = servers[0]
        for server in servers[1:]:
            with redis.Redis.from_url(server.url) as client:
                client.replicaof(_HOST, _port(first))
        self.servers = {_port(server): server for server in servers}
        self.sentinels = []
        for _ in range(3):
            sentinel = Sentinel(folder, _port(first))
            self._stack.callback(sentinel.kill)
            self.sentinels.append(sentinel)
        deadline = time.monotonic() + 30
        while any(sentinel.sees() != (2, 2) for sentinel in self.sentinels):
            assert time.monotonic() < deadline, "the sentinels did not find each other"
            time.sleep(0.1)
        with redis.Redis.from_url(first.url) as client:
            while cast(Any, client).info("replication")["min_slaves_good_slaves"] < 2:
                assert time.monotonic() < deadline, "the replicas did not attach"
                time.sleep(0.1)

    @property
    def url(self) -> str:
        """For PREFILLQ_REDIS_URL."""
        hosts = ",".join(f"{_HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"sentinel://{hosts}/0?master={MASTER}"

    @property
    def master(self) -> EmbeddedRedis:
        """The server that most sentinels say is the master."""
        said = [sentinel.master_port() for sentinel in self.sentinels]
        return self.servers[max(set(said), key=said.count)]

    def settle(self, timeout: float = 10.0) -> None:
        """Wait until the replicas have all that the master has."""
        with redis.Redis.from_url(self.master.url) as client:
            assert client.wait(2, round(timeout * 1000)) == 2

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def _port(server: EmbeddedRedis) -> int:
    return int(server.url.rsplit(":", 1)[1].partition("/")[0])
