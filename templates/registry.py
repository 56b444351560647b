"""Published templates in Redis: immutable versions, and labels that point to them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from contract import keys
from contract.codec import pack
from contract.job_calls import unexpected
from contract.model_folder import ModelFolder
from contract.redis_client import errors_explained
from contract.types import VersionRef
from templates.compiled import CompiledTemplate
from templates.moving import (
    TRIES,
    RegistryMover,
    arguments,
    moving_keys,
    signature,
    without_a_pause,
)
from templates.rollouts import moves
from templates.rollouts.moves import ANYTHING, Expected
from templates.spec import TemplateSpec
from templates.stored import known_number
from templates.version import PublishedVersion, version_digest

__all__ = ["ANYTHING", "Published", "Registry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What publishing came to. `created` is False when the same content was there already."""

    version: PublishedVersion
    created: bool


class Registry(RegistryMover):
    """Reads, publishes and moves. Safe to share between threads."""

    def publish(
        self,
        spec: TemplateSpec,
        compiled: CompiledTemplate,
        model: ModelFolder,
        *,
        who: str | None = None,
        why: str = "",
    ) -> Published:
        """Store a version under the next number; the same content again gives the same version.

        A template's first version gets the label `production`; no later one gets any.
        """
        tenant, name = spec.tenant, spec.name
        digest = version_digest(spec, model)
        signed = signature(who, why)
        with errors_explained(self._settings):
            if self._user is None:
                # First, so that whatever is published is found by the workers. A tenant that has
                # users of its own was entered with them.
                self._client.sadd(keys.TENANTS, tenant)
            known = self._client.hget(keys.numbers(tenant, name), digest)
        for _ in range(TRIES):
            sight = self.sight(tenant, name)
            move = moves.publish(sight.state)
            version = PublishedVersion(
                ref=VersionRef(
                    tenant=tenant,
                    template=name,
                    version=int(move.now) if known is None else known_number(known, tenant, name),
                    digest=digest,
                ),
                spec=spec,
                compiled=compiled,
                model_digest=model.model_digest,
                tokenizer_digest=model.tokenizer_digest,
                published_at=sight.now,
            )
            with errors_explained(self._settings):
                reply = self._scripts.run(
                    "publish",
                    keys=[
                        *moving_keys(tenant, name),
                        keys.numbers(tenant, name),
                        keys.versions(tenant, name),
                        keys.version(tenant, name, digest),
                        keys.templates(tenant),
                    ],
                    args=[
                        *arguments(name, sight, move, signed),
                        digest,
                        version.ref.version,
                        pack(version.to_plain()),
                    ],
                )
            match reply:
                case [b"created"]:
                    return Published(version=version, created=True)
                case [b"known", number]:
                    ref = replace(version.ref, version=known_number(number, tenant, name))
                    return Published(version=self.get(ref), created=False)
                case [b"moved"]:
                    continue
            raise unexpected("publish", reply)
        raise without_a_pause(f"{tenant}/{name}")

    def set_label(
        self,
        tenant: str,
        name: str,
        label: str,
        version: int,
        *,
        expect: Expected = ANYTHING,
        who: str | None = None,
        why: str = "",
    ) -> None:
        """Point a label to a version.

        `expect` is where it must point now (None: nowhere); Conflict if it points elsewhere, or
        while a rollout is about it. Raises NotFound when there is no such version.
        """
        self.move(
            tenant,
            name,
            lambda sight: moves.set_label(sight.state, label, version, expect=expect),
            who=who,
            why=why,
        )

    def remove_label(
        self,
        tenant: str,
        name: str,
        label: str,
        *,
        expect: Expected = ANYTHING,
        who: str | None = None,
        why: str = "",
    ) -> None:
        """Remove a label. Raises NotFound when there is none, Conflict as `set_label` does."""
        self.move(
            tenant,
            name,
            lambda sight: moves.remove_label(sight.state, label, expect=expect),
            who=who,
            why=why,
        )

    def retire(
        self,
        tenant: str,
        name: str,
        version: int,
        *,
        undo: bool = False,
        who: str | None = None,
        why: str = "",
    ) -> None:
        """Take no new jobs for a version; those it has are finished. Idempotent.

        Raises NotFound when there is no such version, Conflict while a label points to it or a
        rollout is about it.
        """
        self.move(
            tenant,
            name,
            lambda sight: moves.retire(sight.state, version, undo=undo),
            who=who,
            why=why,
        )
