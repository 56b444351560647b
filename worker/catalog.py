"""Which templates a worker serves: those its patterns name, published for its model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from contract import keys
from contract.errors import InvalidInput
from contract.redis_client import Client, errors_explained, text
from contract.settings import Settings
from templates.registry import Registry
from templates.version import PublishedVersion


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
        self._client = client
        self._settings = settings
        self._registry = registry
        self._model_digest = model_digest
        self._patterns = tuple(check_pattern(pattern) for pattern in patterns) or ("*/*",)
        # Versions are immutable, so what was once learned of a digest stays true.
        self._model_of: dict[str, str] = {}

    def refresh(self) -> list[Served]:
        """All templates that match and have a version for this worker's model, sorted."""
        return sorted(
            Served(
                tenant=tenant,
                template=template,
                queue=keys.queue(tenant, template, self._model_digest),
            )
            for tenant, template in self._matching()
            if self._fits(tenant, template)
        )

    def labelled(self, served: Served) -> list[PublishedVersion]:
        """Versions that a label of the template points to and this worker's model can run."""
        numbers = set(self._registry.labels(served.tenant, served.template).values())
        found = [
            self._registry.get(summary.ref)
            for summary in self._registry.versions(served.tenant, served.template)
            if summary.ref.version in numbers
        ]
        return [version for version in found if version.model_digest == self._model_digest]

    def _matching(self) -> Iterable[tuple[str, str]]:
        with errors_explained(self._settings):
            tenants = sorted(text(t) for t in self._client.smembers(keys.TENANTS))
            for tenant in tenants:
                for name in self._client.smembers(keys.templates(tenant)):
                    address = f"{tenant}/{text(name)}"
                    if any(fnmatchcase(address, pattern) for pattern in self._patterns):
                        yield tenant, text(name)

    def _fits(self, tenant: str, template: str) -> bool:
        with errors_explained(self._settings):
            reply = self._client.hvals(keys.versions(tenant, template))
        digests = {text(digest) for digest in reply}
        unknown = digests - self._model_of.keys()
        if unknown:
            for summary in self._registry.versions(tenant, template):
                self._model_of[summary.ref.digest] = summary.model_digest
        return any(self._model_of.get(digest) == self._model_digest for digest in digests)


def check_pattern(pattern: str) -> str:
    """`tenant/template` with `*` and `?`; InvalidInput otherwise."""
    tenant, slash, template = pattern.partition("/")
    if not (slash and tenant and template) or "/" in template:
        raise InvalidInput(
            "not a template pattern", given=repr(pattern)[:80], expected="acme/* or acme/triage"
        )
    return pattern
