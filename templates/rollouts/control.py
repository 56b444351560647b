"""What can be done with rollouts, by people and by workers."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import replace

from contract.errors import InvalidInput
from contract.ids import TemplateAddress
from templates.reading import Sight
from templates.registry import Registry
from templates.rollouts import moves
from templates.rollouts.journal import Entry
from templates.rollouts.plain import tidy
from templates.rollouts.rollout import Finding, Phase, Plan, Rollout


class Rollouts:
    """One rollout per template at a time. Safe to share between threads.

    Whatever moves is written into the template's journal; `who` and `why` are for people to read.
    With `expect` a call raises Conflict unless the rollout is still exactly that one.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def get(self, tenant: str, name: str) -> Rollout | None:
        """The active one. Raises CodecError when it cannot be read."""
        return self.registry.rollout(tenant, name)

    def active(self, tenant: str) -> dict[str, Rollout]:
        """A tenant's active ones by template; what cannot be read is logged and left out."""
        return self.registry.rollouts(tenant)

    def journal(self, tenant: str, name: str) -> list[Entry]:
        """All moves of a template, oldest first."""
        return self.registry.journal(tenant, name)

    def start(
        self, tenant: str, name: str, plan: Plan, *, who: str | None = None, why: str = ""
    ) -> Rollout:
        """Begin with the gates. Raises as `moves.start` does, and InvalidInput for a sticky key
        that no job can have.
        """
        self._check_sticky_key(tenant, name, plan)
        rollout_id = secrets.token_hex(8)
        moved = self.registry.move(
            tenant,
            name,
            lambda sight: moves.start(sight.state, plan, rollout_id=rollout_id, now=sight.now),
            who=who,
            why=why,
        )
        return _rollout(moved.after)

    def _check_sticky_key(self, tenant: str, name: str, plan: Plan) -> None:
        if plan.sticky_key is None:
            return
        address = TemplateAddress(tenant=tenant, name=name, selector=str(plan.stable))
        version = self.registry.get(self.registry.resolve(address, with_retired=True))
        schema = version.spec.input.json_schema
        names = schema.get("properties", {})
        if schema.get("additionalProperties") is False and plan.sticky_key not in names:
            raise InvalidInput(
                f"{version.ref} has no such variable for a sticky key",
                given=plan.sticky_key,
                expected=f"one of {', '.join(sorted(names))}"[:200],
            )

    def pause(
        self,
        tenant: str,
        name: str,
        *,
        who: str | None = None,
        why: str = "",
        expect: Rollout | None = None,
    ) -> Rollout:
        """Hold the weights; the rollout as it is then. Raises NotFound and Conflict."""
        moved = self.registry.move(
            tenant, name, lambda sight: moves.pause(sight.state, expect=expect), who=who, why=why
        )
        return _rollout(moved.after)

    def resume(
        self,
        tenant: str,
        name: str,
        *,
        who: str | None = None,
        why: str = "",
        expect: Rollout | None = None,
    ) -> Rollout:
        """Go on; the rollout as it is then. Raises NotFound and Conflict."""
        moved = self.registry.move(
            tenant, name, lambda sight: moves.resume(sight.state, expect=expect), who=who, why=why
        )
        return _rollout(moved.after)

    def promote(
        self,
        tenant: str,
        name: str,
        *,
        who: str | None = None,
        why: str = "",
        expect: Rollout | None = None,
    ) -> Rollout:
        """The label moves to the canary; the rollout that is over. Raises NotFound, Conflict."""
        moved = self.registry.move(
            tenant, name, lambda sight: moves.promote(sight.state, expect=expect), who=who, why=why
        )
        return _rollout(moved.before)

    def abort(
        self,
        tenant: str,
        name: str,
        *,
        who: str | None = None,
        why: str = "",
        expect: Rollout | None = None,
    ) -> Rollout | None:
        """The label stays; the rollout that is over, None for one that could not be read.

        Raises NotFound and Conflict.
        """

        def decide(sight: Sight) -> moves.Move:
            if sight.damage is not None and expect is None:
                return moves.clear(sight.state)
            return moves.abort(sight.state, expect=expect)

        return self.registry.move(tenant, name, decide, who=who, why=why, mend=True).before.rollout

    def advance(
        self,
        tenant: str,
        name: str,
        *,
        expect: Rollout,
        phase: Phase,
        step: int,
        findings: Iterable[Finding],
        who: str | None = None,
        why: str = "",
    ) -> Rollout:
        """The next phase; the rollout as it is then. Raises as `moves.advance` does."""
        found = tuple(findings)
        moved = self.registry.move(
            tenant,
            name,
            lambda sight: moves.advance(
                sight.state, expect=expect, phase=phase, step=step, findings=found, now=sight.now
            ),
            who=who,
            why=why,
        )
        return _rollout(moved.after)

    def note(
        self, tenant: str, name: str, *, expect: Rollout, findings: Iterable[Finding]
    ) -> Rollout | None:
        """Replace what the gates found last: no move, and no entry of the journal.

        Returns the rollout with them, or None when it is not `expect` any more.
        """
        after = replace(expect, findings=tidy(findings))
        return after if self.registry.note(tenant, name, expect, after) else None


def _rollout(state: moves.TemplateState) -> Rollout:
    if state.rollout is None:
        raise AssertionError("a move that needs a rollout was made without one")
    return state.rollout
