"""What a conductor asks of others; tests have their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from contract.ids import TemplateAddress
from contract.types import VersionRef
from templates.rollouts.journal import Entry
from templates.rollouts.rollout import Finding, Phase, Rollout
from templates.version import PublishedVersion


class Moves(Protocol):
    """`templates.rollouts.control.Rollouts`, or what is needed of it."""

    def active(self, tenant: str) -> dict[str, Rollout]: ...

    def get(self, tenant: str, name: str) -> Rollout | None: ...

    def journal(self, tenant: str, name: str) -> Iterable[Entry]: ...

    def advance(
        self,
        tenant: str,
        name: str,
        *,
        expect: Rollout,
        phase: Phase,
        step: int,
        findings: Iterable[Finding],
        who: str,
        why: str = "",
    ) -> Rollout: ...

    def promote(
        self, tenant: str, name: str, *, who: str, why: str = "", expect: Rollout
    ) -> Rollout: ...

    def abort(
        self, tenant: str, name: str, *, who: str, why: str = "", expect: Rollout
    ) -> Rollout | None: ...

    def note(
        self, tenant: str, name: str, *, expect: Rollout, findings: Iterable[Finding]
    ) -> Rollout | None: ...


class Versions(Protocol):
    """`templates.registry.Registry`, or what is needed of it."""

    def resolve(self, address: TemplateAddress, *, with_retired: bool = False) -> VersionRef: ...

    def get(self, ref: VersionRef) -> PublishedVersion: ...


class Tries(Protocol):
    """`worker.rollouts.gates.Gates`, or another that tells what a version is worth."""

    @property
    def model_digest(self) -> str: ...

    def try_version(
        self,
        canary: PublishedVersion,
        stable: PublishedVersion,
        *,
        stopping: Callable[[], bool] = ...,
    ) -> tuple[Finding, ...]: ...
