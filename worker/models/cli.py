"""`prefillq models ...`: fetch models and see which are at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from contract.console import emit_json, json_option, option
from contract.model_folder import ModelFolder
from contract.model_store import find_model, stored_models
from contract.settings import MIB, Settings


@click.group()
def models() -> None:
    """Fetch models and see which are at hand."""


@models.command()
@click.argument("name")
@option("--force", is_flag=True, help="Fetch again what is already here.")
@json_option
@click.pass_obj
def fetch(settings: Settings, *, name: str, force: bool, as_json: bool) -> None:
    """Fetch model NAME: a catalog name, a hub id, a model folder or a .gguf file."""
    from worker.models.fetch import fetch_model
    from worker.models.progress import shown_on_stderr

    with shown_on_stderr() as progress:
        folder = fetch_model(name, settings, force=force, progress=progress)
    _print(_described(folder), as_json=as_json)


@models.command(name="list")
@json_option
@click.pass_obj
def list_command(settings: Settings, *, as_json: bool) -> None:
    """List the models at hand, and those of the catalog."""
    from worker.models.catalog import CATALOG

    stored = stored_models(settings)
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "fetched": name in stored,
            "path": str(stored[name]) if name in stored else None,
            "bytes": _size(stored[name]) if name in stored else None,
            "about": CATALOG[name].about if name in CATALOG else "",
        }
        for name in sorted({*stored, *CATALOG})
    ]
    if as_json:
        emit_json(rows)
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        size = f"{row['bytes'] / MIB:.0f} MiB" if row["fetched"] else "not fetched"
        click.echo(f"{row['name']:{width}}  {size:>11}  {row['about']}".rstrip())


@models.command()
@click.argument("name")
@option("--verify", is_flag=True, help="Hash all files again.")
@json_option
@click.pass_obj
def show(settings: Settings, *, name: str, verify: bool, as_json: bool) -> None:
    """Show the digests and limits of model NAME."""
    _print(_described(find_model(name, settings, verify=verify)), as_json=as_json)


@models.command()
@click.argument("name")
@json_option
@click.pass_obj
def path(settings: Settings, *, name: str, as_json: bool) -> None:
    """Print the folder of model NAME."""
    folder = find_model(name, settings)
    if as_json:
        click.echo(json.dumps({"name": name, "path": str(folder.path)}, ensure_ascii=False))
    else:
        click.echo(folder.path)


def _described(folder: ModelFolder) -> dict[str, Any]:
    return {
        "name": folder.name,
        "path": str(folder.path),
        "bytes": _size(folder.path),
        "architecture": folder.architecture,
        "max_positions": folder.max_positions,
        "eos_ids": list(folder.eos_ids),
        "model_digest": folder.model_digest,
        "tokenizer_digest": folder.tokenizer_digest,
    }


def _print(values: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        emit_json(values)
        return
    for name, value in values.items():
        click.echo(f"{name.replace('_', ' '):16}  {value}")


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
