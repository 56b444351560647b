"""`prefillq templates diff`: two versions, or files, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from contract.console import emit_json, emit_text, json_option, note
from contract.errors import ModelError, TemplateRefused
from contract.files import is_file
from contract.ids import parse_address
from templates.cli_tools import make_preparer, open_registry

if TYPE_CHECKING:
    from contract.settings import Settings
    from templates.diff import Difference, PrefixChange, Side


@click.command()
@click.argument("before")
@click.argument("after")
@json_option
@click.pass_obj
def diff(settings: Settings, *, before: str, after: str, as_json: bool) -> None:
    """Compare two versions, each an address or a file.

    The texts' differences are printed; what else differs, and how much of the old prefix the new
    one keeps, is talk on stderr.
    """
    from templates.diff import diff_sides

    difference = diff_sides(_side(settings, before), _side(settings, after))
    if as_json:
        emit_json({"before": before, "after": after, **difference.to_dict()})
        return
    for line in difference.text:
        emit_text(line)
    for line in _told(difference):
        note(line)


def _told(difference: Difference) -> Iterator[str]:
    for name, (old, new) in difference.settings.items():
        yield f"{name}: {old} -> {new}"
    for name, (old, new) in difference.generation.items():
        yield f"generation.{name}: {old} -> {new}"
    if difference.input_schema:
        yield "input.schema: changed"
    samples = difference.samples
    if samples.added or samples.removed or samples.other_answer:
        yield (
            f"samples: {samples.same} the same, {samples.added} added, {samples.removed} removed, "
            f"{samples.other_answer} with another expected answer"
        )
    if difference.weights:
        yield "weights: the model was changed, so that no cached prefix is of use to the other"
    if difference.tokenizer:
        yield "tokenizer: it or the chat template was changed"
    yield _prefix_told(difference.prefix)


def _prefix_told(change: PrefixChange | None) -> str:
    if change is None:
        return "prefix: not compared, since a model is not at hand"
    if change.same:
        return f"prefix: the same {change.before} tokens"
    told = (
        f"prefix: {change.before} -> {change.after} tokens, the first {change.shared} shared, "
        f"{change.removed} removed, {change.added} added"
    )
    if change.kept is not None:
        told += f"; {change.kept:.0%} of the old prefix is kept"
    if change.saved is not None:
        told += f"; {change.saved:.0%} of the new one's prefill is what the old one's was"
    return told


def _side(settings: Settings, text: str) -> Side:
    from templates.diff import Made, Side
    from templates.spec import load_spec

    path = Path(text)
    if path.suffix in {".yaml", ".yml"} or is_file(path):
        spec = load_spec(path)
        try:
            prepared = make_preparer(settings).prepare(spec)
        except (ModelError, TemplateRefused) as error:
            note(f"{text} is compared as text only: {error}")
            return Side(name=text, spec=spec)
        made = Made(
            model_digest=prepared.model.model_digest,
            tokenizer_digest=prepared.model.tokenizer_digest,
            prefix_ids=prepared.compiled.prefix_ids,
        )
        return Side(name=text, spec=spec, made=made)
    registry = open_registry(settings)
    version = registry.get(registry.resolve(parse_address(text), with_retired=True))
    made = Made(
        model_digest=version.model_digest,
        tokenizer_digest=version.tokenizer_digest,
        prefix_ids=version.compiled.prefix_ids,
    )
    return Side(name=str(version.ref), spec=version.spec, made=made)
