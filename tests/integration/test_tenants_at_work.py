"""Two tenants and a worker under their own users: what they need works, and nothing is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.errors import Conflict, NotFound, RedisRefused
from contract.ids import new_job_id
from contract.redis_client import Client
from contract.types import JobState
from contract.users import WORKER, RedisUser, Role
from producer import Producer
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from templates.rollouts.journal import replay
from templates.rollouts.rollout import Phase
from tenants.accounts import Accounts
from tests.support.answering import Answering
from tests.support.published import COMPILED, MODEL, make_spec
from tests.support.redis_state import out_of_memory
from tests.support.rollouts import FINDING, make_plan
from tests.support.two_tenants import ACME, TICKET, TwoTenants, two_tenants
from worker.catalog import Catalog

PRODUCER, ADMIN = ACME[Role.PRODUCER], ACME[Role.ADMIN]


def registry_of(client: Client, tenants: TwoTenants, user: RedisUser) -> Registry:
    return Registry(client, tenants.settings_of(user))


# --- what each needs


def test_a_producer_submits_waits_reads_and_cancels(tenants: TwoTenants) -> None:
    """One by one and many at once, under keys, by version and label, with its worker's answers."""
    with tenants.producing(PRODUCER) as producer, Answering(tenants.settings_of(WORKER)):
        one = producer.submit("acme/triage", TICKET, idempotency_key="k")
        assert one.result(timeout=20).text == "echo: refund?"
        assert producer.submit("acme/triage", TICKET, idempotency_key="k") == one
        with pytest.raises(Conflict):
            producer.submit("acme/triage", {"ticket": "other"}, idempotency_key="k")
        many = producer.submit_many("acme/triage@1", [TICKET] * 300)
        assert set(producer.wait(many, timeout=60)) == set(many)
        assert {job.status() for job in many} == {JobState.SUCCEEDED}
    with tenants.producing(PRODUCER) as producer:
        queued = producer.submit("acme/triage@production", TICKET)
        assert queued.cancel() is JobState.CANCELLED
        with pytest.raises(NotFound, match="acme/triage"):
            producer.submit("acme/triag", TICKET)
        with pytest.raises(NotFound, match="versions 1 to"):
            producer.submit("acme/triage@99", TICKET)
        with pytest.raises(NotFound):
            producer.handle(new_job_id("acme")).status()


def test_an_admin_publishes_and_moves_labels(tenants: TwoTenants) -> None:
    """And lists its own templates when it asks for all."""
    with tenants.client_of(ADMIN) as client:
        registry = registry_of(client, tenants, ADMIN)
        published = registry.publish(make_spec("acme", "draft"), COMPILED, MODEL)
        assert published.created
        again = registry.publish(make_spec("acme", "draft", text="Two: "), COMPILED, MODEL)
        ref = again.version.ref
        registry.set_label("acme", "draft", "canary", ref.version, expect=None)
        registry.remove_label("acme", "draft", "canary")
        assert registry.labels("acme", "draft") == {"production": 1}
        assert [s.ref.version for s in registry.versions("acme", "draft")] == [1, 2]
        assert {t.name for t in registry.list_templates()} >= {"draft", "triage"}
        assert {t.tenant for t in registry.list_templates()} == {"acme"}


def test_a_rollout_under_users(tenants: TwoTenants) -> None:
    """An admin starts it, a worker leads it, producers get its versions and score them."""
    here = ("acme", "led")
    with tenants.client_of(ADMIN) as client, tenants.client_of(WORKER) as worker:
        registry = registry_of(client, tenants, ADMIN)
        for text in ("One: ", "Two: "):
            registry.publish(make_spec(*here, text=text), COMPILED, MODEL)
        rollouts = Rollouts(registry)
        conducted = Rollouts(registry_of(worker, tenants, WORKER))
        rollout = rollouts.start(*here, make_plan(steps=(10_000,)))
        assert conducted.active("acme") == {"led": rollout}
        for phase, step in ((Phase.WARMING, -1), (Phase.BAKING, 0)):
            rollout = conducted.advance(
                *here, expect=rollout, phase=phase, step=step, findings=[FINDING], who="w1"
            )
        noted = conducted.note(*here, expect=rollout, findings=[])
        with tenants.producing(PRODUCER) as producer, Answering(tenants.settings_of(WORKER)):
            job = producer.submit("acme/led", TICKET, sticky_key="c", idempotency_key="r")
            assert job.result(timeout=20).ref.version == 2
            job.score("quality", 0.5)
            assert job.view().scores == {"quality": 0.5}
            assert producer.submit("acme/led@1", TICKET).result(timeout=20).ref.version == 1
        conducted.promote(*here, expect=noted, who="w1")
        registry.retire(*here, 1)
        with tenants.producing(PRODUCER) as producer, pytest.raises(NotFound, match="retired"):
            producer.submit("acme/led@1", TICKET)
        for reader in (PRODUCER, ADMIN, WORKER):
            with tenants.client_of(reader) as reading:
                journal = registry_of(reading, tenants, reader).journal(*here)
                assert journal[-1].action == "retire"


@pytest.mark.parametrize("act", ["start", "pause", "promote", "abort"])
def test_a_producer_leads_no_rollout(tenants: TwoTenants, act: str) -> None:
    """It may look at one."""
    here = ("acme", "looked")
    with tenants.client_of(ADMIN) as client:
        registry = registry_of(client, tenants, ADMIN)
        for text in ("One: ", "Two: "):
            registry.publish(make_spec(*here, text=text), COMPILED, MODEL)
        rollouts = Rollouts(registry)
        if act != "start" and rollouts.get(*here) is None:
            rollouts.start(*here, make_plan())
        before = registry.sight(*here).state
        with tenants.client_of(PRODUCER) as looking:
            produced = Rollouts(registry_of(looking, tenants, PRODUCER))
            assert produced.get(*here) == before.rollout
            arguments = [make_plan()] if act == "start" else []
            with pytest.raises(RedisRefused, match="admin"):
                getattr(produced, act)(*here, *arguments)
        assert registry.sight(*here).state == before
        if before.rollout is not None:
            rollouts.abort(*here)
    tenants.operator.acl_log_reset()


def test_a_worker_retires_nothing(tenants: TwoTenants) -> None:
    """Though it may move labels, which a promotion does; nothing is half done."""
    here = ("acme", "kept")
    with tenants.client_of(ADMIN) as client, tenants.client_of(WORKER) as worker:
        registry = registry_of(client, tenants, ADMIN)
        for text in ("One: ", "Two: "):
            registry.publish(make_spec(*here, text=text), COMPILED, MODEL)
        before = registry.sight(*here).state
        with pytest.raises(RedisRefused):
            registry_of(worker, tenants, WORKER).retire(*here, 2)
        assert registry.sight(*here).state == before
        assert replay(registry.journal(*here)) == before
    tenants.operator.acl_log_reset()


def test_a_worker_finds_what_tenants_with_users_publish(tenants: TwoTenants) -> None:
    """Though their admins may not write the set of tenants."""
    with tenants.client_of(WORKER) as client:
        catalog = Catalog(
            client=client,
            settings=tenants.settings_of(WORKER),
            registry=registry_of(client, tenants, WORKER),
            model_digest=MODEL.model_digest,
        )
        assert {"acme", "globex"} <= {served.tenant for served in catalog.refresh()}


@pytest.mark.parametrize(
    ("user", "act"),
    [
        (PRODUCER, lambda registry: registry.set_label("acme", "triage", "canary", 1)),
        (PRODUCER, lambda registry: registry.remove_label("acme", "triage", "production")),
        (PRODUCER, lambda registry: registry.publish(make_spec("acme", "x"), COMPILED, MODEL)),
        (ADMIN, lambda registry: registry.publish(make_spec("globex", "x"), COMPILED, MODEL)),
        (ADMIN, lambda registry: registry.list_templates("globex")),
    ],
    ids=["label", "remove label", "publish", "publish for another", "list another's"],
)
def test_what_is_refused_says_whose_it_is(tenants: TwoTenants, user: RedisUser, act: Any) -> None:
    """An error of ours that names the admin, not a traceback of redis-py."""
    with tenants.client_of(user) as client, pytest.raises(RedisRefused, match="admin"):
        act(registry_of(client, tenants, user))
    tenants.operator.acl_log_reset()


def test_a_producer_cannot_submit_for_another(tenants: TwoTenants) -> None:
    """It does not even learn whether the template exists."""
    with tenants.producing(PRODUCER) as producer:
        for template in ("globex/triage", "globex/nothing"):
            with pytest.raises(RedisRefused, match="refused this command"):
                producer.submit(template, TICKET)
        with pytest.raises(RedisRefused):
            producer.handle(tenants.jobs["globex"]).status()
    tenants.operator.acl_log_reset()


def test_a_user_of_no_tenant_reads_nothing(tenants: TwoTenants) -> None:
    """A wrong password is told from a missing right."""
    url = tenants.server.url.replace("redis://", "redis://prefillq-acme-producer:wrong@")
    settings = tenants.settings.model_copy(update={"redis_url": url})
    with Producer(settings) as producer, pytest.raises(RedisRefused, match="these credentials"):
        producer.submit("acme/triage", TICKET)
    tenants.operator.acl_log_reset()


# --- functions


def test_a_producer_goes_on_after_a_restart_without_workers(tmp_path: Path) -> None:
    """Nobody has to send a script first: with no worker running, the queue still takes jobs."""
    file = tmp_path / "users.acl"
    file.touch()
    with two_tenants(aclfile=str(file)) as own, own.producing(PRODUCER) as producer:
        assert Accounts(own.operator, own.settings).save().place == "ACL file"
        producer.submit("acme/triage", TICKET)
        own.server.restart()
        assert producer.submit("acme/triage", TICKET).status() is JobState.QUEUED


def test_missing_functions_are_an_error_that_says_what_to_do() -> None:
    """For a single call and for calls in a pipeline; after `update` the same client goes on."""
    with two_tenants() as own, own.producing(PRODUCER) as producer:
        handle = producer.handle(own.jobs["acme"])
        own.operator.function_flush("SYNC")
        for act in (handle.status, handle.cancel, lambda: producer.submit("acme/triage", TICKET)):
            with pytest.raises(RedisRefused, match="prefillq tenants update"):
                act()
        Accounts(own.operator, own.settings).update()
        assert handle.status() is JobState.QUEUED
        assert producer.submit("acme/triage", TICKET).status() is JobState.QUEUED


def test_a_full_redis_still_tells_cancels_and_takes_back(tenants: TwoTenants) -> None:
    """Case Q22 for functions, which Redis refuses as a whole unless they say otherwise."""
    with tenants.producing(PRODUCER) as producer:
        job = producer.submit("acme/triage", TICKET)
        before = sorted(tenants.operator.keys("*"))
        with out_of_memory(tenants.operator):
            with pytest.raises(RedisRefused, match=r"maxmemory.*Nothing was enqueued"):
                producer.submit("acme/triage", TICKET, idempotency_key="full")
            assert sorted(tenants.operator.keys("*")) == before
            assert job.status() is JobState.QUEUED
            assert job.cancel() is JobState.CANCELLED
