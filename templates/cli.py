"""`prefillq templates`: publish, look at, compare, label and move template versions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from contract.console import (
    emit_json,
    emit_table,
    emit_text,
    json_option,
    note,
    option,
    read_json_argument,
)
from contract.errors import InvalidInput
from contract.ids import parse_address
from templates import diff_command, file_commands, orphans_command, source_commands
from templates.cli_tools import (
    check_no_selector,
    files_argument,
    make_preparer,
    note_warnings,
    open_registry,
    show_published,
    signed,
    strict_option,
)
from templates.rollouts.cli import history, rollout

if TYPE_CHECKING:
    from contract.settings import Settings


@click.group()
def templates() -> None:
    """Publish prompt templates and look after their versions."""


@templates.command()
@files_argument
@option("--label", metavar="NAME", help="Point this label to each published version.")
@signed
@strict_option
@json_option
@click.pass_obj
def publish(
    settings: Settings,
    *,
    files: tuple[Path, ...],
    label: str | None,
    who: str | None,
    why: str,
    strict: bool,
    as_json: bool,
) -> None:
    """Publish one version per FILE; the same content again is the same version.

    All files are compiled and checked (see lint) before the first is published. A template's first
    version gets the label production.
    """
    preparer = make_preparer(settings, strict=strict)
    prepared = [preparer.prepare_file(path) for path in files]
    for path, item in zip(files, prepared, strict=True):
        note_warnings(str(path), item.warnings)
    registry = open_registry(settings)
    published = [
        registry.publish(item.spec, item.compiled, item.model, who=who, why=why)
        for item in prepared
    ]
    if label is not None:
        for done in published:
            ref = done.version.ref
            registry.set_label(ref.tenant, ref.template, label, ref.version, who=who, why=why)
    warnings = {
        str(done.version.ref): item.warnings for done, item in zip(published, prepared, strict=True)
    }
    show_published(registry, published, as_json=as_json, warnings=warnings)


@templates.command(name="list")
@click.argument("tenant", required=False)
@json_option
@click.pass_obj
def list_command(settings: Settings, *, tenant: str | None, as_json: bool) -> None:
    """List templates, of one TENANT or of all."""
    found = open_registry(settings).list_templates(tenant)
    if as_json:
        emit_json(
            {
                "templates": [
                    {
                        "tenant": item.tenant,
                        "name": item.name,
                        "latest": item.latest,
                        "labels": dict(item.labels),
                    }
                    for item in found
                ]
            }
        )
    elif found:
        emit_table(
            ("template", "latest", "labels"),
            [(f"{i.tenant}/{i.name}", i.latest, _labels_text(i.labels)) for i in found],
        )
    else:
        note("no templates; publish one with 'prefillq templates publish FILE'")


def _labels_text(labels: Any) -> str:
    return ", ".join(f"{label}={number}" for label, number in labels.items())


@templates.command()
@click.argument("address")
@option(
    "--prompt", metavar="JSON", help="Also show the prompt for these variables (JSON, @file, -)."
)
@json_option
@click.pass_obj
def show(settings: Settings, *, address: str, prompt: str | None, as_json: bool) -> None:
    """Show the version at ADDRESS: its spec, labels, digest and prefix length."""
    from templates.fill import filled_text
    from templates.transfer import spec_text

    registry = open_registry(settings)
    version = registry.get(registry.resolve(parse_address(address), with_retired=True))
    ref = version.ref
    labels = registry.labels(ref.tenant, ref.template)
    facts: dict[str, Any] = {
        "address": str(ref),
        "digest": ref.digest,
        "labels": [name for name, number in labels.items() if number == ref.version],
        "retired": ref.version in registry.retired(ref.tenant, ref.template),
        "model": version.spec.model,
        "model_digest": version.model_digest,
        "tokenizer_digest": version.tokenizer_digest,
        "prefix_tokens": len(version.compiled.prefix_ids),
        "published_at": datetime.fromtimestamp(version.published_at, UTC).isoformat(),
    }
    text = None
    if prompt is not None:
        text = filled_text(version.compiled, _variables(prompt))
    if as_json:
        emit_json({**facts, "spec": version.spec.to_plain(), "prompt": text})
    elif text is not None:
        emit_text(text)
    else:
        for name, value in facts.items():
            shown = ", ".join(value) if isinstance(value, list) else value
            click.echo(f"# {name}: {'yes' if shown is True else 'no' if shown is False else shown}")
        click.echo(spec_text(version.spec), nl=False)


def _variables(text: str) -> dict[str, Any]:
    variables = read_json_argument(text, what="--prompt")
    if not isinstance(variables, dict):
        raise InvalidInput(
            "--prompt is no JSON object",
            given=type(variables).__name__,
            expected='{"variable": value}',
        )
    return variables


@templates.command()
@click.argument("address")
@click.argument("label")
@option("--expect", type=click.IntRange(min=0), help="Version it must point to now (0: none).")
@option("--remove", is_flag=True, help="Remove the label; ADDRESS is then tenant/name.")
@signed
@json_option
@click.pass_obj
def label(
    settings: Settings,
    *,
    address: str,
    label: str,
    expect: int | None,
    remove: bool,
    who: str | None,
    why: str,
    as_json: bool,
) -> None:
    """Point LABEL to the version at ADDRESS.

    While a rollout is about the label that is a conflict (exit status 7).
    """
    from templates.registry import ANYTHING

    registry = open_registry(settings)
    parsed = parse_address(address)
    expected = ANYTHING if expect is None else (expect or None)
    if remove:
        check_no_selector(parsed)
        registry.remove_label(parsed.tenant, parsed.name, label, expect=expected, who=who, why=why)
        number = None
    else:
        number = registry.resolve(parsed).version
        registry.set_label(
            parsed.tenant, parsed.name, label, number, expect=expected, who=who, why=why
        )
    if as_json:
        name = f"{parsed.tenant}/{parsed.name}"
        emit_json({"template": name, "label": label, "version": number})
    elif number is None:
        note(f"{label} removed from {parsed}")
    else:
        note(f"{label} points to {parsed.tenant}/{parsed.name}@{number}")


@templates.command()
@click.argument("address")
@option("--undo", is_flag=True, help="Let it take jobs again.")
@signed
@json_option
@click.pass_obj
def retire(
    settings: Settings, *, address: str, undo: bool, who: str | None, why: str, as_json: bool
) -> None:
    """Take no new jobs for the version at ADDRESS, such as acme/triage@3.

    The jobs it has are finished. A version that a label points to, or a rollout is about, is a
    conflict: move the label or end the rollout first.
    """
    registry = open_registry(settings)
    parsed = parse_address(address)
    number = registry.resolve(parsed, with_retired=True).version
    registry.retire(parsed.tenant, parsed.name, number, undo=undo, who=who, why=why)
    template = f"{parsed.tenant}/{parsed.name}"
    if as_json:
        emit_json({"template": template, "version": number, "retired": not undo})
    else:
        note(f"{template}@{number} {'takes jobs again' if undo else 'is retired'}")


_COMMANDS = (
    *file_commands.ALL,
    *source_commands.ALL,
    diff_command.diff,
    orphans_command.orphans,
    rollout,
    history,
)
for _command in _COMMANDS:
    templates.add_command(_command)
