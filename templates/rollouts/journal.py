"""The journal of a template: every move there was, enough to play them again.

An entry is one of the stream `contract.keys.journal`. Its id is when it was made; its fields are
`revision`, `who`, `action`, `from`, `to`, `why`, `change` and `token` (of the call that made it).
`change` is JSON with what was changed: `version` (published), `labels` (label -> number, or null),
`retired` (number -> true, or false when it was taken back) and `rollout` (all of it, or null).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from contract.errors import CodecError, PrefillqError
from contract.ids import is_name
from templates.rollouts.moves import TemplateState
from templates.rollouts.plain import MAX_TEXT_BYTES, from_plain
from templates.rollouts.rollout import Phase, Rollout
from templates.rollouts.split import WHOLE

_ID = re.compile(r"([0-9]{1,15})-[0-9]{1,20}")
_REVISION = re.compile(r"[1-9][0-9]{0,14}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_TEXTS = ("who", "action", "from", "to", "why")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One move. `at` is Redis server time, seconds since the epoch."""

    id: str
    at: float
    revision: int  # after it
    who: str
    action: str  # a `moves.Action`, or a later release's
    was: str
    now: str
    why: str
    change: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, under the names of the stream's fields."""
        return {
            "id": self.id,
            "at": self.at,
            "revision": self.revision,
            "who": self.who,
            "action": self.action,
            "from": self.was,
            "to": self.now,
            "why": self.why,
            "change": dict(self.change),
        }


def read_entry(entry_id: bytes | str, fields: Mapping[bytes, bytes]) -> Entry:
    """An entry as Redis has it. Raises CodecError, without quoting, for anything else."""
    try:
        return _entry(_text(entry_id), {_text(name): value for name, value in fields.items()})
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _unreadable(type(error).__name__) from error
    except PrefillqError as error:
        raise _unreadable(error.problem) from error


def _entry(entry_id: str, fields: Mapping[str, bytes]) -> Entry:
    match, revision = _ID.fullmatch(entry_id), _text(fields["revision"])
    if match is None or not _REVISION.fullmatch(revision):
        raise ValueError("id or revision is none")
    if len(fields["change"]) > 2 * MAX_TEXT_BYTES:
        raise ValueError("change is too long")
    who, action, was, now, why = (_text(fields[name]) for name in _TEXTS)
    return Entry(
        id=entry_id,
        at=int(match.group(1)) / 1000,
        revision=int(revision),
        who=who,
        action=action,
        was=was,
        now=now,
        why=why,
        change=parse_change(fields["change"]),
    )


def replay(entries: Iterable[Entry]) -> TemplateState:
    """The state that a whole journal, oldest first, comes to.

    Exactly the template's, but for findings that were noted since the last move. Raises CodecError
    when an entry is missing.
    """
    state = TemplateState()
    for entry in entries:
        if entry.revision != state.revision + 1:
            raise CodecError(
                "a journal has a gap",
                given=f"revision {entry.revision} after {state.revision}",
                expected="every move from the first on",
            )
        state = applied(state, entry)
    return state


def end_of_rollout(entries: Iterable[Entry], rollout_id: str | None) -> Entry | None:
    """With which entry a rollout ended; without an id, with which the last one did that has."""
    begun, end = None, None
    for entry in entries:
        if "rollout" not in entry.change:
            continue
        plain = entry.change["rollout"]
        if plain is not None:
            begun = plain["id"]
        elif rollout_id in (None, begun):
            end = entry
            if rollout_id is not None:
                break
    return end


def stable_since(entries: Iterable[Entry], rollout: Rollout) -> float | None:
    """Since when the jobs count that a stable version had, once all jobs are the canary's: since
    the first step began, or the warming before it where that step is all jobs. So those that it
    had beside the load of the gates do not. None when the journal has it not (any more).
    """
    at_once = rollout.plan.steps[0] == WHOLE
    first = (Phase.WARMING, -1) if at_once else (Phase.BAKING, 0)
    for entry in entries:
        plain = entry.change.get("rollout")
        if plain is not None and plain["id"] == rollout.id:
            there = from_plain(plain)
            if (there.phase, there.step) == first:
                return there.since
    return None


def applied(state: TemplateState, entry: Entry) -> TemplateState:
    """The state after one more entry."""
    change = entry.change
    labels = {**state.labels, **change.get("labels", {})}
    retired = {int(number): so for number, so in change.get("retired", {}).items()}
    rollout = state.rollout
    if "rollout" in change:
        plain = change["rollout"]
        rollout = None if plain is None else from_plain(plain)
    return replace(
        state,
        revision=entry.revision,
        versions=state.versions | set(change.get("versions", ())),
        labels={label: number for label, number in labels.items() if number is not None},
        retired=(state.retired | {n for n, so in retired.items() if so})
        - {n for n, so in retired.items() if not so},
        rollout=rollout,
    )


def change_between(before: TemplateState, after: TemplateState) -> dict[str, Any]:
    """What `applied` needs, but for the rollout, which gets its times from Redis.

    A template's first entry has all there was: it may be older than its journal.
    """
    if before.revision == 0:
        before = TemplateState()
    labels = {
        label: after.labels.get(label)
        for label in sorted({*before.labels, *after.labels})
        if before.labels.get(label) != after.labels.get(label)
    }
    retired = {str(n): n in after.retired for n in sorted(before.retired ^ after.retired)}
    versions = sorted(after.versions - before.versions)
    parts: dict[str, Any] = {"labels": labels, "retired": retired, "versions": versions}
    return {name: part for name, part in parts.items() if part}


def parse_change(text: bytes | str) -> dict[str, Any]:
    """An entry's `change`. Raises TypeError, ValueError or RecursionError for what is none."""
    change = json.loads(text)
    if not isinstance(change, dict):
        raise TypeError
    for label, number in _of(dict, change, "labels").items():
        if not is_name(label) or not (number is None or _is_version(number)):
            raise ValueError
    for number, so in _of(dict, change, "retired").items():
        if not _VERSION.fullmatch(number) or type(so) is not bool:
            raise ValueError
    if not all(_is_version(number) for number in _of(list, change, "versions")):
        raise ValueError
    if change.get("rollout") is not None:
        from_plain(change["rollout"])
    return change


def _of(kind: type[Any], change: Mapping[str, Any], name: str) -> Any:
    value = change.get(name, kind())
    if type(value) is not kind:
        raise TypeError
    return value


def _is_version(number: object) -> bool:
    return type(number) is int and 0 < number < 10**9


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _unreadable(why: str) -> CodecError:
    return CodecError(
        "an entry of a template's journal cannot be read",
        given=why,
        expected="what this release of prefillq writes",
    )
