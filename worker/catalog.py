"""Which templates a worker serves: those its patterns name, published for its model."""

from __future__ import annotations

from collections.abc import Iterable
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
        self._skipped: set[VersionRef] = set()  # logged once, and tried again each time

    def refresh(self) -> list[Served]:
        """All templates that match and have a version for this worker's model, sorted."""
        return sorted(
            Served(
                tenant=tenant,
                template=template,
                queue=keys.queue(tenant, template, self._model_digest),
            )
            for tenant, template in self._matching()
            if any(self._fits(ref) for ref in self._refs(tenant, template))
        )

    def labelled(self, served: Served) -> list[PublishedVersion]:
        """Versions that a label of the template points to and this worker's model can run."""
        numbers = set(self._registry.labels(served.tenant, served.template).values())
        return [
            self._registry.get(ref)
            for ref in self._refs(served.tenant, served.template)
            if ref.version in numbers and self._fits(ref)
        ]

    def _matching(self) -> Iterable[tuple[str, str]]:
        with errors_explained(self._settings):
            for tenant in read_names(self._client.smembers(keys.TENANTS)):
                for name in read_names(self._client.smembers(keys.templates(tenant))):
                    address = f"{tenant}/{name}"
                    if any(fnmatchcase(address, pattern) for pattern in self._patterns):
                        yield tenant, name

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
