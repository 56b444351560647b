"""What PREFILLQ_REDIS_URL may say, and the same in the words of redis-py and of kombu.

- `redis://`, `rediss://` and `unix://` name one server, as redis-py reads them.
- `sentinel://[user:password@]host[:port][,host[:port]...][/db][?master=NAME]` names sentinels,
  which know where the master is now. User and password are those of the Redis; sentinels that
  want their own take `sentinel_username` and `sentinel_password` from the query.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

SENTINEL = "sentinel://"
SCHEMES = ("redis://", "rediss://", "unix://", SENTINEL)
SENTINEL_PORT = 26379
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@/?#\[\],;]+)(?::(\d{1,5}))?")
_OPTIONS = {"master", "sentinel_username", "sentinel_password"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelUrl:
    """A Redis whose address the sentinels know."""

    sentinels: tuple[tuple[str, int], ...]  # host, port
    master: str = "mymaster"  # the name under which they know it
    db: int = 0
    login: str = ""  # as it stands in the URL, "user:password" percent-encoded
    sentinel_username: str | None = None
    sentinel_password: str | None = None

    @property
    def username(self) -> str | None:
        return unquote(self.login.partition(":")[0]) or None

    @property
    def password(self) -> str | None:
        return unquote(self.login.partition(":")[2]) or None

    @property
    def hosts(self) -> str:
        """`host:port,host:port`, without any password."""
        return ",".join(f"{_bracketed(host)}:{port}" for host, port in self.sentinels)


def check_redis_url(url: str) -> str:
    """Return the URL if it can be used. Raises ValueError that does not show it."""
    if not url.startswith(SCHEMES):
        raise ValueError(f"expected {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}")
    if url.startswith(SENTINEL):
        parse_sentinel_url(url)
        return url
    if any(name.startswith("ssl_") for name in parse_qs(urlsplit(url).query)):
        # The broker's connections would read them in another way.
        raise ValueError("no ssl_ options in the URL: PREFILLQ_REDIS_CA_FILE has their place")
    try:
        urlsplit(url).port  # noqa: B018 - reading it is what checks it
    except ValueError:
        # Without the cause: it quotes the URL, which may hold a password.
        raise ValueError(
            "a URL whose port is a number; percent-encode /, # and ? in a password"
        ) from None
    return url


def parse_sentinel_url(url: str) -> SentinelUrl:
    """Read a `sentinel://` URL. Raises ValueError that does not show it."""
    # By hand: urlsplit takes one host only, and its errors quote the URL.
    place, _, asked = url.removeprefix(SENTINEL).partition("?")
    netloc, _, path = place.partition("/")
    login, _, hosts = netloc.rpartition("@")
    sentinels = []
    for host in hosts.split(","):
        match = _HOST.fullmatch(host)
        if match is None or not 0 < int(match[2] or SENTINEL_PORT) < 2**16:
            raise ValueError("sentinels as host:port,host:port; percent-encode / in a password")
        sentinels.append((match[1].strip("[]"), int(match[2] or SENTINEL_PORT)))
    db = path.strip("/") or "0"
    if not db.isdecimal():
        raise ValueError("a database number after the sentinels, as in /0")
    query = parse_qs(asked, keep_blank_values=True)
    if unknown := sorted(set(query) - _OPTIONS):
        raise ValueError(f"of options only {', '.join(sorted(_OPTIONS))}; not {unknown[0][:20]}")
    options = {name: values[-1] for name, values in query.items() if values[-1]}
    return SentinelUrl(sentinels=tuple(sentinels), db=int(db), login=login, **options)


def redacted(url: str) -> str:
    """The URL without its user and password, fit for messages and logs."""
    if url.startswith(SENTINEL):
        address = parse_sentinel_url(url)
        return f"{SENTINEL}{address.hosts}/{address.db}?master={address.master}"
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def broker_url(url: str) -> str:
    """The same server in kombu's spelling."""
    if url.startswith(SENTINEL):
        address = parse_sentinel_url(url)
        login = f"{address.login}@" if address.login else ""
        return ";".join(
            f"{SENTINEL}{login}{_bracketed(host)}:{port}/{address.db}"
            for host, port in address.sentinels
        )
    return url.replace("unix://", "redis+socket://", 1)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
