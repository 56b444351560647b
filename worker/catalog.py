"""Which templates a worker serves: those its patterns name, published for its model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from contract import keys
from contract.errors import InvalidInput, PrefillqError, RedisRefused, RedisUnreachable
from contract.logs import get_logger
from contract.redis_client import Client, errors_explained
from contract.settings import Settings
from contract.types import VersionRef
from templates.registry import Registry
from templates.stored import read_names, read_refs
from templates.version import PublishedVersion

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Served:
    """One template that this worker consumes."""

    tenant: str
    template: str
    queue: str


class Catalog:
    """Follows the registry; `refresh` is cheap enough to run every couple of seconds."""

    def __init__(
        self,
        *,
        client: Client,
        settings: Settings,
        registry: Registry,
        model_digest: str,
        patterns: Iterable[str] = (),
    ) -> None:
        self._client: Any = client  # redis-py types each reply as a value or an awaitable
        self._settings = settings
        self._registry = registry
        self._model_digest = model_digest
        self._patterns = tuple(check_pattern(pattern) for pattern in patterns) or ("*/*",)
        # Versions are immutable, so what was once learned of one stays true.
        self._model_of: dict[VersionRef, str] = {}
        self._found: list[Served] = []
        self._skipped: set[VersionRef] = set()  # logged once, and tried again each time

    def refresh(self) -> list[Served]:
        """All templates that match and have a version for this worker's model, sorted.

        A tenant whose keys cannot be read (its admin can write them) is served as it was.
        """
        found: list[Served] = []
        with errors_explained(self._settings):
            tenants = read_names(self._client.smembers(keys.TENANTS))
        for tenant in tenants:
            try:
                found += self._of_tenant(tenant)
            except RedisRefused as error:
                log.warning("tenant_not_read", tenant=tenant, error=str(error))
                found += [served for served in self._found if served.tenant == tenant]
        self._found = sorted(found)
        return self._found

    def labelled(self, served: Served) -> list[PublishedVersion]:
        """Versions that a label of the template points to and this worker's model can run."""
        return self._chosen(
            served, lambda: self._registry.labels(served.tenant, served.template).values()
        )

    def retired(self, served: Served) -> list[PublishedVersion]:
        """Versions that take no new jobs and that this worker's model can run."""
        return self._chosen(served, lambda: self._registry.retired(served.tenant, served.template))

    def matches(self, tenant: str, template: str) -> bool:
        """True for a template that this worker may serve, if it has a version for its model."""
        address = f"{tenant}/{template}"
        return any(fnmatchcase(address, pattern) for pattern in self._patterns)

    def _chosen(
        self, served: Served, numbers: Callable[[], Iterable[int]]
    ) -> list[PublishedVersion]:
        try:
            if not (wanted := set(numbers())):
                return []
            return [
                self._registry.get(ref)
                for ref in self._refs(served.tenant, served.template)
                if ref.version in wanted and self._fits(ref)
            ]
        except RedisRefused as error:
            log.warning("template_not_read", tenant=served.tenant, error=str(error))
            return []

    def _of_tenant(self, tenant: str) -> list[Served]:
        with errors_explained(self._settings):
            names = read_names(self._client.smembers(keys.templates(tenant)))
        return [
            Served(tenant=tenant, template=name, queue=keys.queue(tenant, name, self._model_digest))
            for name in names
            if self.matches(tenant, name)
            and any(self._fits(ref) for ref in self._refs(tenant, name))
        ]

    def _refs(self, tenant: str, template: str) -> list[VersionRef]:
        with errors_explained(self._settings):
            found = self._client.hgetall(keys.versions(tenant, template))
        return read_refs(tenant, template, found)

    def _fits(self, ref: VersionRef) -> bool:
        if ref not in self._model_of:
            try:
                self._model_of[ref] = self._registry.get(ref).model_digest
            except (RedisUnreachable, RedisRefused):
                raise
            except PrefillqError as error:
                # One unreadable version, of a newer release perhaps, must not keep the others
                # from being served.
                if ref not in self._skipped:
                    self._skipped.add(ref)
                    log.warning("version_skipped", version=str(ref), error=str(error))
                return False
        return self._model_of[ref] == self._model_digest


def check_pattern(pattern: str) -> str:
    """`tenant/template` with `*` and `?`; InvalidInput otherwise."""
    tenant, slash, template = pattern.partition("/")
    if not (slash and tenant and template) or "/" in template:
        raise InvalidInput(
            "not a template pattern", given=repr(pattern)[:80], expected="acme/* or acme/triage"
        )
    return pattern
