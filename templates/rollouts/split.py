"""Which jobs a canary takes: a hash of tenant and key, so that the same key always goes one way."""

from __future__ import annotations

from hashlib import sha256

WHOLE = 10_000  # all jobs; a weight counts parts of it, so that one is 0.01 %


def bucket(salt: str, tenant: str, key: str) -> int:
    """0 to 9999. A canary of weight w takes the buckets below w, so that widening moves nobody
    back. Other salts give other buckets, independent of these.
    """
    seed = f"{salt}\0{tenant}\0{key}".encode("utf-8", errors="surrogatepass")
    return int.from_bytes(sha256(seed).digest()[:8]) % WHOLE


def takes(weight: int, *, salt: str, tenant: str, key: str) -> bool:
    """True when the part of `weight` (0 to 10,000) that a salt gives has this key in it."""
    return bucket(salt, tenant, key) < weight
