"""`prefillq scale`."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from contract.console import emit_json, emit_table, json_option, note, option
from contract.errors import InvalidInput, RedisUnreachable
from contract.settings import Settings
from scale.formula import Goal
from scale.options import Counts, HostPort, Wait
from templates.rollouts.options import Duration

if TYPE_CHECKING:  # with Redis, which --help and --simulate do without
    from scale.watching import Watcher

_MAX_REPLICAS = 100_000


@click.command()
@click.argument("targets", metavar="[TENANT[/TEMPLATE]]...", nargs=-1)
@option(
    "--target-wait",
    type=Wait(),
    default="10s",
    show_default=True,
    help="No job shall wait longer for a worker, such as 0.5, 10s or 2m.",
)
@option(
    "--min",
    "minimum",
    envvar="PREFILLQ_SCALE_MIN",
    type=click.IntRange(0, _MAX_REPLICAS),
    default=0,
    show_default=True,
    help="Replicas, at least; 0 scales to none when there is nothing to do.",
)
@option(
    "--max",
    "maximum",
    envvar="PREFILLQ_SCALE_MAX",
    type=click.IntRange(1, _MAX_REPLICAS),
    default=100,
    show_default=True,
    help="Replicas, at most.",
)
@option(
    "--concurrency",
    type=click.IntRange(1, 4096),
    help="Jobs that one worker takes at once; default: what live workers report, or the trace has.",
)
@option(
    "--service-time",
    type=Wait(),
    help="How long a worker has a job; default: measured. For a queue that never had a worker.",
)
@option(
    "--window",
    type=click.FloatRange(10, 600),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Rates are over so long, in whole spans of 10 s.",
)
@option("--watch", is_flag=True, help="Look again and again.")
@option("--every", type=Wait(), default="2s", show_default=True, help="How often --watch looks.")
@option(
    "--serve",
    type=HostPort(),
    help="Answer over HTTP for KEDA's metrics-api scaler; without a host on loopback.",
)
@option("--keda", is_flag=True, help="Print a KEDA ScaledObject for each template and model.")
@option(
    "--endpoint",
    metavar="URL",
    default="http://prefillq-scale:9465",
    show_default=True,
    help="For --keda: where --serve is reached in the cluster.",
)
@option(
    "--deployment",
    metavar="NAME",
    help="For --keda: the workers' Deployment, with {tenant}, {template} and {model} for those of "
    "the object; default: prefillq-worker-{tenant}-{template}, or prefillq-worker for --per-model.",
)
@option(
    "--per-model",
    is_flag=True,
    help="For --keda: an object for each model, for workers that serve all of its templates.",
)
@option("--namespace", metavar="NAME", help="For --keda: of the Deployment.")
@option(
    "--simulate",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    multiple=True,
    metavar="FILE",
    help="Replay a trace, a worker's log or JSON lines, with other numbers of workers.",
)
@option(
    "--workers",
    type=Counts(),
    default="1,2,4,8,16,32",
    show_default=True,
    help="For --simulate: the numbers to try.",
)
@option(
    "--cold-start",
    type=Duration(),
    help="For --simulate: from a worker's start, when the first job comes, until it takes jobs; "
    "default: what the log says of each worker, or 0s.",
)
@option(
    "--prefix-load",
    type=Duration(),
    default="0s",
    show_default=True,
    help="For --simulate: what a version's first job on a worker costs, where the trace has none.",
)
@option("--warm", is_flag=True, help="For --simulate: workers hold all prefixes from the start.")
@option("--seed", type=int, default=0, show_default=True, help="For --simulate.")
@json_option
@click.pass_context
def scale(
    ctx: click.Context,
    *,
    targets: tuple[str, ...],
    target_wait: float,
    minimum: int,
    maximum: int,
    concurrency: int | None,
    service_time: float | None,
    window: float,
    watch: bool,
    every: float,
    serve: tuple[str, int] | None,
    keda: bool,
    endpoint: str,
    deployment: str | None,
    per_model: bool,
    namespace: str | None,
    simulate: tuple[str, ...],
    workers: tuple[int, ...],
    cold_start: float | None,
    prefix_load: float,
    warm: bool,
    seed: int,
    as_json: bool,
) -> None:
    """Show what waits for workers, and how many workers there should be.

    For each template and model: jobs that wait and run, the oldest one's age, arrivals and ends a
    second, workers that live and that hold the prefix, and the replicas with which no job waits
    longer than --target-wait. All numbers are of one moment in Redis.

    With --serve the same is answered over HTTP for KEDA, with --keda the ScaledObject for it is
    printed, and with --simulate a trace is replayed with other numbers of workers, without Redis.
    """
    if sum((watch, serve is not None, keda, bool(simulate))) > 1:
        raise click.UsageError("--watch, --serve, --keda and --simulate exclude each other.")
    if per_model and (targets or not keda):
        raise click.UsageError("--per-model is for --keda, of all templates: name none.")
    if minimum > maximum:
        raise click.UsageError("--min must not be more than --max.")
    goal = Goal(wait_s=target_wait, minimum=minimum, maximum=maximum)
    if simulate:
        _simulate(
            simulate,
            targets,
            goal,
            workers=workers,
            concurrency=concurrency,
            cold_start_s=cold_start,
            prefix_s=prefix_load,
            service_s=service_time,
            warm=warm,
            seed=seed,
            as_json=as_json,
        )
        return
    from contract.redis_client import connect
    from scale.rows import Assumed
    from scale.watching import Watcher

    settings: Settings = ctx.obj
    with connect(settings) as client:
        if keda:
            from scale.keda import (
                FOR_MODEL,
                FOR_TEMPLATE,
                Cluster,
                model_objects,
                scaled_objects,
                to_yaml,
            )
            from scale.names import Names
            from templates.reading import RegistryReader

            deployment = deployment or (FOR_MODEL if per_model else FOR_TEMPLATE)
            cluster = Cluster(endpoint=endpoint, deployment=deployment, namespace=namespace)
            found = Names(RegistryReader(client, settings)).named(targets)
            objects = (model_objects if per_model else scaled_objects)(found, goal, cluster)
            if not objects:
                note("prefillq: no version takes new jobs, so there is nothing to scale")
            if as_json:
                emit_json(objects)
            else:
                click.echo(to_yaml(objects), nl=False)
            return
        assumed = Assumed(concurrency=concurrency, service_s=service_time)
        watcher = Watcher(client, settings, assumed=assumed)
        if serve is not None:
            _serve(watcher, goal, serve, window_s=window, as_json=as_json)
        elif watch:
            _watch(watcher, targets, goal, window_s=window, every_s=every, as_json=as_json)
        else:
            _look(watcher, targets, goal, window_s=window, as_json=as_json)


def _look(
    watcher: Watcher, targets: Sequence[str], goal: Goal, *, window_s: float, as_json: bool
) -> None:
    from scale.shown import show

    seen = watcher.look(targets, goal, window_s=window_s)
    if as_json:
        emit_json(seen.to_dict())
    else:
        show(seen)


def _watch(
    watcher: Watcher,
    targets: Sequence[str],
    goal: Goal,
    *,
    window_s: float,
    every_s: float,
    as_json: bool,
) -> NoReturn:
    while True:
        if sys.stdout.isatty() and not as_json:
            click.clear()
        try:
            _look(watcher, targets, goal, window_s=window_s, as_json=as_json)
        except RedisUnreachable as error:  # it may come back
            if as_json:
                emit_json(error.to_dict())
            else:
                note(f"prefillq: {error}")
        sys.stdout.flush()
        time.sleep(every_s)


def _serve(
    watcher: Watcher, goal: Goal, where: tuple[str, int], *, window_s: float, as_json: bool
) -> None:
    """Until SIGTERM or Ctrl-C."""
    from contract.logs import configure_logs
    from scale.endpoint import Endpoint, Pages

    configure_logs(level="info")
    endpoint = Endpoint(
        Pages(watcher, goal, window_s=window_s).answer, host=where[0], port=where[1]
    )

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, leave)
    if as_json:
        emit_json({"host": endpoint.host, "port": endpoint.port})
        sys.stdout.flush()
    try:
        endpoint.serve()
    finally:
        signal.signal(signal.SIGTERM, before)
        endpoint.close()


def _simulate(
    files: Sequence[str],
    targets: Sequence[str],
    goal: Goal,
    *,
    workers: Sequence[int],
    concurrency: int | None,
    cold_start_s: float | None,
    prefix_s: float,
    service_s: float | None,
    warm: bool,
    seed: int,
    as_json: bool,
) -> None:
    from scale.simulate import Pool, simulate
    from scale.trace import read_trace
    from scale.workload import workload

    def wanted(version: str) -> bool:
        return not targets or _wanted(version, targets)

    trace = read_trace(files)
    if not any(wanted(job.version) for job in trace.jobs):
        raise InvalidInput(
            "the trace has no job of these",
            given=", ".join(targets)[:120],
            remedy="Name templates whose jobs the log holds, or none for all of them.",
        )
    load = workload(trace, seed=seed, wanted=wanted, service_s=service_s, prefix_s=prefix_s)
    slots = concurrency or load.slots
    starts = trace.cold_starts_s if cold_start_s is None else [cold_start_s]
    outcomes = [
        simulate(
            load,
            Pool(workers=count, concurrency=slots, cold_starts_s=starts, warm=warm),
        )
        for count in sorted(workers)
    ]
    enough = next((one.workers for one in outcomes if one.wait_p95_s <= goal.wait_s), None)
    if as_json:
        emit_json(
            {
                "jobs": len(load.works),
                "left_out": trace.left_out,
                "concurrency": slots,
                "slowdown": round(load.slowdown, 6),
                "turnaround_s": round(load.turnaround_s, 6),
                "pickup_s": round(load.pickup_s, 6),
                "cold_starts_s": [round(seconds, 6) for seconds in starts],
                "prefix_s": {name: round(s, 6) for name, s in sorted(load.prefix_s.items())},
                "seed": seed,
                "target_wait_s": goal.wait_s,
                "enough": enough,
                "outcomes": [one.to_dict() for one in outcomes],
            }
        )
        return
    emit_table(
        ("workers", "wait p50 s", "p95 s", "p99 s", "max s", "used", "prefix loads", "jobs/s"),
        [
            (
                one.workers,
                f"{one.wait_p50_s:.2f}",
                f"{one.wait_p95_s:.2f}",
                f"{one.wait_p99_s:.2f}",
                f"{one.wait_max_s:.2f}",
                f"{one.utilisation:.0%}",
                one.cold_loads,
                f"{one.jobs_per_s:.2f}",
            )
            for one in outcomes
        ],
    )
    if trace.left_out:
        note(f"prefillq: {trace.left_out:,} lines of jobs that were never computed are left out")
    note(
        f"prefillq: {len(load.works):,} jobs, {slots} at once on a worker, each further one makes "
        f"all {load.slowdown:.1%} slower, {_shown(starts)} from a "
        "worker's start until it takes jobs; "
        + (
            f"{enough} workers are the fewest of these with a p95 within {goal.wait_s:g} s"
            if enough
            else f"none of these has a p95 within {goal.wait_s:g} s"
        )
    )


def _shown(starts: Sequence[float]) -> str:
    least, most = min(starts, default=0.0), max(starts, default=0.0)
    return f"{least:.1f} s" if least == most else f"{least:.1f} to {most:.1f} s"


def _wanted(version: str, targets: Sequence[str]) -> bool:
    address = version.partition("@")[0]
    return any(target in (address, address.partition("/")[0]) for target in targets)
