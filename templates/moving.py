"""Changing what moves of a template, and telling the journal.

A change is decided on one sight of all that moves (`templates.rollouts.moves`) and made by one Lua
script if nothing moved since; else it is decided anew. The same script writes the entry of the
template's journal.
"""

from __future__ import annotations

import getpass
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from contract import keys
from contract.canonical import canonical_json
from contract.described import describe
from contract.errors import Conflict, InvalidInput
from contract.ids import TemplateAddress
from contract.job_calls import unexpected
from contract.redis_client import Client, errors_explained
from contract.scripts import Argument, ScriptLibrary, Scripts
from contract.settings import Settings
from templates.reading import RegistryReader, Sight
from templates.rollouts import journal
from templates.rollouts.moves import Move, TemplateState
from templates.rollouts.plain import from_plain, to_plain, to_text
from templates.rollouts.rollout import Rollout

TRIES = 200  # of one change, each lost to somebody else's
_MAX_WHO, _MAX_WHY = 200, 1000

Decide = Callable[[Sight], Move | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A template before and after a move, which may have been none."""

    before: TemplateState
    after: TemplateState


@cache
def script_source(name: str) -> str:
    """The text of one registry script; of those that move, with what they share in front."""
    folder = resources.files("templates") / "lua"
    parts = (name,) if name == "note" else ("common", name)
    return "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in parts)


def registry_library() -> ScriptLibrary:
    """The registry's scripts, as `prefillq tenants` stores them in Redis."""
    return ScriptLibrary(
        name="registry",
        sources={name: script_source(name) for name in ("publish", "move", "note")},
    )


def somebody() -> str:
    """`user@host` of this process: who made a move, unless it says so itself."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


class RegistryMover(RegistryReader):
    """Reads, and makes moves. Safe to share between threads."""

    def __init__(self, client: Client, settings: Settings) -> None:
        super().__init__(client, settings)
        self._scripts = Scripts(client, settings, registry_library())

    def move(
        self,
        tenant: str,
        name: str,
        decide: Decide,
        *,
        who: str | None = None,
        why: str = "",
        mend: bool = False,
    ) -> Moved:
        """Make the move that `decide` wants.

        `decide` is asked again on a new sight when somebody else was faster; None is no move, and
        what it raises passes through. With `mend` it is also asked about a rollout that cannot be
        read, which raises CodecError otherwise.
        """
        signed = signature(who, why)
        for _ in range(TRIES):
            sight = self.sight(tenant, name)
            if not sight.state.versions:
                raise self._not_found(TemplateAddress(tenant=tenant, name=name))
            if sight.damage is not None and not mend:
                raise sight.damage
            move = decide(sight)
            if move is None:
                return Moved(before=sight.state, after=sight.state)
            with errors_explained(self._settings):
                reply = self._scripts.run(
                    "move",
                    keys=moving_keys(tenant, name),
                    args=arguments(name, sight, move, signed),
                )
            match reply:
                case [b"done", change]:
                    return Moved(before=sight.state, after=_with_times(move.state, change))
                case [b"moved"]:
                    continue
            raise unexpected("move", reply)
        raise without_a_pause(f"{tenant}/{name}")

    def note(self, tenant: str, name: str, before: Rollout, after: Rollout) -> bool:
        """Write a rollout whose findings alone differ. False, and nothing done, if it has moved."""
        sight = self.sight(tenant, name)
        if sight.state.rollout != before:
            return False
        with errors_explained(self._settings):
            reply = self._scripts.run(
                "note",
                keys=[keys.rollout(tenant, name)],
                args=[sight.rollout_text, to_text(after)],
            )
        return bool(reply)


def moving_keys(tenant: str, name: str) -> list[str]:
    """KEYS of a script that moves, as templates/lua/common.lua has it."""
    return [
        keys.revision(tenant, name),
        keys.journal(tenant, name),
        keys.labels(tenant, name),
        keys.rollout(tenant, name),
        keys.rollouts(tenant),
    ]


def signature(who: str | None, why: str) -> tuple[str, str]:
    """Who makes a move and why, as the journal can hold it. Raises InvalidInput."""
    who = somebody() if who is None else who
    for what, given, least, most in (("who", who, 1, _MAX_WHO), ("why", why, 0, _MAX_WHY)):
        encodes = not any("\ud800" <= character <= "\udfff" for character in given)
        if not least <= len(given) <= most or not encodes:
            raise InvalidInput(
                f"{what} cannot be written into the journal",
                given=describe(given),
                expected=f"{least} to {most} characters of valid Unicode text",
            )
    return who, why


def arguments(name: str, sight: Sight, move: Move, signed: tuple[str, str]) -> list[Argument]:
    """ARGV of a script that moves, as templates/lua/common.lua has it."""
    who, why = signed
    before, after = sight.state, move.state
    what, body, started_at, since = "keep", "", "", ""
    if after.rollout is not None and after.rollout != before.rollout:
        plain = to_plain(after.rollout)
        times = plain.pop("started_at"), plain.pop("since")
        # What begins with this move begins when the script makes it, not when it was decided.
        started_at, since = ("" if time == sight.now else repr(time) for time in times)
        what, body = "set", canonical_json(plain)[:-1]
    elif after.rollout is None and (before.rollout is not None or sight.damage is not None):
        what = "end"
    return [
        secrets.token_hex(8),
        before.revision,
        sight.rollout_text,
        name,
        who,
        str(move.action),
        move.was,
        move.now,
        why,
        canonical_json(journal.change_between(before, after)),
        what,
        body,
        started_at,
        since,
    ]


def _with_times(state: TemplateState, change: bytes) -> TemplateState:
    """The state after a move, its rollout as the script wrote it."""
    if state.rollout is None:
        return state
    written = journal.parse_change(change).get("rollout")
    return state if written is None else replace(state, rollout=from_plain(written))


def without_a_pause(template: str) -> Conflict:
    """Bounded: others were faster each time."""
    return Conflict(f"{template} is being changed by others without a pause", remedy="Try again.")
