"""Redis keys. Everything a tenant owns lies under `pq:<tenant>:` or, for its queues, under
`pq:_broker:<tenant>/`, so that ACL patterns can tell tenants apart; what workers share lies under
names that begin with `_`, as no tenant's does.

What producers may write (jobs and their indexes) and what they may only read (`templates` and all
of `template:`) have no prefix in common either; `tenants.grants` has the patterns.
"""

from __future__ import annotations

import hashlib

PREFIX = "pq:"
WORKERS = "pq:_workers"  # sorted set: worker id -> last heartbeat
TENANTS = "pq:_tenants"  # set: tenants that may have templates, for workers to look into
JANITOR = "pq:_janitor"  # string with an expiry: the worker that sweeps now
BROKER_PREFIX = "pq:_broker:"  # Celery's own keys (kombu's global_keyprefix)
UNUSED_QUEUE = "_unused"  # Celery insists on a default queue; workers look at it once


def job(job_id: str) -> str:
    """Hash: the job record. `job_id` starts with its tenant."""
    tenant, _, rest = job_id.partition(".")
    return f"pq:{tenant}:job:{rest}"


def pieces(job_id: str) -> str:
    """Stream with an expiry: a job's answer as it is written (`contract.pieces`), if it was asked
    for.
    """
    tenant, _, rest = job_id.partition(".")
    return f"pq:{tenant}:pieces:{rest}"


def idempotency(tenant: str, key: str) -> str:
    """String: the id of the job first submitted under this idempotency key."""
    return f"pq:{tenant}:idem:{hashlib.sha256(key.encode('utf-8')).hexdigest()}"


def queued(tenant: str) -> str:
    """Sorted set: ids of queued jobs by when to ring again, should one still be there then."""
    return f"pq:{tenant}:queued"


def waiting(tenant: str, template: str) -> str:
    """Sorted set: ids of a template's queued jobs by deadline; its size is the queue's length."""
    return f"pq:{tenant}:waiting:{template}"


def running(tenant: str) -> str:
    """Sorted set: ids of running jobs by the end of their lease."""
    return f"pq:{tenant}:running"


def dead(tenant: str) -> str:
    """Sorted set: ids of jobs that used up their attempts by the time they did."""
    return f"pq:{tenant}:dead"


def held(tenant: str) -> str:
    """Sorted set: ids of queued jobs that wait for another of the tenant's to end."""
    return f"pq:{tenant}:held"


def retries(tenant: str) -> str:
    """Sorted set: ids of queued jobs that wait for another attempt, by when to ring.

    They are among the queued ones too. This one is not kept in step: the janitor takes out those
    whose attempt has begun.
    """
    return f"pq:{tenant}:retries"


def limits(tenant: str) -> str:
    """Hash: what the tenant may do at most; see `contract.job_store.TenantLimits`."""
    return f"pq:{tenant}:limits"


def rate(tenant: str) -> str:
    """Hash: how many jobs the tenant may submit at once now, and since when that is so."""
    return f"pq:{tenant}:rate"


def notices(tenant: str) -> str:
    """Pub/sub channel: the id of every job that ends."""
    return f"pq:{tenant}:notices"


def templates(tenant: str) -> str:
    """Set: names of the tenant's templates."""
    return f"pq:{tenant}:templates"


def versions(tenant: str, template: str) -> str:
    """Hash: version number -> digest."""
    return f"pq:{tenant}:template:{template}:versions"


def numbers(tenant: str, template: str) -> str:
    """Hash: digest -> version number."""
    return f"pq:{tenant}:template:{template}:numbers"


def version(tenant: str, template: str, digest: str) -> str:
    """String: one published version, msgpack."""
    return f"pq:{tenant}:template:{template}:version:{digest}"


def labels(tenant: str, template: str) -> str:
    """Hash: label -> version number."""
    return f"pq:{tenant}:template:{template}:labels"


def retired(tenant: str, template: str) -> str:
    """Hash: number of a version that takes no new jobs -> when it was retired."""
    return f"pq:{tenant}:template:{template}:retired"


def revision(tenant: str, template: str) -> str:
    """String: how often labels, retired versions, versions or the rollout were changed."""
    return f"pq:{tenant}:template:{template}:revision"


def rollout(tenant: str, template: str) -> str:
    """String: the template's active rollout, JSON (`templates.rollouts.plain`)."""
    return f"pq:{tenant}:template:{template}:rollout"


def journal(tenant: str, template: str) -> str:
    """Stream: every change that `revision` counts, oldest first (`templates.rollouts.journal`)."""
    return f"pq:{tenant}:template:{template}:journal"


def rollouts(tenant: str) -> str:
    """Set: names of the tenant's templates with an active rollout."""
    return f"pq:{tenant}:rollouts"


def outcomes(tenant: str, rollout_id: str, digest: str) -> str:
    """Stream with an expiry: how a rollout's jobs of one version ended, and how they were scored.

    Written by contract/lua/common.lua, where its name is made too.
    """
    return f"pq:{tenant}:outcomes:{rollout_id}:{digest}"


def flow(tenant: str, span: int | str) -> str:
    """Hash with an expiry: jobs that came and went in ten seconds (`contract.load`), by queue.

    `in:triage/<12 hex digits of the model>` is a field. One hash for all templates, since who
    looks at a thousand of them would read thirty for each.

    Written by contract/lua/common.lua, where its name is made too.
    """
    return f"pq:{tenant}:flow:{span}"


def shadow(tenant: str, rollout_id: str) -> str:
    """List with an expiry: ids of jobs that the canary is to answer too."""
    return f"pq:{tenant}:shadow:{rollout_id}"


def shadowed(tenant: str, rollout_id: str) -> str:
    """Stream with an expiry: both versions' answers to those jobs."""
    return f"pq:{tenant}:shadowed:{rollout_id}"


def conductor(tenant: str, rollout_id: str) -> str:
    """String with an expiry: the worker that looks after a rollout now."""
    return f"pq:_conductor:{tenant}:{rollout_id}"


def used(model_digest: str) -> str:
    """Sorted set with an expiry: versions of a model by the time of their last job."""
    return f"pq:_used:{model_digest[:12]}"


def worker(worker_id: str) -> str:
    """String with an expiry: the worker's last report but for its templates, msgpack."""
    return f"pq:_worker:{worker_id}"


def worker_templates(worker_id: str) -> str:
    """Hash with an expiry: template's address -> what the worker says of it, msgpack.

    Written where something changed; under "" the number of the change, which tells a worker
    whether all that it wrote is still there.
    """
    return f"{worker(worker_id)}:templates"


def messages(queue_name: str) -> str:
    """List: the messages that wait in a Celery queue."""
    return f"{BROKER_PREFIX}{queue_name}"


def queue(tenant: str, template: str, model_digest: str) -> str:
    """The Celery queue of a template's versions for one model.

    A worker consumes only what its model can run, so a job waits for the right weights
    instead of failing on others.
    """
    return f"{tenant}/{template}/{model_digest[:12]}"


def tenant_of_queue(queue_name: str) -> str:
    """The tenant whose messages a Celery queue carries."""
    return queue_name.partition("/")[0]
