"""`prefillq templates lint`, `diff`, `export` and `import`: versions as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from contract.console import emit_json, json_option, note, one_line, option
from contract.errors import InvalidInput, NotFound, TemplateRefused
from contract.files import write_text
from contract.ids import TemplateAddress, check_name, parse_address
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
    from templates.registry import Registry


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
@click.argument("address")
@option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Default: stdout.")
@option(
    "--all",
    "everything",
    envvar="PREFILLQ_TEMPLATES_EXPORT_ALL",
    is_flag=True,
    help="All versions and labels, as one file.",
)
@option(
    "--dir",
    "folder",
    envvar="PREFILLQ_TEMPLATES_EXPORT_DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="All templates of the tenant ADDRESS, as bundles DIR/TENANT/NAME.yaml.",
)
@json_option
@click.pass_obj
def export(
    settings: Settings,
    *,
    address: str,
    output: Path | None,
    everything: bool,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Write the version at ADDRESS as a template file, or with --all a bundle to import.

    With --dir, ADDRESS is a tenant. What is written then can be read by import and by sync.
    """
    registry = open_registry(settings)
    if folder is not None:
        if everything or output is not None:
            raise click.UsageError("--dir writes files of its own; leave --all and --output out")
        paths = [str(path) for path in _export_all(registry, check_name("tenant", address), folder)]
        if as_json:
            emit_json({"tenant": address, "files": paths})
        else:
            note(f"{len(paths)} template(s) written below {folder}")
        return
    parsed = parse_address(address)
    if everything:
        check_no_selector(parsed)
        text = _bundle(registry, parsed.tenant, parsed.name)
    else:
        text = _version(registry, parsed)
    if output is not None:
        _write(output, text)
    if as_json:
        emit_json({"address": address, "output": output and str(output), "yaml": text})
    elif output is None:
        click.echo(text, nl=False)


def _export_all(registry: Registry, tenant: str, folder: Path) -> list[Path]:
    found = registry.list_templates(tenant)
    if not found:
        raise NotFound(
            "no such tenant, or it has no templates",
            given=tenant,
            remedy="See 'prefillq templates list'.",
        )
    texts = {template.name: _bundle(registry, tenant, template.name) for template in found}
    paths = []
    for name, text in texts.items():
        path = folder / tenant / f"{name}.yaml"
        _write(path, text, make_folder=True)
        paths.append(path)
    return paths


def _version(registry: Registry, address: TemplateAddress) -> str:
    from templates.transfer import spec_text

    return spec_text(registry.get(registry.resolve(address, with_retired=True)).spec)


def _bundle(registry: Registry, tenant: str, name: str) -> str:
    from templates.transfer import bundle_text

    versions = registry.versions(tenant, name)
    places = {label: n for n, item in enumerate(versions) for label in item.labels}
    return bundle_text([registry.get(item.ref).spec for item in versions], places)


def _write(path: Path, text: str, *, make_folder: bool = False) -> None:
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise InvalidInput(
            "the file cannot be written",
            given=f"{path}: {error.strerror}",
            remedy="Give a path that this user may write to.",
        ) from error


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


ALL = (lint, export, import_command)
