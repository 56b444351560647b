"""Which versions of a template have jobs that have not ended, counted from the indexes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from contract import keys
from contract.errors import InvalidInput
from contract.ids import tenant_of
from contract.record_hash import whole

_BATCH = 256  # ids asked for at once
_FIELDS = ("template", "version", "state")
_UNFINISHED = (b"queued", b"running")


def count_pinned(client: Any, tenant: str, template: str) -> dict[int, int]:
    """Version -> unfinished jobs, in batches; nothing is held up while it counts.

    Claimed jobs go from the waiting to the running set and some come back. The running ones are
    looked at before and after the waiting ones, so that a job must move twice in that time to be
    missed. What is no job of the tenant's, or has a damaged record, is passed over: producers can
    write these sets.
    """
    found: Counter[int] = Counter()
    seen: set[str] = set()
    running, waiting = keys.running(tenant), keys.waiting(tenant, template)
    for index in (running, waiting, running):
        for batch in _members(client, index):
            new = [job_id for job_id in _job_ids(batch, tenant) if job_id not in seen]
            seen.update(new)
            found.update(_versions(client, new, template))
    return dict(found)


def _members(client: Any, index: str) -> Iterator[list[bytes]]:
    """All of a sorted set that stay in it meanwhile; a member may come twice."""
    cursor = 0
    while True:
        cursor, pairs = client.zscan(index, cursor=cursor, count=_BATCH)
        yield [member for member, _ in pairs]
        if cursor == 0:
            return


def _job_ids(entries: list[bytes], tenant: str) -> list[str]:
    found = []
    for entry in dict.fromkeys(entries):
        try:
            job_id = entry.decode("ascii")
            ours = tenant_of(job_id) == tenant
        except (UnicodeDecodeError, InvalidInput):
            continue
        if ours:
            found.append(job_id)
    return found


def _versions(client: Any, job_ids: list[str], template: str) -> Iterator[int]:
    if not job_ids:
        return
    pipe = client.pipeline(transaction=False)
    for job_id in job_ids:
        pipe.hmget(keys.job(job_id), *_FIELDS)
    # A damaged record's error stands in its place and must not hide the others.
    for record in pipe.execute(raise_on_error=False):
        if isinstance(record, Exception):
            continue
        name, version, state = record
        if name != template.encode() or state not in _UNFINISHED:
            continue
        try:
            yield whole({b"version": version or b""}, b"version")
        except ValueError:
            continue
