"""A rollout as JSON and back. What is read may have been written by anybody of the tenant."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from contract.canonical import canonical_json
from contract.errors import CodecError, InvalidInput, PrefillqError
from contract.ids import check_name
from templates.rollouts.rollout import Finding, Limits, Outcome, Phase, Plan, Rollout
from templates.rollouts.split import WHOLE

T = TypeVar("T")

MAX_TEXT_BYTES = 2**18
MAX_STEPS = 50
MAX_FINDINGS = 100
MAX_MESSAGE_CHARS = 300
MAX_SCORES = 16
MAX_KEY_CHARS = 256
YEAR_S = 366 * 86_400.0
_MAX_VERSION = 999_999_999
_END_OF_TIME = 253_402_300_800.0  # the year 10000
_ID = re.compile(r"[0-9a-f]{16}")


def to_plain(rollout: Rollout) -> dict[str, Any]:
    """Plain data for JSON."""
    plan, limits = rollout.plan, rollout.plan.limits
    return {
        "id": rollout.id,
        "plan": {
            "label": plan.label,
            "stable": plan.stable,
            "canary": plan.canary,
            "steps": list(plan.steps),
            "bake_s": plan.bake_s,
            "sticky_key": plan.sticky_key,
            "shadow": plan.shadow,
            "warm_workers": plan.warm_workers,
            "limits": {
                "min_samples": limits.min_samples,
                "failures": limits.failures,
                "fallbacks": limits.fallbacks,
                "latency": limits.latency,
                "length": limits.length,
                "scores": dict(limits.scores),
            },
        },
        "phase": str(rollout.phase),
        "step": rollout.step,
        "started_at": rollout.started_at,
        "since": rollout.since,
        "paused": rollout.paused,
        "findings": [
            {"gate": item.gate, "outcome": str(item.outcome), "message": item.message}
            for item in rollout.findings
        ],
    }


def to_text(rollout: Rollout) -> str:
    """The JSON that Redis holds."""
    return canonical_json(to_plain(rollout))


def parse_text(text: bytes | str) -> Rollout:
    """The inverse of `to_text`. Raises CodecError, without quoting, for anything else."""
    if len(text) > MAX_TEXT_BYTES:
        raise _unreadable(f"over {MAX_TEXT_BYTES} bytes")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable("no JSON") from error
    return from_plain(data)


def from_plain(data: object) -> Rollout:
    """The inverse of `to_plain`. Raises CodecError, without quoting, for anything else."""
    try:
        return _rollout(data)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable(_words(error)) from error
    except PrefillqError as error:
        raise _unreadable(error.problem) from error


def check_plan(plan: Plan) -> None:
    """Raise InvalidInput for a plan that no rollout can follow."""
    check_name("label", plan.label)
    if plan.label.isdecimal():
        raise InvalidInput("a label cannot be a number", given=plan.label, expected="a name")
    for number in (plan.stable, plan.canary):
        if not 1 <= number <= _MAX_VERSION:
            raise InvalidInput("not a version number", given=number, expected="1 or more")
    if plan.stable == plan.canary:
        raise InvalidInput(
            "a rollout is from one version to another",
            given=f"from {plan.stable} to {plan.canary}",
            remedy="Name the new version with --to.",
        )
    rising = all(a < b for a, b in zip(plan.steps, plan.steps[1:], strict=False))
    if not (0 < len(plan.steps) <= MAX_STEPS and rising and plan.steps[0] >= 1) or (
        plan.steps[-1] > WHOLE
    ):
        raise InvalidInput(
            "not the steps of a rollout",
            given=", ".join(f"{step / 100:g} %" for step in plan.steps[:MAX_STEPS]) or "none",
            expected=f"1 to {MAX_STEPS} rising weights from 0.01 % to 100 %",
        )
    _check_range("the time to bake", plan.bake_s, 0, YEAR_S, "seconds, up to a year")
    _check_range("the weight of the shadow", plan.shadow, 0, WHOLE, "0 % to 100 %")
    _check_range("the share of warm workers", plan.warm_workers, 0, 1, "0 % to 100 %")
    if plan.sticky_key is not None:
        check_key("the name of the sticky variable", plan.sticky_key)
    _check_limits(plan.limits)


def check_key(what: str, key: object) -> None:
    """Raise InvalidInput for what is no sticky key, nor the name of a variable that holds it."""
    usable = isinstance(key, str) and 0 < len(key) <= MAX_KEY_CHARS
    if not usable or any("\ud800" <= character <= "\udfff" for character in str(key)):
        raise InvalidInput(
            f"{what} cannot be used",
            given=f"text of {len(key)} characters" if isinstance(key, str) else type(key).__name__,
            expected=f"1 to {MAX_KEY_CHARS} characters of valid Unicode text",
        )


def check_id(rollout_id: str) -> str:
    """The id of a rollout as it was given. Raises InvalidInput for what is none."""
    if not _ID.fullmatch(rollout_id):
        raise InvalidInput(
            "not the id of a rollout", given=f"{rollout_id!r:.40}", expected="16 hex digits"
        )
    return rollout_id


def tidy(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings as Redis can hold them: the first hundred, no text too long or not to be encoded."""
    return tuple(
        replace(item, gate=_fit(item.gate, 100), message=_fit(item.message, MAX_MESSAGE_CHARS))
        for item in islice(findings, MAX_FINDINGS)
    )


def _fit(text: str, chars: int) -> str:
    return text[:chars].encode("utf-8", "replace").decode("utf-8")


def _check_limits(limits: Limits) -> None:
    _check_range("min_samples", limits.min_samples, 1, 1_000_000, "1 or more")
    _check_range("the limit of failures", limits.failures, 0, 1, "0 % to 100 %")
    _check_range("the limit of fallbacks", limits.fallbacks, 0, 1, "0 % to 100 %")
    _check_range("the limit of latency", limits.latency, 0, 1e6, "a multiple such as 1.5")
    _check_range("the limit of length", limits.length, 0, 1e6, "a share such as 50 %")
    if len(limits.scores) > MAX_SCORES:
        raise InvalidInput(
            "too many scores", given=len(limits.scores), expected=f"at most {MAX_SCORES}"
        )
    for name, drop in limits.scores.items():
        check_name("score", name)
        _check_range(f"the limit of the score {name}", drop, 0, 1e12, "a drop such as 0.05")


def _check_range(what: str, value: float, least: float, most: float, expected: str) -> None:
    if not least <= value <= most:  # also false for NaN
        raise InvalidInput(f"{what} is out of range", given=f"{value!r:.40}", expected=expected)


def _rollout(data: object) -> Rollout:
    found = _object(
        data,
        {"id", "plan", "phase", "step", "started_at", "since", "paused", "findings"},
    )
    plan = _plan(found["plan"])
    check_plan(plan)
    rollout_id = _of(str, found, "id")
    if not _ID.fullmatch(rollout_id):
        raise ValueError("id is none")
    findings = _of(list, found, "findings")
    if len(findings) > MAX_FINDINGS:
        raise ValueError("too many findings")
    rollout = Rollout(
        id=rollout_id,
        plan=plan,
        phase=Phase(_one_of(found, "phase", tuple(Phase))),
        step=_of(int, found, "step"),
        started_at=_time(found, "started_at"),
        since=_time(found, "since"),
        paused=_of(bool, found, "paused"),
        findings=tuple(_finding(item) for item in findings),
    )
    if not phase_fits(rollout.phase, rollout.step, plan):
        raise ValueError("phase and step do not fit")
    return rollout


def phase_fits(phase: Phase, step: int, plan: Plan) -> bool:
    """True for a place where a rollout can be."""
    match phase:
        case Phase.GATES:
            return step == -1
        case Phase.WARMING:
            return -1 <= step < len(plan.steps) - 1
        case Phase.BAKING:
            return 0 <= step < len(plan.steps)


def _plan(data: object) -> Plan:
    found = _object(
        data,
        {
            "label",
            "stable",
            "canary",
            "steps",
            "bake_s",
            "sticky_key",
            "shadow",
            "warm_workers",
            "limits",
        },
    )
    steps = _of(list, found, "steps")
    if any(type(step) is not int for step in steps):
        raise TypeError("steps hold more than integers")
    return Plan(
        label=_of(str, found, "label"),
        stable=_of(int, found, "stable"),
        canary=_of(int, found, "canary"),
        steps=tuple(steps),
        bake_s=_of(float, found, "bake_s"),
        sticky_key=None if found["sticky_key"] is None else _of(str, found, "sticky_key"),
        shadow=_of(int, found, "shadow"),
        warm_workers=_of(float, found, "warm_workers"),
        limits=_limits(found["limits"]),
    )


def _limits(data: object) -> Limits:
    found = _object(data, {"min_samples", "failures", "fallbacks", "latency", "length", "scores"})
    scores = _of(dict, found, "scores")
    return Limits(
        min_samples=_of(int, found, "min_samples"),
        failures=_of(float, found, "failures"),
        fallbacks=_of(float, found, "fallbacks"),
        latency=_of(float, found, "latency"),
        length=_of(float, found, "length"),
        scores={name: _of(float, scores, name) for name in scores},
    )


def _finding(data: object) -> Finding:
    found = _object(data, {"gate", "outcome", "message"})
    finding = Finding(
        gate=_of(str, found, "gate"),
        outcome=Outcome(_one_of(found, "outcome", tuple(Outcome))),
        message=_of(str, found, "message"),
    )
    if tidy([finding]) != (finding,):
        raise ValueError("a finding is too long or no text")
    return finding


def _object(data: object, names: set[str]) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise TypeError("not an object")
    if data.keys() != names:
        raise ValueError("fields are missing or unknown")
    return data


def _of(kind: type[T], data: Mapping[str, Any], name: str) -> T:
    value = data[name]
    if kind is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise TypeError(f"a value is no {kind.__name__}")
    return value


def _one_of(data: Mapping[str, Any], name: str, values: tuple[str, ...]) -> str:
    value = _of(str, data, name)
    if value not in values:
        raise ValueError(f"{name} is none of {', '.join(values)}")
    return value


def _time(data: Mapping[str, Any], name: str) -> float:
    value = _of(float, data, name)
    if not 0 <= value < _END_OF_TIME:
        raise ValueError(f"{name} is no time")
    return value


def _words(error: Exception) -> str:
    return "a field is missing" if isinstance(error, KeyError) else str(error)


def _unreadable(why: str) -> CodecError:
    return CodecError(
        "a stored rollout cannot be read",
        given=why,
        expected="what this release of prefillq writes",
        remedy="Use the release that started it, or end it with "
        "'prefillq templates rollout abort tenant/name'.",
    )
