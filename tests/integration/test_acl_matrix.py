"""What each restricted user may not do, tried against a real Redis: a table, with reasons."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, RedisError

from contract import keys
from contract.load import load_library
from contract.records import job_library
from contract.redis_client import connect
from contract.users import WORKER, RedisUser, Role
from templates.moving import registry_library
from tenants.grants import grants_of, rules_of
from tests.support.two_tenants import ACME, TwoTenants

PRODUCER, ADMIN = ACME[Role.PRODUCER], ACME[Role.ADMIN]
ALL, TENANT = (PRODUCER, ADMIN, WORKER), (PRODUCER, ADMIN)

# Words in braces stand for keys and names; `my_` is acme's, whose users try, `their_` globex's.
SERVER = [
    ("KEYS *", "lists everybody's keys"),
    ("SCAN 0", "lists everybody's keys"),
    ("RANDOMKEY", "names somebody's key"),
    ("DBSIZE", "tells how much all others have"),
    ("INFO", "tells of the server and its load"),
    ("FLUSHDB", "erases everybody's data"),
    ("FLUSHALL", "erases everybody's data"),
    ("SWAPDB 0 1", "takes everybody's data away"),
    ("CONFIG GET *", "has passwords and paths"),
    ("CONFIG SET maxmemory 1", "stops all writes"),
    ("CONFIG REWRITE", "writes the server's configuration"),
    ("ACL LIST", "lists users and their rights"),
    ("ACL USERS", "lists tenants"),
    ("ACL GETUSER default", "has hashes of passwords"),
    ("ACL SETUSER {me} allkeys", "gives itself all rights"),
    ("ACL DELUSER prefillq-worker", "locks all workers out"),
    ("ACL LOG", "names others' keys"),
    ("ACL SAVE", "writes the server's files"),
    ("EVAL return 0", "runs code of its own in the server"),
    ("EVAL_RO return 0", "runs code of its own in the server"),
    ("SCRIPT FLUSH", "takes scripts from others"),
    ("SCRIPT KILL", "stops others' scripts"),
    ("SCRIPT EXISTS {sha}", "tells which scripts others run"),
    ("FUNCTION LOAD REPLACE #!lua", "puts code of its own into the server"),
    ("FUNCTION DELETE {jobs}", "takes the job functions from everybody"),
    ("FUNCTION FLUSH", "takes all functions from everybody"),
    ("FUNCTION LIST", "shows others' code"),
    ("FUNCTION DUMP", "shows others' code"),
    ("FUNCTION RESTORE x", "puts code of its own into the server"),
    ("MONITOR", "shows every command of everybody"),
    ("SLOWLOG GET", "shows others' commands"),
    ("LATENCY LATEST", "shows what others wait for"),
    ("DEBUG SLEEP 0", "stops the server"),
    ("SHUTDOWN NOSAVE", "ends the server"),
    ("SAVE", "stops the server while it writes"),
    ("BGSAVE", "loads memory and disk"),
    ("BGREWRITEAOF", "loads memory and disk"),
    ("REPLICAOF 127.0.0.1 1", "replaces all data by another server's"),
    ("PSYNC ? -1", "copies all data"),
    ("SYNC", "copies all data"),
    ("CLUSTER INFO", "tells of the server"),
    ("MODULE LOAD x.so", "runs native code in the server"),
    ("CLIENT LIST", "shows others' addresses and users"),
    ("CLIENT KILL TYPE normal", "cuts others' connections"),
    ("CLIENT PAUSE 1", "stops everybody"),
    ("CLIENT TRACKING ON BCAST", "is told the names of all keys that change"),
    ("CLIENT NO-EVICT ON", "is served before others in need"),
    ("PUBSUB CHANNELS", "lists tenants"),
    ("PUBSUB NUMSUB {their_notices}", "counts others' waiters"),
    ("PSUBSCRIBE *", "hears everybody's notices"),
    ("PSUBSCRIBE pq:*:notices", "hears everybody's notices"),
    ("SUBSCRIBE __keyevent@0__:set", "hears of all keys that are written"),
    ("SSUBSCRIBE {their_notices}", "hears when another's jobs end"),
    ("OBJECT FREQ {their_labels}", "tells of another's keys"),
    ("MEMORY USAGE {their_labels}", "tells of another's keys"),
    ("TYPE {their_labels}", "tells whether a key of another is there"),
    ("DUMP {their_labels}", "reads another's key"),
    ("RESTORE pq:acme:x 0 x", "writes keys of any type"),
    ("COPY {their_labels} {my_labels}", "reads another's key"),
    ("RENAME {their_labels} {my_labels}", "takes another's key"),
    ("SORT {their_queued} GET *", "reads keys by pattern"),
    ("MIGRATE 127.0.0.1 1 {their_labels} 0 10", "sends a key elsewhere"),
    ("SET anything 1", "writes outside of prefillq's keys"),
    ("GET anything", "reads outside of prefillq's keys"),
    ("SADD {tenants} x", "gives all workers names to look up"),
    ("DEL {tenants}", "hides all templates from all workers"),
]
ANOTHER_TENANT = [
    ("HGETALL {their_job}", "reads another's record"),
    ("HGET {their_job} result", "reads another's result"),
    ("HSET {their_job} state x", "forges another's record"),
    ("DEL {their_job}", "erases another's record"),
    ("PEXPIRE {their_job} 1", "erases another's record"),
    ("GET {their_key}", "finds another's job ids"),
    ("SET {their_key} x", "answers another's submit"),
    ("ZCOUNT {their_waiting} -inf +inf", "reads another's queue length"),
    ("ZRANGE {their_waiting} 0 -1", "reads another's job ids"),
    ("ZRANGE {their_running} 0 -1", "reads another's job ids"),
    ("ZCARD {their_running}", "counts another's jobs"),
    ("HMGET {their_job} state", "reads another's record"),
    ("HSTRLEN {their_job} input", "learns how much another asks"),
    ("FCALL {load}_fields 1 {their_job} 99 state", "reads another's record"),
    ("ZADD {their_waiting} 9e15 x", "fills another's queue"),
    ("ZREM {their_queued} x", "hides another's jobs from the janitor"),
    ("ZADD {their_queued} 0 x", "has the janitor ring for another"),
    ("ZREM {their_running} x", "hides another's jobs from the janitor"),
    ("ZRANGE {their_retries} 0 -1", "lists another's jobs"),
    ("ZREM {their_retries} x", "hides another's jobs from the janitor"),
    ("LLEN {their_queue}", "reads another's queue length"),
    ("LPUSH {their_queue} x", "publishes to another's queue"),
    ("LRANGE {their_queue} 0 -1", "reads another's job ids"),
    ("RPOP {their_queue}", "takes another's messages"),
    ("BRPOP {their_queue} 1", "takes another's messages"),
    ("SUBSCRIBE {their_notices}", "hears when another's jobs end"),
    ("PUBLISH {their_notices} x", "wakes another's waiters"),
    ("SMEMBERS {their_templates}", "lists another's templates"),
    ("HGETALL {their_labels}", "sees what another runs"),
    ("HLEN {their_versions}", "counts another's versions"),
    ("HSET {their_labels} production 1", "changes another's labels"),
    ("GET {their_rollout}", "sees what another is about to run"),
    ("GET {their_revision}", "counts another's moves"),
    ("SMEMBERS {their_rollouts}", "lists another's templates"),
    ("XRANGE {their_journal} - +", "reads who works for another"),
    ("XADD {their_journal} * a b", "forges another's journal"),
    ("SET {their_rollout} x", "splits another's jobs"),
    ("XADD {their_outcomes} * s failed", "ends another's rollout"),
    ("XREVRANGE {their_outcomes} + -", "reads how another's jobs end"),
    ("GET {their_version}", "reads another's template"),
    ("HGETALL {their_flow}", "reads how many jobs another has"),
    ("HINCRBY {their_flow} in:triage/aaaaaaaaaaaa 1", "has workers started for another"),
    ("XREVRANGE {their_shadowed} + -", "reads answers to another's jobs"),
    ("XRANGE {their_pieces} - +", "reads what another's jobs answer"),
    ("XADD {their_pieces} * k end", "answers another's jobs"),
    ("LPUSH {their_shadow} x", "has workers answer another's jobs again"),
    ("FCALL {jobs}_state {their_job_keys} {their_id} 1 x", "looks at another's job"),
    ("FCALL {jobs}_cancel {their_job_keys} {their_id} 1 x", "cancels another's job"),
    ("FCALL {registry}_move 5 {their_moving} x", "moves another's label"),
    ("FCALL {registry}_note 1 {their_rollout} x", "changes another's rollout"),
]
SHARED = [
    ("EVALSHA {sha} 0", "runs what somebody sent"),
    ("SCRIPT LOAD return", "sends code of its own"),
    ("SMEMBERS {tenants}", "lists tenants"),
    ("SISMEMBER {tenants} globex", "finds tenants by guessing"),
    ("ZRANGE {workers} 0 -1", "lists workers"),
    ("GET {worker}", "reads a worker's report"),
    ("HGETALL {worker}:templates", "reads which templates a worker serves"),
    ("HSET {worker}:templates acme/triage x", "says that a worker serves its template"),
    ("SET {janitor} x", "stops the janitor"),
    ("FCALL {jobs}_keep 1 {janitor} x 9", "holds the janitor up"),
    ("HGETALL {unacked}", "reads messages that are being worked on"),
    ("HDEL {unacked} x", "loses messages that are being worked on"),
    ("ZADD {unacked}_index 0 x", "has messages delivered again"),
    ("LPUSH {unacked} x", "breaks a key that all workers use"),
    ("SMEMBERS {bindings}", "lists all queues, where kombu keeps bindings"),
    ("MULTI", "queues up commands; nothing of theirs needs it"),
    ("WATCH {my_queued}", "nothing of theirs needs it"),
]
PRODUCERS = [
    ("HSET {my_labels} production 1", "moves a label"),
    ("HDEL {my_labels} production", "removes a label"),
    ("DEL {my_labels}", "removes all labels"),
    ("HSET {my_versions} 2 x", "makes a version"),
    ("SADD {my_templates} x", "makes a template"),
    ("SET {my_version} x", "changes a published version"),
    ("FCALL {registry}_move 5 {my_moving} x", "moves a label"),
    ("FCALL {registry}_note 1 {my_rollout} x", "changes what the gates found"),
    ("SET {my_rollout} x", "splits jobs as it likes"),
    ("DEL {my_rollout}", "ends a rollout"),
    ("INCR {my_revision}", "refuses all submits"),
    ("SET {my_revision} 0", "lets submits have versions that are not allowed any more"),
    ("XADD {my_journal} * a b", "forges the journal"),
    ("SADD {my_rollouts} x", "has workers look for rollouts"),
    ("HSET {my_retired} 1 x", "retires a version"),
    ("DEL {my_outcomes}", "takes back what was said of a version"),
    ("HGETALL {my_flow}", "nothing of its needs it"),
    ("HMGET {my_flow} in:triage/aaaaaaaaaaaa", "nothing of its needs it"),
    ("DEL {my_flow}", "nothing of its needs it"),
    ("SET {my_flow} x", "leaves workers a key of another type"),
    ("XTRIM {my_outcomes} MAXLEN 0", "takes back what was said of a version"),
    ("SET {my_outcomes} x", "leaves workers a key of another type"),
    ("SET {my_queue} x", "leaves workers a queue that is no list"),
    ("ZADD {my_queue} 1 x", "leaves workers a queue that is no list"),
    ("DEL {my_queue}", "loses messages"),
    ("LLEN {my_queue}", "nothing of its needs it"),
    ("BRPOP {my_queue} 1", "takes messages from workers"),
    ("RPUSH {my_queue} x", "jumps its own queue"),
    ("LPOS {my_queue} x", "nothing of its needs it"),
    ("FCALL {jobs}_head 1 {my_queue} 9", "nothing of its needs it"),
    ("ZADD {my_retries} 0 x", "has the janitor look at jobs before others"),
    ("ZREM {my_retries} x", "hides jobs from the janitor"),
    ("SET {my_running} x", "leaves the janitor an index that is no sorted set"),
    ("SET {my_queued} x", "leaves the janitor an index that is no sorted set"),
    ("XREVRANGE {my_shadowed} + -", "reads what nobody is told"),
    ("XADD {my_shadowed} * job x", "makes answers up"),
    ("XADD {my_pieces} * k end", "answers jobs in a worker's place"),
    ("DEL {my_pieces}", "takes answers from other readers"),
    ("LPUSH {my_shadow} x", "has workers answer jobs again"),
    ("RPOP {my_shadow}", "keeps workers from answering jobs again"),
]
ADMINS = [
    ("HGETALL {my_job}", "reads records and results"),
    ("HMGET {my_job} state", "reads records and results"),
    ("HSTRLEN {my_job} input", "reads records and results"),
    ("FCALL {load}_fields 1 {my_job} 99 state", "reads records and results"),
    ("LPUSH {my_queue} x", "submits"),
    ("ZADD {my_queued} 0 x", "submits"),
    ("SUBSCRIBE {my_notices}", "hears when jobs end"),
    ("DEL {my_labels}", "nothing of its needs it"),
    ("DEL {my_journal}", "has nobody know who moved what"),
    ("XTRIM {my_journal} MAXLEN 0", "has nobody know who moved what"),
    ("XDEL {my_journal} 1-0", "takes an entry back"),
    ("SET {my_revision} 7", "lets an old decision be made"),
    ("DEL {my_revision}", "lets an old decision be made"),
    ("XRANGE {my_pieces} - +", "reads answers"),
    ("XADD {my_outcomes} * s failed", "speaks for jobs"),
    ("SET {my_templates} x", "leaves workers a key of another type"),
    ("SET {my_versions} x", "leaves workers a key of another type"),
    ("FCALL {jobs}_state {my_job_keys} {my_id} 1 x", "looks at jobs"),
    ("HINCRBY {my_flow} in:triage/aaaaaaaaaaaa 1", "has workers started"),
    ("XADD {my_shadowed} * job x", "makes answers up"),
    ("LPUSH {my_shadow} x", "has workers answer jobs again"),
]
WORKERS = [
    ("HSET {my_versions} 2 x", "changes what a tenant published"),
    ("HSET {my_retired} 1 x", "decides for a tenant what takes jobs"),
    ("DEL {my_labels}", "nothing of its needs it"),
    ("DEL {my_journal}", "has nobody know who moved what"),
    ("XTRIM {my_journal} MAXLEN 0", "has nobody know who moved what"),
    ("SET {my_revision} 7", "lets an old decision be made"),
    ("SADD {my_templates} x", "changes what a tenant published"),
    ("SET {my_version} x", "changes what a tenant published"),
    ("DEL {janitor}", "takes the turn of another worker"),
    ("DEL {my_retries}", "nothing of its needs it"),
    ("LRANGE {my_queue} 0 -1", "reads as much as its tenant wrote there"),
    ("DEL {my_job}", "erases records"),
    ("HGETALL {my_flow}", "reads as much as its tenant wrote there"),
    ("DEL {my_flow}", "nothing of its needs it"),
    ("HSET {my_flow} in:triage/aaaaaaaaaaaa 9", "sets what it may only add to"),
    ("SET {my_key} x", "answers submits"),
    ("XRANGE {my_pieces} - +", "nothing of its needs it"),
    ("XREVRANGE {my_shadowed} + -", "nothing of its needs it"),
    ("PUBLISH other x", "speaks on others' channels"),
    ("EVALSHA {sha} 1 anything", "runs scripts on keys that are not its own"),
]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A user, a command that it must be refused, and what the command would give it."""

    user: RedisUser
    command: str
    why: str

    def words(self, names: Mapping[str, str]) -> list[str]:
        return self.command.format(**names, me=self.user.name).split(" ")


TRIALS = [
    Trial(user=user, command=command, why=why)
    for users, rows in (
        (ALL, SERVER),
        (TENANT, ANOTHER_TENANT),
        (TENANT, SHARED),
        ((PRODUCER,), PRODUCERS),
        ((ADMIN,), ADMINS),
        ((WORKER,), WORKERS),
    )
    for command, why in rows
    for user in users
]


def names_of(tenants: TwoTenants) -> dict[str, str]:
    """What the words in braces stand for."""
    found = {
        "tenants": keys.TENANTS,
        "workers": keys.WORKERS,
        "worker": keys.worker("w1"),
        "janitor": keys.JANITOR,
        "unacked": keys.messages("unacked"),
        "bindings": keys.messages("_kombu.binding.prefillq"),
        "jobs": job_library().library,
        "load": load_library().library,
        "registry": registry_library().library,
        "sha": "0" * 40,
    }
    for whose, tenant in (("my", "acme"), ("their", "globex")):
        job_id, version = tenants.jobs[tenant], tenants.versions[tenant]
        of_tenant = {
            "id": job_id,
            "job": keys.job(job_id),
            "job_keys": f"3 {keys.job(job_id)} {keys.queued(tenant)} {keys.running(tenant)}",
            "key": keys.idempotency(tenant, "first"),
            "labels": keys.labels(tenant, "triage"),
            "notices": keys.notices(tenant),
            "queue": tenants.queue(tenant),
            "queued": keys.queued(tenant),
            "running": keys.running(tenant),
            "retries": keys.retries(tenant),
            "shadow": keys.shadow(tenant, "0" * 16),
            "shadowed": keys.shadowed(tenant, "0" * 16),
            "pieces": keys.pieces(f"{tenant}.{'0' * 32}"),
            "templates": keys.templates(tenant),
            "version": keys.version(tenant, "triage", version.digest),
            "versions": keys.versions(tenant, "triage"),
            "retired": keys.retired(tenant, "triage"),
            "revision": keys.revision(tenant, "triage"),
            "rollout": keys.rollout(tenant, "triage"),
            "rollouts": keys.rollouts(tenant),
            "journal": keys.journal(tenant, "triage"),
            "flow": keys.flow(tenant, 179_600_400),
            "outcomes": keys.outcomes(tenant, "0" * 16, version.digest),
            "moving": " ".join(
                make(tenant, "triage")
                for make in (keys.revision, keys.journal, keys.labels, keys.rollout)
            )
            + f" {keys.rollouts(tenant)}",
            "waiting": keys.waiting(tenant, "triage"),
        }
        found |= {f"{whose}_{name}": value for name, value in of_tenant.items()}
    return found


@pytest.fixture(scope="module")
def names(tenants_of_module: TwoTenants) -> dict[str, str]:
    return names_of(tenants_of_module)


@pytest.fixture(scope="module")
def connections(tenants_of_module: TwoTenants) -> Iterator[dict[RedisUser, Any]]:
    """One connection per user."""
    with ExitStack() as stack:
        yield {
            user: stack.enter_context(connect(tenants_of_module.settings_of(user))) for user in ALL
        }


def refused(client: Any, words: list[str]) -> bool:
    try:
        client.execute_command(*words)
    except NoPermissionError:
        return True
    except RedisError:
        pass  # it was let through and failed at something else
    return False


@pytest.mark.parametrize("trial", TRIALS, ids=[f"{t.user.name}: {t.command}" for t in TRIALS])
def test_is_refused(connections: dict[RedisUser, Any], names: dict[str, str], trial: Trial) -> None:
    """With NOPERM, which Redis says before it looks at anything else."""
    assert refused(connections[trial.user], trial.words(names)), f"{trial.user.name} {trial.why}"


@pytest.mark.parametrize("user", TENANT, ids=lambda user: user.name)
@pytest.mark.parametrize("tenant", ["acme", "globex"])
def test_tenants_cannot_look_at_the_load(
    connections: dict[RedisUser, Any], user: RedisUser, tenant: str
) -> None:
    """The functions read what their caller may read, and its words for why not are Redis's own."""
    library = load_library().library
    looks = [
        ("sight", f"pq:{tenant}:", f"pq:_broker:{tenant}/", "9", "9", "9", "1", "x", "3", "triage"),
        ("unacked", keys.messages("unacked"), "9"),
    ]
    for name, *args in looks:
        with pytest.raises(RedisError, match="ACL failure in script"):
            connections[user].fcall(f"{library}_{name}", 0, *args)
    [_, reply] = [connections[WORKER].fcall(f"{library}_{n}", 0, *args) for n, *args in looks]
    assert b'"total":0' in reply


@pytest.mark.parametrize("user", TENANT, ids=lambda user: user.name)
def test_nobody_makes_redis_look_for_long(
    connections: dict[RedisUser, Any], user: RedisUser
) -> None:
    """A look at all spans since the epoch, of a thousand templates: refused before it begins; and
    cut short for those who may look.
    """
    names = [f"t{number} {'a' * 12}" for number in range(1000)]
    words = ("pq:acme:", "pq:_broker:acme/", *["1000000000"] * 4, "x", "3", *names)
    sight = f"{load_library().library}_sight"
    began = time.monotonic()
    with pytest.raises(RedisError, match="ACL failure in script"):
        connections[user].fcall(sight, 0, *words)
    connections[WORKER].fcall(sight, 0, *words)
    assert time.monotonic() - began < 5


def test_the_table_is_not_short() -> None:
    """Over forty commands for each user, none of them twice."""
    assert min(Counter(trial.user for trial in TRIALS).values()) > 40
    assert max(Counter((trial.user, trial.command) for trial in TRIALS).values()) == 1


def test_what_was_tried_changed_nothing(tenants_of_module: TwoTenants) -> None:
    """Both tenants' jobs, labels and queues are as they were made."""
    tenants = tenants_of_module
    operator = tenants.operator
    for tenant in ("acme", "globex"):
        assert operator.hget(keys.job(tenants.jobs[tenant]), "state") == b"queued"
        assert operator.hgetall(keys.labels(tenant, "triage")) == {b"production": b"1"}
        assert operator.llen(tenants.queue(tenant)) == 1
    assert operator.smembers(keys.TENANTS) == {b"acme", b"globex"}


@pytest.mark.parametrize(
    ("more", "command"),
    [
        (["~pq:*", "+hgetall"], "HGETALL {their_job}"),
        (["~pq:*", "+smembers"], "SMEMBERS {tenants}"),
        (["+@dangerous"], "KEYS *"),
        (["+acl|users"], "ACL USERS"),
        (["&*", "+publish"], "PUBLISH {their_notices} x"),
        (["(~pq:acme:* +hset)"], "HSET {my_labels} production 1"),
        (["(~pq:_broker:* +lpush)"], "LPUSH {their_queue} x"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_wider_grant_is_noticed(
    tenants_of_module: TwoTenants, names: dict[str, str], more: list[str], command: str
) -> None:
    """Fault: a producer with one rule more, and a row of the table that is refused no longer."""
    assert command in {trial.command for trial in TRIALS if trial.user == PRODUCER}
    tenants = tenants_of_module
    rules, operator = rules_of(grants_of(PRODUCER)), tenants.operator
    words = Trial(user=PRODUCER, command=command, why="").words(names)
    for extra, expected in ([], True), (more, False):
        operator.execute_command("ACL", "SETUSER", "wider", "reset", "on", "nopass", *rules, *extra)
        url = tenants.server.url.replace("redis://", "redis://wider:any@")
        try:
            with connect(tenants.settings.model_copy(update={"redis_url": url})) as client:
                assert refused(client, words) is expected
        finally:
            operator.execute_command("ACL", "DELUSER", "wider")
            operator.lrem(names["their_queue"], 0, "x")
