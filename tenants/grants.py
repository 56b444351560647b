"""What each Redis user may do: which commands, on which keys and channels, and what for.

A grant becomes one ACL selector, so that a command is allowed on the keys of its own grant alone.
A producer may LPUSH to its queues and SET its idempotency keys, but not SET a queue, which would
leave a key of another type where all workers look for messages. No categories: what is not listed
is refused, also what a later Redis adds.

Commands inside a function are checked as if its caller had sent them, and a function's keys must be
readable and writable by whoever calls it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contract import keys
from contract.users import RedisUser, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Commands on keys (`~` read and write, `%R~` read, `%W~` write) and channels (`&`)."""

    purpose: str
    commands: str
    on: tuple[str, ...] = ()

    @property
    def rules(self) -> list[str]:
        """ACL SETUSER's words for it."""
        words = [*self.on, *(f"+{command}" for command in self.commands.split())]
        # Outside of selectors are commands alone, no keys: there nothing can combine.
        return [f"({' '.join(words)})"] if self.on else words


# What a connection needs before its first command. AUTH and HELLO need no permission.
_CONNECT = Grant(
    purpose="connect: choose a database, give a name, look whether Redis is there",
    commands="ping select client|setname client|setinfo",
)
_CLOCK = Grant(purpose="the server's clock", commands="time")


def grants_of(user: RedisUser) -> list[Grant]:
    """All that a user may do."""
    match user:
        case RedisUser(role=Role.PRODUCER, tenant=str(tenant)):
            return [_CONNECT, _CLOCK, *_producer(tenant)]
        case RedisUser(role=Role.ADMIN, tenant=str(tenant)):
            return [_CONNECT, _CLOCK, *_admin(tenant)]
        case _:
            return [_CONNECT, _CLOCK, *_worker()]


def rules_of(grants: Iterable[Grant]) -> list[str]:
    """ACL SETUSER's words for these grants and nothing besides; passwords stay as they are."""
    nothing = ["resetkeys", "resetchannels", "-@all", "clearselectors"]
    return [*nothing, *(rule for grant in grants for rule in grant.rules)]


def _producer(tenant: str) -> list[Grant]:
    """Submit, look, wait, cancel; read templates."""
    any_job, any_key = keys.job(f"{tenant}.*"), f"pq:{tenant}:idem:*"
    queued, running, waiting = keys.queued(tenant), keys.running(tenant), keys.waiting(tenant, "*")
    limits, rate = keys.limits(tenant), keys.rate(tenant)
    outcomes, flow = keys.outcomes(tenant, "*", "*"), keys.flow(tenant, "*")
    return [
        Grant(
            purpose="job functions: submit, find, withdraw, cancel, score, state",
            commands="fcall",
            on=_read_write(any_job, any_key, queued, running, waiting, rate),
        ),
        Grant(purpose="what the tenant may have at most", commands="hmget", on=_read(limits)),
        Grant(
            purpose="what is left of its rate", commands="hmget hset pexpire", on=_read_write(rate)
        ),
        Grant(
            purpose="records of its jobs, results among them",
            commands="hget hmget hgetall hkeys hstrlen hset hincrby del pexpire",
            on=_read_write(any_job),
        ),
        Grant(
            purpose="answers of its jobs while they are written",
            commands="xrange",
            on=_read(keys.pieces(f"{tenant}.*")),
        ),
        Grant(
            purpose="scores of a rollout's jobs", commands="xadd pexpire", on=_read_write(outcomes)
        ),
        Grant(purpose="count submits", commands="hincrby pexpire", on=_read_write(flow)),
        Grant(purpose="idempotency keys", commands="get set del", on=_read_write(any_key)),
        Grant(purpose="queued jobs", commands="zadd zrem zcard", on=_read_write(queued)),
        Grant(purpose="running jobs that are late end", commands="zrem", on=_write(running)),
        Grant(
            purpose="waiting jobs of a template, to hold limits.max_queue",
            commands="zadd zrem zcount zremrangebyscore",
            on=_read_write(waiting),
        ),
        Grant(purpose="ring for a job", commands="lpush", on=_write(keys.messages(f"{tenant}/*"))),
        Grant(
            purpose="hear of ended jobs; tell of a cancelled one",
            commands="subscribe unsubscribe publish",
            on=(f"&{keys.notices(tenant)}",),
        ),
        _see_queues(tenant),
        *_read_templates(tenant),
    ]


def _see_queues(tenant: str) -> Grant:
    return Grant(
        purpose="which jobs wait, run and are dead, for `prefillq ui`: their ids",
        commands="zcard zcount zrange",
        on=_read(keys.waiting(tenant, "*"), keys.running(tenant), keys.dead(tenant)),
    )


def _read_templates(tenant: str) -> list[Grant]:
    return [
        Grant(purpose="names of templates", commands="smembers", on=_read(keys.templates(tenant))),
        Grant(
            purpose="which version a number or label means",
            commands="hget hmget hgetall hkeys hlen",
            on=_read(
                keys.versions(tenant, "*"), keys.labels(tenant, "*"), keys.retired(tenant, "*")
            ),
        ),
        Grant(purpose="versions", commands="get", on=_read(keys.version(tenant, "*", "*"))),
        Grant(
            purpose="revisions and rollouts of templates",
            commands="get mget getrange",
            on=_read(keys.revision(tenant, "*"), keys.rollout(tenant, "*")),
        ),
        Grant(
            purpose="which templates have a rollout",
            commands="smembers",
            on=_read(keys.rollouts(tenant)),
        ),
        Grant(
            purpose="what was moved when by whom",
            commands="xrange xrevrange",
            on=_read(keys.journal(tenant, "*")),
        ),
        _read_outcomes(tenant),
    ]


def _move_templates(tenant: str) -> list[Grant]:
    """Beside reading: what every move writes, whatever else it may."""
    labels, rollouts = keys.labels(tenant, "*"), keys.rollouts(tenant)
    revision, rollout = keys.revision(tenant, "*"), keys.rollout(tenant, "*")
    journal = keys.journal(tenant, "*")
    return [
        Grant(
            purpose="registry functions: move, note",
            commands="fcall",
            on=_read_write(revision, journal, labels, rollout, rollouts),
        ),
        Grant(purpose="count moves", commands="incr", on=_read_write(revision)),
        Grant(purpose="write the journal", commands="xadd", on=_read_write(journal)),
        Grant(purpose="move labels", commands="hset hdel", on=_read_write(labels)),
        Grant(purpose="rollouts", commands="set del", on=_read_write(rollout)),
        Grant(
            purpose="which templates have a rollout",
            commands="sadd srem",
            on=_read_write(rollouts),
        ),
    ]


def _read_outcomes(tenant: str) -> Grant:
    return Grant(
        purpose="how the jobs of a rollout ended",
        commands="xrevrange",
        on=_read(keys.outcomes(tenant, "*", "*")),
    )


def _admin(tenant: str) -> list[Grant]:
    """Publish templates, move labels, lead rollouts; no jobs."""
    numbers, versions = keys.numbers(tenant, "*"), keys.versions(tenant, "*")
    retired = keys.retired(tenant, "*")
    labels, names = keys.labels(tenant, "*"), keys.templates(tenant)
    version = keys.version(tenant, "*", "*")
    revision, rollout = keys.revision(tenant, "*"), keys.rollout(tenant, "*")
    journal, rollouts = keys.journal(tenant, "*"), keys.rollouts(tenant)
    return [
        Grant(
            purpose="registry functions: publish",
            commands="fcall",
            on=_read_write(
                numbers, versions, labels, names, version, revision, journal, rollout, rollouts
            ),
        ),
        Grant(
            purpose="numbers and digests of versions, and which are retired",
            commands="hget hgetall hkeys hlen hexists hset hsetnx hdel",
            on=_read_write(numbers, versions, retired),
        ),
        Grant(purpose="names of templates", commands="smembers sadd", on=_read_write(names)),
        Grant(purpose="versions", commands="get set exists", on=_read_write(version)),
        *_move_templates(tenant),
        *_read_templates(tenant),
        Grant(
            purpose="both versions' answers to a rollout's shadowed jobs",
            commands="xrevrange",
            on=_read(keys.shadowed(tenant, "*")),
        ),
        _see_queues(tenant),
        Grant(
            purpose="what the tenant may have at most",
            commands="hmget",
            on=_read(keys.limits(tenant)),
        ),
    ]


def _worker() -> list[Grant]:
    """Run the jobs of all tenants; read templates and lead their rollouts."""
    any_job = keys.job("*.*")
    queued, running, waiting = keys.queued("*"), keys.running("*"), keys.waiting("*", "*")
    held, dead, retries = keys.held("*"), keys.dead("*"), keys.retries("*")
    messages, unacked = keys.messages("*/*"), keys.messages("unacked")
    unacked_index, mutex = keys.messages("unacked_index"), keys.messages("unacked_mutex")
    return [
        Grant(
            purpose="job functions: claim, renew, commit and all others but submit",
            commands="fcall",
            on=_read_write(any_job, queued, running, waiting, held, dead, retries),
        ),
        Grant(
            purpose="records of jobs",
            commands="hget hmget hgetall hstrlen hset hdel hincrby pexpire",
            on=_read_write(any_job),
        ),
        Grant(
            purpose="queued and running jobs; the janitor's look for late ones",
            commands="zadd zrem zrange zcard zscore",
            on=_read_write(queued, running),
        ),
        Grant(
            purpose="jobs over max_running, which wait for another to end",
            commands="zadd zrem zrange zscore zpopmin",
            on=_read_write(held),
        ),
        Grant(
            purpose="jobs that wait for another attempt",
            commands="zadd zrem zrange",
            on=_read_write(retries),
        ),
        Grant(
            purpose="what tenants may have at most",
            commands="hget hmget",
            on=_read(keys.limits("*")),
        ),
        Grant(
            purpose="jobs that used up their attempts",
            commands="zadd zremrangebyscore",
            on=_read_write(dead),
        ),
        Grant(purpose="waiting jobs of a template", commands="zadd zrem", on=_write(waiting)),
        Grant(
            purpose="count ended jobs",
            commands="hincrby pexpire",
            on=_read_write(keys.flow("*", "*")),
        ),
        Grant(
            purpose="which versions have unfinished jobs",
            commands="zscan",
            on=_read(running, waiting),
        ),
        Grant(
            purpose="how the jobs of a rollout ended",
            commands="xadd pexpire",
            on=_write(keys.outcomes("*", "*", "*")),
        ),
        Grant(
            purpose="answers of jobs while they are written",
            commands="xadd pexpire",
            on=_write(keys.pieces("*.*")),
        ),
        Grant(
            purpose="jobs that a canary answers too, unseen",
            commands="lpush ltrim rpop rpush expire",
            on=_read_write(keys.shadow("*", "*")),
        ),
        Grant(
            purpose="both answers to such jobs",
            commands="xadd expire",
            on=_write(keys.shadowed("*", "*")),
        ),
        Grant(
            purpose="one worker at a time looks after a rollout",
            commands="set get",
            on=_read_write(keys.conductor("*", "*")),
        ),
        Grant(
            purpose="how many they are, for metrics and 'prefillq scale'",
            commands="zcount zcard zrange",
            on=_read(waiting, held),
        ),
        Grant(
            purpose="how many come and go, for 'prefillq scale'",
            commands="hlen hmget",
            on=_read(keys.flow("*", "*")),
        ),
        _see_queues("*"),
        Grant(
            purpose="tell of ended jobs; hear of them, for `prefillq ui`",
            commands="publish subscribe unsubscribe",
            on=(f"&{keys.notices('*')}",),
        ),
        Grant(
            purpose="take messages, put them back, ring again, see whose turn is next",
            commands="brpop lpush rpush llen lpos lindex",
            on=_read_write(messages, keys.messages(f"{keys.UNUSED_QUEUE}*")),
        ),
        Grant(
            purpose="messages taken and not done (kombu)",
            commands="hset hget hdel watch hlen hvals",
            on=_read_write(unacked),
        ),
        Grant(
            purpose="by when they must be done",
            commands="zadd zrem zrange",
            on=_read_write(unacked_index),
        ),
        Grant(purpose="transactions of both", commands="multi exec unwatch"),
        Grant(
            purpose="who puts overdue messages back (a lock of redis-py, with its script)",
            commands="set get del evalsha",
            on=_read_write(mutex),
        ),
        Grant(purpose="that lock's script", commands="script|load"),
        Grant(purpose="which tenants there are", commands="smembers", on=_read(keys.TENANTS)),
        *_read_templates("*"),
        *_move_templates("*"),
        Grant(
            purpose="one janitor at a time",
            commands="fcall set get pexpire",
            on=_read_write(keys.JANITOR),
        ),
        Grant(
            purpose="the next message of a queue, by a job function",
            commands="fcall",
            on=_read_write(keys.messages("*/*")),
        ),
        Grant(
            purpose="reports of workers",
            commands="set get del hset hget hmget hgetall hdel expire",
            on=_read_write(keys.worker("*")),
        ),
        Grant(
            purpose="which versions had jobs lately",
            commands="zadd zremrangebyrank zrevrangebyscore expire",
            on=_read_write(keys.used("*")),
        ),
        Grant(
            purpose="list of workers",
            commands="zadd zrem zremrangebyscore zrange",
            on=_read_write(keys.WORKERS),
        ),
    ]


def _read_write(*patterns: str) -> tuple[str, ...]:
    return tuple(f"~{pattern}" for pattern in patterns)


def _read(*patterns: str) -> tuple[str, ...]:
    return tuple(f"%R~{pattern}" for pattern in patterns)


def _write(*patterns: str) -> tuple[str, ...]:
    return tuple(f"%W~{pattern}" for pattern in patterns)
