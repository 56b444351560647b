"""`prefillq templates sync` and `schema`: files as the source of what is published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from contract.console import emit_json, emit_table, json_option, note, option
from contract.errors import InvalidInput, TemplateRefused
from templates.cli_tools import make_preparer, note_warnings, open_registry, strict_option

if TYPE_CHECKING:
    from templates.sync import Plan, Step


@click.command()
@click.argument(
    "folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@option("--dry-run", is_flag=True, help="Only say what would be done.")
@option("--label", metavar="NAME", help="Point this label to the version of each plain file.")
@strict_option
@json_option
@click.pass_context
def sync(
    ctx: click.Context,
    *,
    folder: Path,
    dry_run: bool,
    label: str | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Publish what is new in the template files below DIR; leave the rest as it is.

    All files are read and compiled before the first is published. When one is refused, nothing is
    published and the exit status is 5. Bundles, as export --all and --dir write them, bring their
    labels along. YAML files of other things and names with a dot in front are passed over.
    """
    from templates.folder import read_folder
    from templates.rollouts.moves import check_label
    from templates.sync import apply_plan, make_plan

    if label is not None:
        check_label(label)
    found = read_folder(folder)
    if not found.files and not found.broken:
        raise InvalidInput(
            "there are no template files",
            given=f"{folder} with {len(found.others)} YAML files of other things",
            expected="files that end in .yaml or .yml and hold a template or a bundle",
        )
    registry = open_registry(ctx.obj)
    plan = make_plan(found, registry, make_preparer(ctx.obj, strict=strict), label=label)
    steps = plan.steps
    if not dry_run and not plan.refused:
        steps = apply_plan(plan, registry)
    _show(folder, plan, steps, dry_run=dry_run, as_json=as_json)
    if plan.refused:
        ctx.exit(TemplateRefused.exit_code)


def _show(folder: Path, plan: Plan, steps: list[Step], *, dry_run: bool, as_json: bool) -> None:
    counts = {
        action: sum(step.action == action for step in steps)
        for action in ("new_template", "new_version", "unchanged", "refused")
    }
    published = not dry_run and not plan.refused
    if as_json:
        emit_json(
            {
                "folder": str(folder),
                "published": published,
                "steps": [step.to_dict() for step in steps],
                "others": list(plan.others),
                **counts,
            }
        )
        return
    for step in steps:
        note_warnings(str(folder / step.path), step.findings)
    emit_table(
        ("file", "version", "prefix tokens", "", "labels"),
        [
            (
                step.path,
                step.template if step.version is None else f"{step.template}@{step.version}",
                "" if step.prefix_tokens is None else step.prefix_tokens,
                step.action.replace("_", " "),
                ", ".join(map(str, step.labels)),
            )
            for step in steps
        ],
    )
    if plan.others:
        note(f"passed over, as no templates: {', '.join(plan.others)}")
    new = counts["new_template"] + counts["new_version"]
    done = "published" if published else "to publish, and nothing was"
    note(f"{new} {done}, {counts['unchanged']} unchanged, {counts['refused']} refused")


@click.command()
@json_option
def schema(*, as_json: bool) -> None:
    """Print the JSON Schema of template files, for editors and checks.

    A file's first line tells an editor: # yaml-language-server: $schema=template.schema.json
    """
    from templates.schema import SCHEMA_FILE

    text = SCHEMA_FILE.read_text("utf-8")
    if as_json:
        emit_json(json.loads(text))
    else:
        click.echo(text, nl=False)


ALL = (sync, schema)
