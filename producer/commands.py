"""`prefillq submit`, `result`, `status`, `cancel`, `score` and `completion`; all that are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from contract.console import (
    Seconds,
    emit_json,
    emit_text,
    json_option,
    note,
    open_client,
    option,
    read_json_argument,
)
from contract.described import cut, describe
from contract.errors import InvalidInput, JobFailed, TimedOut
from producer.batch.command import batch
from producer.dead_command import dead
from producer.patience import Patience
from producer.stream_command import stream

if TYPE_CHECKING:  # these bring Redis and Celery, which help and completion do without
    from contract.settings import Settings
    from contract.types import Result
    from producer.client import Producer

_FAILED = JobFailed.exit_code


def _producer(settings: Settings, *, patience_s: float = 0.0) -> Producer:
    from producer.client import Producer

    return click.get_current_context().with_resource(Producer(settings, patience_s=patience_s))


@click.command()
@click.argument("template")
@option(
    "--var",
    "pairs",
    envvar="PREFILLQ_SUBMIT_VAR",
    multiple=True,
    metavar="NAME=VALUE",
    help="One variable (repeatable). Text, or JSON where the template's schema wants no text.",
)
@option(
    "--vars",
    "given",
    envvar="PREFILLQ_SUBMIT_VARS",
    metavar="JSON",
    help="Variables as a JSON object, @file or - (stdin).",
)
@option("--wait", is_flag=True, help="Wait for the job and print its answer.")
@option(
    "--timeout",
    type=Seconds(),
    default=300.0,
    show_default=True,
    help="Seconds to wait.",
)
@option(
    "--patience",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Seconds to go on trying while Redis cannot be reached.",
)
@option("--idempotency-key", metavar="KEY", help="Submitting again under it gives the same job.")
@option("--sticky-key", metavar="KEY", help="Jobs with one key get one version in a rollout.")
@option("--deadline", type=Seconds(min_open=True), help="Seconds the job may take.")
@option("--no-cache", is_flag=True, help="Compute the prefix anew, to compare.")
@option("--stream", is_flag=True, help="Have the answer written piece by piece, for 'stream'.")
@json_option
@click.pass_obj
def submit(
    settings: Settings,
    *,
    template: str,
    pairs: tuple[str, ...],
    given: str | None,
    wait: bool,
    timeout: float,
    patience: float,
    idempotency_key: str | None,
    sticky_key: str | None,
    deadline: float | None,
    no_cache: bool,
    stream: bool,
    as_json: bool,
) -> None:
    """Enqueue one job and print its id.

    TEMPLATE is tenant/name, tenant/name@3 or tenant/name@label. With --wait, the model's answer
    is printed instead. With --stream, 'prefillq stream ID' prints it while it is written.
    """
    variables = {} if given is None else read_json_argument(given, what="--vars")
    if not isinstance(variables, dict):
        raise InvalidInput(
            "--vars is no JSON object", given=type(variables).__name__, expected='{"name": value}'
        )
    if pairs:
        properties = Patience(patience).call(lambda: _properties(settings, template))
        variables |= parse_pairs(pairs, properties)
    handle = _producer(settings, patience_s=patience).submit(
        template,
        variables,
        idempotency_key=idempotency_key,
        sticky_key=sticky_key,
        deadline_s=deadline,
        use_cache=not no_cache,
        stream=stream,
    )
    if wait:
        if not as_json:
            note(handle.id)  # known also when the wait ends early
        _print_result(handle.outcome(timeout), as_json=as_json)
    elif as_json:
        emit_json({"job_id": handle.id})
    else:
        click.echo(handle.id)


def parse_pairs(pairs: Sequence[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    """`name=value` pairs as variables.

    A value is text where the schema's property allows text or says nothing of its type, else
    JSON. Raises InvalidInput naming the pair.
    """
    variables: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidInput("--var has no value", given=describe(pair), expected="NAME=VALUE")
        if name in variables:
            raise InvalidInput(f"--var {cut(name)} is given twice", remedy="Give it once.")
        schema = properties.get(name)
        types = schema.get("type", "string") if isinstance(schema, dict) else "string"
        textual = "string" in types if isinstance(types, list) else types == "string"
        variables[name] = value if textual else read_json_argument(value, what=f"--var {cut(name)}")
    return variables


def _properties(settings: Settings, template: str) -> Mapping[str, Any]:
    from contract.ids import parse_address
    from templates.registry import Registry

    registry = Registry(open_client(settings), settings)
    # A retired version may be that of a job under an idempotency key; else `submit` refuses it.
    version = registry.get(registry.resolve(parse_address(template), with_retired=True))
    properties: Mapping[str, Any] = version.spec.input.json_schema.get("properties", {})
    return properties


@click.command()
@click.argument("job_id", metavar="ID")
@option("--wait", is_flag=True, help="Wait until the job has ended.")
@option(
    "--timeout",
    type=Seconds(),
    default=300.0,
    show_default=True,
    help="Seconds to wait.",
)
@json_option
@click.pass_obj
def result(settings: Settings, *, job_id: str, wait: bool, timeout: float, as_json: bool) -> None:
    """Print the answer of job ID.

    With --json also its token counts, cache state and timings. A job that has not ended gives
    exit status 6 at once, unless --wait is given.
    """
    handle = _producer(settings).handle(job_id)
    if not wait and not (state := handle.status()).ended:
        raise TimedOut(
            "the job has not ended yet",
            given=f"{job_id} is {state}",
            remedy="Wait for it with --wait.",
        )
    _print_result(handle.outcome(timeout), as_json=as_json)


def _print_result(result: Result, *, as_json: bool) -> None:
    from contract.types import JobState

    if as_json:
        emit_json(result.to_dict())
    elif result.status is JobState.SUCCEEDED:
        emit_text(result.text)
    else:
        why = f": {result.error}" if result.error else ""
        note(f"{result.job_id} {result.status}{why}")
    if result.status is not JobState.SUCCEEDED:
        click.get_current_context().exit(_FAILED)


@click.command()
@click.argument("job_id", metavar="ID")
@json_option
@click.pass_obj
def status(settings: Settings, *, job_id: str, as_json: bool) -> None:
    """Print the state of job ID.

    One of queued, running, succeeded, failed, cancelled and expired. With --json also its version,
    the rollout that chose it, if one did, and its scores.
    """
    view = _producer(settings).handle(job_id).view()
    if as_json:
        emit_json(
            {
                "job_id": job_id,
                "status": str(view.state),
                "template": f"{view.job.ref.tenant}/{view.job.ref.template}",
                "version": view.job.ref.version,
                "rollout": view.job.rollout or None,
                "scores": dict(view.scores),
            }
        )
    else:
        click.echo(str(view.state))


@click.command()
@click.argument("job_id", metavar="ID")
@json_option
@click.pass_obj
def cancel(settings: Settings, *, job_id: str, as_json: bool) -> None:
    """Cancel job ID.

    A queued job ends at once, a running one between two tokens. A job that has ended already
    is a conflict (exit status 7).
    """
    state = _producer(settings).handle(job_id).cancel()
    if as_json:
        emit_json({"job_id": job_id, "status": str(state)})
    else:
        click.echo(str(state))


# Unknown options are let through, so that a value may be below zero.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("job_id", metavar="ID")
@click.argument("name")
@click.argument("value", type=float)
@json_option
@click.pass_obj
def score(settings: Settings, *, job_id: str, name: str, value: float, as_json: bool) -> None:
    """Say how good the answer of job ID is.

    VALUE is a number under a NAME of yours, such as quality; the last one of a name counts. A
    rollout with --max-drop NAME compares its versions by it. A job that has not succeeded is a
    conflict (exit status 7).
    """
    _producer(settings).handle(job_id).score(name, value)
    if as_json:
        emit_json({"job_id": job_id, "name": name, "value": value})
    else:
        note(f"{job_id}: {name} is {value:g}")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def completion(*, shell: str, as_json: bool) -> None:
    """Print a completion script.

    For bash: eval "$(prefillq completion bash)"
    """
    root = click.get_current_context().find_root()
    maker = get_completion_class(shell)
    if maker is None:  # click knows all three
        raise InvalidInput("no completion for this shell", given=shell)
    script = maker(root.command, {}, "prefillq", "_PREFILLQ_COMPLETE").source()
    if as_json:
        emit_json({"shell": shell, "script": script})
    else:
        click.echo(script)


ALL = (submit, result, stream, status, cancel, score, batch, dead, completion)
