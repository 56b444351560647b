"""`prefillq templates rollout` and `prefillq templates history`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from contract.console import (
    Seconds,
    emit_json,
    emit_table,
    json_option,
    note,
    option,
)
from contract.errors import NotFound, TimedOut
from contract.ids import TemplateAddress, parse_address
from templates.cli_tools import check_no_selector, open_registry, signed
from templates.rollouts.compare_command import compare
from templates.rollouts.options import Drop, Duration, Share, Weight, Weights
from templates.rollouts.shown import facts, place_of, show, show_end, show_moved, when

if TYPE_CHECKING:  # these bring Redis, which help and completion do without
    from contract.settings import Settings
    from templates.rollouts.control import Rollouts
    from templates.rollouts.journal import Entry
    from templates.rollouts.outcomes import VersionOutcomes
    from templates.rollouts.rollout import Rollout

_ABORTED = 5  # exit status: refused by a check, or by somebody
_LOOK_S = 1.0


@click.group()
def rollout() -> None:
    """Lead a new version in step by step, measured, and take it back with one command."""


@rollout.command()
@click.argument("address", metavar="TEMPLATE")
@option("--to", type=click.IntRange(min=1), required=True, help="Number of the new version.")
@option(
    "--steps",
    type=Weights(),
    default="1,10,50,100",
    show_default=True,
    help="Shares of the jobs that it takes, one after the other.",
)
@option(
    "--bake",
    type=Duration(),
    default="10m",
    show_default=True,
    help="How long each step is measured.",
)
@option("--sticky-key", metavar="NAME", help="Variable whose value decides. [default: the job id]")
@option("--label", metavar="NAME", default="production", show_default=True, help="Label to move.")
@option(
    "--shadow",
    type=Weight(),
    default="0%",
    show_default=True,
    help="Share of the other jobs that it answers too, unseen.",
)
@option(
    "--warm-workers",
    type=Share(),
    default="100%",
    show_default=True,
    help="Share of the workers that must hold its prefix before a step.",
)
@option(
    "--min-samples",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Jobs of each version that a comparison needs.",
)
@option(
    "--max-failures",
    type=Share(),
    default="2%",
    show_default=True,
    help="Rise of the share of failed jobs.",
)
@option(
    "--max-fallbacks",
    type=Share(),
    default="5%",
    show_default=True,
    help="Rise of the share of jobs that did not use the prefix cache.",
)
@option(
    "--max-latency",
    type=click.FloatRange(min=0),
    default=1.5,
    show_default=True,
    help="p95 of the time to the result, as a multiple.",
)
@option(
    "--max-length-drift",
    type=Share(),
    default="50%",
    show_default=True,
    help="Change of the mean length of an answer.",
)
@option(
    "--max-drop",
    type=Drop(),
    multiple=True,
    metavar="NAME=NUMBER",
    help="Drop of the mean of a score (repeatable).",
)
@signed
@json_option
@click.pass_obj
def start(
    settings: Settings,
    *,
    address: str,
    to: int,
    steps: tuple[int, ...],
    bake: float,
    sticky_key: str | None,
    label: str,
    shadow: int,
    warm_workers: float,
    min_samples: int,
    max_failures: float,
    max_fallbacks: float,
    max_latency: float,
    max_length_drift: float,
    max_drop: Sequence[tuple[str, float]],
    who: str | None,
    why: str,
    as_json: bool,
) -> None:
    """Begin a rollout of TEMPLATE from the version that its label points to.

    Workers try the new version, warm it up, and give it each step's share of the jobs; it goes on
    while its jobs end as well as the others'. The label moves after the last step. A template has
    one rollout at a time (exit status 7).
    """
    from templates.registry import Registry
    from templates.rollouts.control import Rollouts
    from templates.rollouts.rollout import Limits, Plan

    template = _template(address)
    registry: Registry = open_registry(settings)
    labelled = TemplateAddress(tenant=template.tenant, name=template.name, selector=label)
    plan = Plan(
        label=label,
        stable=registry.resolve(labelled).version,
        canary=to,
        steps=steps,
        bake_s=bake,
        sticky_key=sticky_key,
        shadow=shadow,
        warm_workers=warm_workers,
        limits=Limits(
            min_samples=min_samples,
            failures=max_failures,
            fallbacks=max_fallbacks,
            latency=max_latency,
            length=max_length_drift,
            scores=dict(max_drop),
        ),
    )
    begun = Rollouts(registry).start(template.tenant, template.name, plan, who=who, why=why)
    show_moved(template, begun, "begun", as_json=as_json)


@rollout.command()
@click.argument("address", metavar="TEMPLATE")
@signed
@json_option
@click.pass_obj
def pause(settings: Settings, *, address: str, who: str | None, why: str, as_json: bool) -> None:
    """Hold the weights of TEMPLATE's rollout until it is resumed, promoted or aborted."""
    template = _template(address)
    held = _rollouts(settings).pause(template.tenant, template.name, who=who, why=why)
    show_moved(template, held, "paused", as_json=as_json)


@rollout.command()
@click.argument("address", metavar="TEMPLATE")
@signed
@json_option
@click.pass_obj
def resume(settings: Settings, *, address: str, who: str | None, why: str, as_json: bool) -> None:
    """Let TEMPLATE's rollout go on from where it was paused."""
    template = _template(address)
    going = _rollouts(settings).resume(template.tenant, template.name, who=who, why=why)
    show_moved(template, going, "resumed", as_json=as_json)


@rollout.command()
@click.argument("address", metavar="TEMPLATE")
@signed
@json_option
@click.pass_obj
def promote(settings: Settings, *, address: str, who: str | None, why: str, as_json: bool) -> None:
    """Move the label of TEMPLATE's rollout to the new version now, whatever its gates say."""
    template = _template(address)
    ended = _rollouts(settings).promote(template.tenant, template.name, who=who, why=why)
    show_moved(template, ended, "promoted", as_json=as_json)


@rollout.command()
@click.argument("address", metavar="TEMPLATE")
@signed
@json_option
@click.pass_obj
def abort(settings: Settings, *, address: str, who: str | None, why: str, as_json: bool) -> None:
    """End TEMPLATE's rollout: all new jobs get the version that its label points to.

    Jobs that have the other version keep it.
    """
    template = _template(address)
    ended = _rollouts(settings).abort(template.tenant, template.name, who=who, why=why)
    show_moved(template, ended, "aborted", as_json=as_json)


@rollout.command()
@click.argument("address", metavar="TEMPLATE")
@option("--wait", is_flag=True, help="Wait until the rollout has ended.")
@option("--timeout", type=Seconds(), help="Seconds to wait. [default: no limit]")
@json_option
@click.pass_obj
def status(
    settings: Settings, *, address: str, wait: bool, timeout: float | None, as_json: bool
) -> None:
    """Show TEMPLATE's rollout: its phase and step, and what the gates found last.

    With --wait, also for one that has ended already: exit status 0 when the new version was
    promoted, 5 when it was aborted, 6 after --timeout, 4 when there never was one.
    """
    template = _template(address)
    rollouts = _rollouts(settings)
    if wait:
        end = _wait(rollouts, template, timeout)
        show_end(template, end, as_json=as_json)
        if end.action != "promote":
            click.get_current_context().exit(_ABORTED)
        return
    active = rollouts.get(template.tenant, template.name)
    if active is None:
        rollouts.registry.check_known(template.tenant, template.name)
    versions = [] if active is None else _outcomes(settings, template, active)
    if as_json:
        emit_json(
            {
                "template": str(template),
                "rollout": None if active is None else facts(active),
                "versions": [version.to_dict() for version in versions],
            }
        )
    elif active is None:
        note(f"{template} has no rollout; 'prefillq templates history' tells of earlier ones")
    else:
        show(template, active, versions)


rollout.add_command(compare)


@click.command()
@click.argument("address", metavar="TEMPLATE")
@option(
    "--limit",
    type=click.IntRange(min=1, max=100_000),
    default=20,
    show_default=True,
    help="Entries at most.",
)
@json_option
@click.pass_obj
def history(settings: Settings, *, address: str, limit: int, as_json: bool) -> None:
    """Show what was published and moved of TEMPLATE, when and by whom, the last first."""
    template = _template(address)
    registry = open_registry(settings)
    entries = registry.history(template.tenant, template.name, limit)
    if not entries:
        registry.check_known(template.tenant, template.name)
    if as_json:
        emit_json({"template": str(template), "entries": [entry.to_dict() for entry in entries]})
    elif entries:
        emit_table(
            ("when", "who", "what", "from", "to", "why"),
            [(when(e.at), e.who, e.action, e.was, e.now, e.why) for e in entries],
        )
    else:
        note(f"nothing of {template} was moved since there is a journal")


def _template(address: str) -> TemplateAddress:
    parsed = parse_address(address)
    check_no_selector(parsed)
    return parsed


def _rollouts(settings: Settings) -> Rollouts:
    from templates.rollouts.control import Rollouts

    return Rollouts(open_registry(settings))


def _outcomes(
    settings: Settings, template: TemplateAddress, rollout: Rollout
) -> list[VersionOutcomes]:
    from contract.redis_client import connect
    from templates.rollouts.outcomes import describe

    with connect(settings) as client:
        return describe(client, settings, template.tenant, template.name, rollout)


def _wait(rollouts: Rollouts, template: TemplateAddress, timeout: float | None) -> Entry:
    """The entry with which the rollout ended that is active now, or the last one."""
    from templates.rollouts.journal import end_of_rollout

    until = None if timeout is None else time.monotonic() + timeout
    waited_for: str | None = None
    shown = ""
    while True:
        active = rollouts.get(template.tenant, template.name)
        if active is None or waited_for not in (None, active.id):
            break
        waited_for = active.id
        if (place := place_of(active)) != shown:
            note(f"{template}: {place}")
            shown = place
        left = _LOOK_S if until is None else min(_LOOK_S, until - time.monotonic())
        if left <= 0:
            raise TimedOut(
                f"the rollout of {template} goes on", given=f"{timeout:g} s", expected="its end"
            )
        time.sleep(left)
    end = end_of_rollout(rollouts.journal(template.tenant, template.name), waited_for)
    if end is None:
        rollouts.registry.check_known(template.tenant, template.name)
        if waited_for is not None:  # somebody took it away by hand
            raise NotFound(
                f"how the rollout of {template} ended is not in its journal",
                remedy=f"See 'prefillq templates history {template}' for what was moved.",
            )
        raise NotFound(
            f"{template} never had a rollout",
            remedy=f"Start one with 'prefillq templates rollout start {template} --to N'.",
        )
    return end
