"""Published templates in one process's memory, for tests: versions, labels and rollouts.

What may be moved is decided by the same functions as in Redis (`templates.rollouts.moves`).
Nothing is compiled: there is no model, so a version has no tokens and no prefix.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace

from contract.canonical import digest
from contract.errors import NotFound, TemplateRefused
from contract.ids import DEFAULT_LABEL, TemplateAddress
from contract.types import VersionRef
from templates.compiled import CompiledTemplate, Piece, Span
from templates.finding import errors_of
from templates.lint import lint_spec
from templates.lookup import labels_text, nothing_at, retired_at
from templates.placeholders import parse_content
from templates.rollouts import moves
from templates.rollouts.moves import Move, TemplateState
from templates.rollouts.rollout import Limits, Phase, Plan, Rollout
from templates.spec import TemplateSpec
from templates.target import Target
from templates.version import PublishedVersion

Name = tuple[str, str]  # tenant and template
Moved = Callable[[Name, TemplateState], None]


class MemoryRegistry:
    """As much of `templates.registry.Registry` as producers see, and what moves it.

    `moved` is told of each change, as Redis tells the scripts that submit.
    """

    def __init__(self, moved: Moved = lambda _name, _state: None) -> None:
        self._moved = moved
        self._states: dict[Name, TemplateState] = {}
        self._versions: dict[Name, dict[int, PublishedVersion]] = {}

    def publish(self, spec: TemplateSpec) -> PublishedVersion:
        """The next version; the same content again gives the same one.

        Raises TemplateRefused for what `prefillq templates lint` finds wrong without a model.
        """
        name = (spec.tenant, spec.name)
        wrong = errors_of(lint_spec(spec))
        if wrong:
            raise TemplateRefused(
                f"{spec.tenant}/{spec.name} cannot be published",
                given=f"{wrong[0].message} [{wrong[0].code}]",
                remedy=wrong[0].remedy,
            )
        content = digest({"spec": spec.to_plain()})
        for known in self._versions.setdefault(name, {}).values():
            if known.ref.digest == content:
                return known
        move = moves.publish(self._state(name))
        version = PublishedVersion(
            ref=VersionRef(
                tenant=spec.tenant, template=spec.name, version=int(move.now), digest=content
            ),
            spec=spec,
            compiled=CompiledTemplate(
                segments=tuple(
                    Piece(spans=(Span(parts=parse_content(message.content)),))
                    for message in spec.messages
                ),
                prefix_ids=(),
            ),
            model_digest=digest(spec.model),
            tokenizer_digest=digest(spec.model),
            published_at=time.time(),
        )
        self._versions[name][version.ref.version] = version
        self._make(name, move)
        return version

    def target(self, address: TemplateAddress) -> Target:
        """See `templates.reading.RegistryReader.target`."""
        name = (address.tenant, address.name)
        state = self._state(name)
        if address.label is None:
            number = address.version or 0
            if number in state.retired:
                raise retired_at(address, number, labels_text(state.labels))
            return Target(revision=None, stable=self._ref(address, number))
        if address.label not in state.labels:
            raise self._nothing(address)
        rollout = state.rollout
        if rollout is not None and rollout.plan.label != address.label:
            rollout = None
        return Target(
            revision=state.revision,
            stable=self._ref(address, state.labels[address.label]),
            canary=None if rollout is None else self._ref(address, rollout.plan.canary),
            rollout=rollout,
        )

    def get(self, ref: VersionRef) -> PublishedVersion:
        """A version. Raises NotFound."""
        version = self._versions.get((ref.tenant, ref.template), {}).get(ref.version)
        if version is None or version.ref != ref:
            raise NotFound(f"{ref} is not in this registry", given=f"digest {ref.digest[:12]}")
        return version

    def set_label(self, tenant: str, template: str, label: str, version: int) -> None:
        """See `templates.registry.Registry.set_label`."""
        name = (tenant, template)
        self._make(name, moves.set_label(self._known(name), label, version))

    def remove_label(self, tenant: str, template: str, label: str) -> None:
        """See `templates.registry.Registry.remove_label`."""
        name = (tenant, template)
        self._make(name, moves.remove_label(self._known(name), label))

    def retire(self, tenant: str, template: str, version: int, *, undo: bool = False) -> None:
        """See `templates.registry.Registry.retire`."""
        name = (tenant, template)
        self._make(name, moves.retire(self._known(name), version, undo=undo))

    def roll_out(
        self,
        tenant: str,
        template: str,
        canary: int,
        *,
        share: float,
        label: str = DEFAULT_LABEL,
        sticky_key: str | None = None,
    ) -> Rollout:
        """Begin a rollout and go to where `share` (0 to 1) of the keys get the canary."""
        name = (tenant, template)
        state = self._known(name)
        plan = Plan(
            label=label,
            stable=state.labels.get(label, 0),
            canary=canary,
            steps=(round(share * 10_000),),
            bake_s=1.0,
            limits=Limits(),
            sticky_key=sticky_key,
        )
        now = time.time()
        state = moves.start(state, plan, rollout_id=secrets.token_hex(8), now=now).state
        rollout = state.rollout
        for phase, step in ((Phase.WARMING, -1), (Phase.BAKING, 0)):
            if rollout is None:  # pragma: no cover - `advance` ends none
                break
            move = moves.advance(
                state, expect=rollout, phase=phase, step=step, findings=(), now=now
            )
            state, rollout = move.state, move.state.rollout
        self._set(name, state)
        if rollout is None:  # pragma: no cover - as above
            raise NotFound(f"{tenant}/{template} has no rollout")
        return rollout

    def promote(self, tenant: str, template: str) -> None:
        """End the rollout with its canary under the label."""
        name = (tenant, template)
        self._make(name, moves.promote(self._known(name)))

    def abort(self, tenant: str, template: str) -> None:
        """End the rollout; the label stays."""
        name = (tenant, template)
        self._make(name, moves.abort(self._known(name)))

    def _state(self, name: Name) -> TemplateState:
        return self._states.get(name) or TemplateState(name="/".join(name))

    def _known(self, name: Name) -> TemplateState:
        if name not in self._states:
            raise self._nothing(TemplateAddress(tenant=name[0], name=name[1]))
        return self._states[name]

    def _make(self, name: Name, move: Move | None) -> None:
        if move is not None:
            self._set(name, move.state)

    def _set(self, name: Name, state: TemplateState) -> None:
        self._states[name] = replace(state, labels=dict(sorted(state.labels.items())))
        self._moved(name, state)

    def _ref(self, address: TemplateAddress, number: int) -> VersionRef:
        version = self._versions.get((address.tenant, address.name), {}).get(number)
        if version is None:
            raise self._nothing(address)
        return version.ref

    def _nothing(self, address: TemplateAddress) -> NotFound:
        state = self._state((address.tenant, address.name))
        names = sorted(name for tenant, name in self._states if tenant == address.tenant)
        latest = max(state.versions, default=0)
        return nothing_at(address, names, latest, labels_text(state.labels))
