"""What the commands of `prefillq templates` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from contract.console import emit_json, emit_table, note, open_client, option
from contract.errors import InvalidInput
from contract.ids import TemplateAddress

if TYPE_CHECKING:  # these bring Redis and Jinja, which help and completion do without
    from contract.settings import Settings
    from templates.finding import Finding
    from templates.prepare import Preparer
    from templates.registry import Published, Registry

_F = TypeVar("_F", bound=Callable[..., Any])

files_argument = click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)


def signed(function: _F) -> _F:
    """Give a command `--who` and `--why`, which the journal of its template gets."""
    who = option("--who", metavar="TEXT", help="Who does it, for the journal. [default: you@host]")
    why = option("--why", metavar="TEXT", default="", help="Why, for the journal.")
    return who(why(function))


def open_registry(settings: Settings) -> Registry:
    from templates.registry import Registry

    return Registry(open_client(settings), settings)


def make_preparer(settings: Settings, *, strict: bool = False) -> Preparer:
    from templates.prepare import Preparer

    return Preparer(settings, strict=strict)


def check_no_selector(address: TemplateAddress) -> None:
    """Raise InvalidInput when an address names a version where a template is meant."""
    if address.selector is not None:
        raise InvalidInput(
            "this takes a template, not a version",
            given=address,
            expected=f"{address.tenant}/{address.name}",
        )


strict_option = option("--strict", is_flag=True, help="Take warnings for errors.")


def note_warnings(name: str, warnings: Iterable[Finding]) -> None:
    """Talk about what is not wrong, and not as it could be."""
    for finding in warnings:
        place = name if finding.line is None else f"{name}:{finding.line}"
        note(f"{place}: {finding}")


def show_published(
    registry: Registry,
    published: list[Published],
    *,
    as_json: bool,
    warnings: Mapping[str, Sequence[Finding]] | None = None,
) -> None:
    """Print what publishing came to, with the labels as they are now; `warnings` by address."""
    rows: list[dict[str, Any]] = []
    for item in published:
        ref = item.version.ref
        labels = registry.labels(ref.tenant, ref.template)
        rows.append(
            {
                "address": str(ref),
                "version": ref.version,
                "digest": ref.digest,
                "created": item.created,
                "prefix_tokens": len(item.version.compiled.prefix_ids),
                "labels": [name for name, number in labels.items() if number == ref.version],
                "warnings": [w.to_dict() for w in (warnings or {}).get(str(ref), ())],
            }
        )
    if as_json:
        emit_json({"published": rows})
        return
    emit_table(
        ("version", "digest", "prefix tokens", "labels", ""),
        [
            (
                row["address"],
                row["digest"][:12],
                row["prefix_tokens"],
                ", ".join(row["labels"]),
                "new" if row["created"] else "unchanged",
            )
            for row in rows
        ],
    )
