"""What the chaos run says of the jobs of a killed worker."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from contract.ids import new_job_id
from contract.job_store import Claimed
from contract.records import RedisJobStore
from contract.settings import Settings
from contract.types import Job, VersionRef
from tests.chaos.ledger import Ledger
from tests.chaos.recovery import Recoveries

REF = VersionRef(tenant="acme", template="notes", version=1, digest="0" * 64)


def test_a_job_that_is_claimed_again_is_recovered(
    client: Any, settings: Settings, tmp_path: Path
) -> None:
    """From the kill to the next claim; a job of another worker is none of it."""
    store = RedisJobStore(client, settings)
    jobs = [Job(id=new_job_id("acme"), ref=REF, variables={}) for _ in range(2)]
    for job, pid in zip(jobs, (77, 78), strict=True):
        store.submit(job, input_digest="i")
        assert isinstance(store.claim(job.id, f"host-{pid}-abcd", 0.05), Claimed)
    ledger = Ledger(tmp_path / "events")
    recoveries = Recoveries(client, settings, ("acme",), ledger)
    recoveries.killed("worker-1", 77)
    recoveries.look()
    assert recoveries.done == []
    time.sleep(0.3)
    assert isinstance(store.claim(jobs[0].id, "host-79-abcd", 5.0), Claimed)
    recoveries.look()
    [found] = recoveries.done
    assert (found.job_id, found.worker) == (jobs[0].id, "worker-1")
    assert 0.3 <= found.seconds < 30
    ledger.close()
