"""`prefillq templates lint`, `diff`, `export` and `import`: versions as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from contract.console import emit_json, emit_text, json_option, note, one_line, option
from contract.errors import InvalidInput, ModelError, TemplateRefused
from contract.files import is_file, write_text
from contract.ids import parse_address
from templates.cli_tools import (
    check_no_selector,
    files_argument,
    make_preparer,
    open_registry,
    show_published,
    strict_option,
)

if TYPE_CHECKING:
    from contract.settings import Settings
    from templates.diff import Side


@click.command()
@files_argument
@strict_option
@json_option
@click.pass_context
def lint(ctx: click.Context, *, files: tuple[Path, ...], strict: bool, as_json: bool) -> None:
    """Say what is wrong with each FILE, or makes its cached prefix less useful.

    Errors give exit status 5, warnings only with --strict.
    """
    from templates.finding import errors_of

    preparer = make_preparer(ctx.obj)
    found = {str(path): preparer.lint(path) for path in files}
    errors = sum(len(errors_of(findings)) for findings in found.values())
    total = sum(map(len, found.values()))
    if as_json:
        emit_json(
            {
                "files": [
                    {"file": name, "findings": [finding.to_dict() for finding in findings]}
                    for name, findings in found.items()
                ],
                "errors": errors,
                "warnings": total - errors,
            }
        )
    else:
        for name, findings in found.items():
            for finding in findings:
                place = name if finding.line is None else f"{name}:{finding.line}"
                click.echo(one_line(f"{place}: {finding}"))
        note(f"{len(files)} file(s), {errors} error(s), {total - errors} warning(s)")
    if errors or (strict and total):
        ctx.exit(TemplateRefused.exit_code)


@click.command()
@click.argument("before")
@click.argument("after")
@json_option
@click.pass_obj
def diff(settings: Settings, *, before: str, after: str, as_json: bool) -> None:
    """Compare two versions, each an address or a file."""
    from templates.diff import diff_sides

    difference = diff_sides(_side(settings, before), _side(settings, after))
    if as_json:
        emit_json({"before": before, "after": after, **difference.to_dict()})
        return
    for line in difference.text:
        emit_text(line)
    for name, (old, new) in difference.generation.items():
        note(f"generation.{name}: {old} -> {new}")
    change = difference.prefix
    if change is None:
        note("prefix: not compared, since a model is not at hand")
    elif change.same:
        note(f"prefix: the same {change.before} tokens")
    else:
        note(
            f"prefix: {change.before} -> {change.after} tokens, the first {change.shared} shared, "
            f"{change.removed} removed, {change.added} added"
        )


def _side(settings: Settings, text: str) -> Side:
    from templates.diff import Side
    from templates.spec import load_spec

    path = Path(text)
    if path.suffix in {".yaml", ".yml"} or is_file(path):
        spec = load_spec(path)
        try:
            compiled = make_preparer(settings).prepare(spec).compiled
        except (ModelError, TemplateRefused) as error:
            note(f"{text} is compared as text only: {error}")
            return Side(name=text, spec=spec)
        return Side(name=text, spec=spec, prefix_ids=compiled.prefix_ids)
    registry = open_registry(settings)
    version = registry.get(registry.resolve(parse_address(text), with_retired=True))
    return Side(name=str(version.ref), spec=version.spec, prefix_ids=version.compiled.prefix_ids)


@click.command()
@click.argument("address")
@option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Default: stdout.")
@option(
    "--all",
    "everything",
    envvar="PREFILLQ_TEMPLATES_EXPORT_ALL",
    is_flag=True,
    help="All versions and labels, as one file.",
)
@json_option
@click.pass_obj
def export(
    settings: Settings, *, address: str, output: Path | None, everything: bool, as_json: bool
) -> None:
    """Write the version at ADDRESS as a template file, or with --all a bundle to import."""
    from templates.transfer import bundle_text, spec_text

    registry = open_registry(settings)
    parsed = parse_address(address)
    if everything:
        check_no_selector(parsed)
        versions = registry.versions(parsed.tenant, parsed.name)
        places = {label: n for n, item in enumerate(versions) for label in item.labels}
        text = bundle_text([registry.get(item.ref).spec for item in versions], places)
    else:
        text = spec_text(registry.get(registry.resolve(parsed, with_retired=True)).spec)
    if output is not None:
        try:
            write_text(output, text)
        except OSError as error:
            raise InvalidInput(
                "the file cannot be written", given=f"{output}: {error.strerror}"
            ) from error
    if as_json:
        emit_json({"address": address, "output": output and str(output), "yaml": text})
    elif output is None:
        click.echo(text, nl=False)


@click.command(name="import")
@files_argument
@json_option
@click.pass_obj
def import_command(settings: Settings, *, files: tuple[Path, ...], as_json: bool) -> None:
    """Publish exported FILEs: versions in their order, then labels."""
    from templates.prepare import import_bundles
    from templates.transfer import parse_bundle
    from templates.yaml_source import load_documents

    bundles = [parse_bundle(load_documents(path), source=str(path)) for path in files]
    registry = open_registry(settings)
    published = import_bundles(bundles, make_preparer(settings), registry)
    show_published(registry, published, as_json=as_json)


ALL = (lint, diff, export, import_command)
