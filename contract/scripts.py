"""Lua that runs inside Redis: as scripts by default, as functions for users who may not send any.

A script is sent once and then called by its digest (EVALSHA), which every Redis since 6.2 can do;
Redis forgets scripts when it restarts, so whoever calls one must be allowed to send it again. The
users of `contract.users` are not. For them an operator stores the same sources as functions, which
Redis 7 writes to its files and replicates like data.

Names of functions hold the digest of their library, so that releases with different scripts run
beside each other on one Redis.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.client import Pipeline

from contract.redis_client import AsyncClient, Client
from contract.settings import Settings
from contract.users import user_of

LIBRARY_PREFIX = "prefillq_"

Argument = float | str | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLibrary:
    """Scripts that belong together. Each may use KEYS and ARGV and what its source defines.

    `flags` are Redis's for functions. Without any, a function is refused as a whole while Redis
    is out of memory; a script is refused at its first command that needs memory.
    """

    name: str
    sources: Mapping[str, str]
    flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def library(self) -> str:
        """The name under which Redis holds it."""
        content = repr((sorted(self.sources.items()), sorted(self.flags.items())))
        digest = hashlib.sha256(content.encode("utf-8")).hexdigest()
        return f"{LIBRARY_PREFIX}{self.name}_{digest[:16]}"

    def code(self) -> str:
        """The library's source for FUNCTION LOAD."""
        library = self.library
        functions = [
            f"redis.register_function{{function_name = '{library}_{script}',"
            f" flags = {{{self._flag(script)}}}, callback = function(KEYS, ARGV)\n{source}\nend}}"
            for script, source in self.sources.items()
        ]
        return "\n".join([f"#!lua name={library}", *functions])

    def _flag(self, script: str) -> str:
        return f"'{self.flags[script]}'" if script in self.flags else ""


class Scripts:
    """Calls the scripts of a library in the way that the client's user may."""

    def __init__(
        self, client: Client | AsyncClient, settings: Settings, library: ScriptLibrary
    ) -> None:
        self._client: Any = client
        self._library: str | None = None
        if user_of(settings.redis_url) is None:
            self._scripts: dict[str, Any] = {
                name: client.register_script(source) for name, source in library.sources.items()
            }
        else:
            self._library = library.library

    def run(
        self,
        script: str,
        *,
        keys: Sequence[str],
        args: Sequence[Argument],
        pipe: Pipeline | None = None,
    ) -> Any:
        """The script's reply; with `pipe` the call is only added to it."""
        if pipe is not None:
            return self.add(script, keys=keys, args=args, pipe=pipe)
        if self._library is None:
            return self._scripts[script](keys=keys, args=args)
        return self._client.fcall(f"{self._library}_{script}", len(keys), *keys, *args)

    def add(self, script: str, *, keys: Sequence[str], args: Sequence[Argument], pipe: Any) -> None:
        """Add the call to a pipeline, which may be asyncio's."""
        if self._library is None:
            source = self._scripts[script]
            pipe.scripts.add(source)  # the pipeline sends first what Redis lacks
            pipe.evalsha(source.sha, len(keys), *keys, *args)
        else:
            pipe.fcall(f"{self._library}_{script}", len(keys), *keys, *args)
