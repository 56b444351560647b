"""`prefillq stream`: an answer while it is written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from contract.console import Seconds, emit_json, emit_text, json_option, note, option
from contract.errors import JobFailed

if TYPE_CHECKING:
    from contract.pieces import Piece
    from contract.settings import Settings


@click.command()
@click.argument("job_id", metavar="ID")
@option(
    "--from",
    "after",
    envvar="PREFILLQ_STREAM_FROM",
    metavar="ENTRY",
    help="Go on after this entry, as --json names them.",
)
@option(
    "--timeout", type=Seconds(), default=300.0, show_default=True, help="Seconds to read at most."
)
@option(
    "--patience",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Seconds to go on trying while Redis cannot be reached.",
)
@json_option
@click.pass_obj
def stream(
    settings: Settings,
    *,
    job_id: str,
    after: str | None,
    timeout: float,
    patience: float,
    as_json: bool,
) -> None:
    """Print the answer of job ID while it is written.

    The job must have been submitted with --stream. With --json each piece is a line. When another
    attempt begins the text anew, that is said on stderr. Interrupting this cancels nothing.
    """
    from producer.client import Producer

    producer = click.get_current_context().with_resource(Producer(settings, patience_s=patience))
    handle = producer.handle(job_id)
    for piece in handle.stream(after=after, timeout=timeout):
        if as_json:
            emit_json(piece.to_dict())
            sys.stdout.flush()
        else:
            _show(piece)
        if piece.kind == "end" and piece.status != "succeeded":
            if not as_json:
                note(f"{job_id} {piece.status}; see 'prefillq result {job_id}'")
            click.get_current_context().exit(JobFailed.exit_code)


def _show(piece: Piece) -> None:
    match piece.kind:
        case "text":
            emit_text(piece.text, nl=False)
            sys.stdout.flush()
        case "restart":
            click.echo()
            note(f"attempt {piece.attempt} begins anew")
        case "end":
            click.echo()
