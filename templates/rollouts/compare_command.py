"""`prefillq templates rollout compare`: what the canary would have answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from contract.console import emit_json, emit_table, json_option, note, one_line, open_client, option
from contract.ids import parse_address
from templates.cli_tools import check_no_selector, open_registry

if TYPE_CHECKING:  # these bring Redis, which help and completion do without
    from contract.settings import Settings
    from templates.rollouts.compare import Answered, Comparison, Pair

_CHARS = 60  # of an answer in the table


@click.command()
@click.argument("address", metavar="TEMPLATE")
@option(
    "--limit",
    type=click.IntRange(min=0, max=1000),
    default=20,
    show_default=True,
    help="Jobs to show at most, the newest first.",
)
@option("--differing", is_flag=True, help="Show only jobs whose answers differ.")
@option("--rollout", metavar="ID", help="An earlier rollout. [default: the last one]")
@json_option
@click.pass_obj
def compare(
    settings: Settings,
    *,
    address: str,
    limit: int,
    differing: bool,
    rollout: str | None,
    as_json: bool,
) -> None:
    """Set the answers of TEMPLATE's stable version and of its shadow side by side.

    The canary answered them beside the stable version, when a worker had time; its answers went
    nowhere else. The last thousand are kept, for a week. Counts and means are over all of them.
    """
    from templates.rollouts.compare import latest_rollout, read_pairs
    from templates.rollouts.plain import check_id

    template = parse_address(address)
    check_no_selector(template)
    rollout_id = (
        latest_rollout(open_registry(settings), template.tenant, template.name)
        if rollout is None
        else check_id(rollout)
    )
    found = read_pairs(open_client(settings), settings, template.tenant, rollout_id)
    shown = [pair for pair in found.pairs if not (differing and pair.equal)][:limit]
    if as_json:
        emit_json(
            {
                "template": str(template),
                "rollout": rollout_id,
                **found.to_dict(),
                "pairs": [pair.to_dict() for pair in shown],
            }
        )
        return
    if shown:
        emit_table(
            ("job", "stable", "canary", "", "tokens", "seconds"),
            [_row(pair) for pair in shown],
        )
    for line in _told(found):
        note(line)


def _row(pair: Pair) -> tuple[object, ...]:
    stable, canary = pair.stable, pair.canary
    return (
        pair.job_id,
        _answer(stable),
        _answer(canary),
        "" if pair.equal else "differs",
        f"{stable.tokens}/{canary.tokens}",
        f"{stable.seconds:.2f}/{canary.seconds:.2f}",
    )


def _answer(answered: Answered) -> str:
    if answered.error:
        return f"({answered.error})"
    text = answered.text if answered.choice is None else answered.choice
    return one_line(text, limit=_CHARS)


def _told(found: Comparison) -> Iterable[str]:
    if not found.pairs:
        yield "no job was answered by both versions yet"
        return
    if found.agreement is not None:
        yield (
            f"{found.equal} of {found.answered} answers are equal ({found.agreement:.1%}); mean "
            f"tokens {found.stable.tokens:.1f} and {found.canary.tokens:.1f}, "
            f"seconds {found.stable.seconds:.3f} and {found.canary.seconds:.3f}"
        )
    if found.failed:
        yield f"{found.failed} jobs that the canary had no answer to"
    for (old, new), jobs in found.changes.items():
        yield f"{jobs} x {one_line(old)} became {one_line(new)}"
    if found.unreadable:
        yield f"{found.unreadable} entries that cannot be read are left out"
