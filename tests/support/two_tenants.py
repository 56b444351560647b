"""A Redis of its own with users for two tenants and the workers, and something of each to steal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from contract import keys
from contract.redis_client import connect
from contract.settings import Settings
from contract.types import VersionRef
from contract.users import WORKER, RedisUser, Role
from local.redis_server import EmbeddedRedis
from producer.client import Producer
from templates.registry import Registry
from tenants.accounts import Accounts, users_of_tenant
from tests.support.published import COMPILED, MODEL, make_spec

ACME = {role: RedisUser(tenant="acme", role=role) for role in (Role.PRODUCER, Role.ADMIN)}
GLOBEX = {role: RedisUser(tenant="globex", role=role) for role in (Role.PRODUCER, Role.ADMIN)}
TICKET = {"ticket": "refund?"}


@dataclass(frozen=True, kw_only=True)
class TwoTenants:
    """acme and globex, each with the template `triage` and one queued job."""

    server: EmbeddedRedis
    operator: Any  # redis-py types each reply as a value or an awaitable
    settings: Settings
    urls: Mapping[RedisUser, str]
    versions: Mapping[str, VersionRef]
    jobs: Mapping[str, str]  # tenant -> job id

    def settings_of(self, user: RedisUser) -> Settings:
        return self.settings.model_copy(update={"redis_url": self.urls[user]})

    def producing(self, user: RedisUser) -> Producer:
        """A producer that logs in as this user; a context manager."""
        return Producer(self.settings_of(user))

    @contextmanager
    def client_of(self, user: RedisUser) -> Iterator[Any]:
        """A bare connection of this user's."""
        with connect(self.settings_of(user)) as client:
            yield client

    def queue_name(self, tenant: str) -> str:
        return keys.queue(tenant, "triage", MODEL.model_digest)

    def queue(self, tenant: str) -> str:
        """The key of that queue at the broker."""
        return keys.messages(self.queue_name(tenant))


@contextmanager
def two_tenants(**config: str) -> Iterator[TwoTenants]:
    """Made by the users who would make it in production."""
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedRedis(config=config))
        settings = Settings(redis_url=server.url, lease_s=6.0)
        operator = stack.enter_context(connect(settings))
        users = [*users_of_tenant("acme"), *users_of_tenant("globex"), WORKER]
        made = Accounts(operator, settings).create(users)
        urls = {item.user: item.url for item in made}
        versions, jobs = {}, {}
        for role_of in (ACME, GLOBEX):
            admin, producer = (
                settings.model_copy(update={"redis_url": urls[role_of[role]]})
                for role in (Role.ADMIN, Role.PRODUCER)
            )
            tenant = str(role_of[Role.ADMIN].tenant)
            with connect(admin) as client:
                spec = make_spec(tenant)
                published = Registry(client, admin).publish(spec, COMPILED, MODEL)
                versions[tenant] = published.version.ref
            with Producer(producer) as submitting:
                address = f"{tenant}/triage"
                jobs[tenant] = submitting.submit(address, TICKET, idempotency_key="first").id
        yield TwoTenants(
            server=server,
            operator=operator,
            settings=settings,
            urls=urls,
            versions=versions,
            jobs=jobs,
        )
