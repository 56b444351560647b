"""`prefillq worker start` and `prefillq worker list`."""

from __future__ import annotations

import re
from typing import Any

import click

from contract.console import emit_json, emit_table, json_option, note, one_line, open_client, option
from contract.errors import CodecError, InvalidInput
from contract.logs import configure_logs
from contract.settings import GIB, KIB, MIB, Settings
from contract.worker_reports import EXPIRES_S, check_report, list_workers
from worker.engine.names import KERNELS, MODES, Auto, KernelName, Mode
from worker.openmp import wait_passively
from worker.options import DEFAULT_MODEL, Warm, WorkerOptions
from worker.patterns import Pin, check_pattern, parse_pin

_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB}


class DeviceName(click.ParamType[str]):
    """How a device is spelt; whether it is there only torch can tell."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", text, re.ASCII):
            self.fail(f"{value!r:.40} is no device; write auto, cpu, mps or cuda[:N]", param, ctx)
        return text


class TemplatePattern(click.ParamType[str]):
    """Names of templates with `*` and `?`."""

    name = "pattern"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return check_pattern(str(value))
        except InvalidInput as error:
            self.fail(str(error), param, ctx)


class PinPattern(click.ParamType[Pin]):
    """The same, perhaps with a label."""

    name = "pin"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Pin:
        if isinstance(value, Pin):
            return value
        try:
            return parse_pin(str(value))
        except InvalidInput as error:
            self.fail(str(error), param, ctx)


class ByteSize(click.ParamType[int]):
    """A number of bytes, also as 512M or 2G."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(
            r"(\d{1,15})([KMG]?)(?:i?B)?", str(value).strip(), re.IGNORECASE | re.ASCII
        )
        if match is None:
            self.fail(f"{value!r:.40} is no size; write 512M or 2G", param, ctx)
        return int(match.group(1)) * _UNITS[match.group(2).upper()]


@click.group()
def worker() -> None:
    """Run workers and see what they hold."""


@worker.command()
@option("--model", default=DEFAULT_MODEL, show_default=True, help="Model to serve.")
@option(
    "--template",
    type=TemplatePattern(),
    multiple=True,
    metavar="PATTERN",
    help="Templates to serve, such as acme/* (repeatable; default: all of this model).",
)
@option(
    "--exclude",
    type=TemplatePattern(),
    multiple=True,
    metavar="PATTERN",
    help="Templates not to serve, whatever --template says (repeatable).",
)
@option(
    "--pin",
    type=PinPattern(),
    multiple=True,
    metavar="TEMPLATE[@LABEL]",
    help="Keep what labels of these templates point to in the prefix cache (repeatable).",
)
@option(
    "--device",
    type=DeviceName(),
    default="auto",
    show_default=True,
    help="cuda, cuda:1, mps or cpu.",
)
@option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    show_default=True,
    help="auto: bfloat16 on CUDA, float32 elsewhere.",
)
@option(
    "--cache-bytes",
    type=ByteSize(),
    default="2G",
    show_default=True,
    help="Budget of the prefix cache.",
)
@option(
    "--disk-bytes",
    envvar="PREFILLQ_DISK_BYTES",
    type=ByteSize(),
    default="4G",
    show_default=True,
    help="Budget of the prefixes kept on disk for the next start; 0 keeps none.",
)
@option(
    "--warm",
    type=click.Choice(["none", "used", "all"]),
    default="none",
    show_default=True,
    help="Prefill and check before the first job: used, what had jobs lately; all, what labels "
    "point to.",
)
@option(
    "--engine",
    type=click.Choice(["auto", *MODES]),
    default="auto",
    show_default=True,
    help="auto: the fastest that is proven for the model on this machine.",
)
@option(
    "--kernels",
    type=click.Choice(["auto", *KERNELS]),
    default="auto",
    show_default=True,
    help="What the shared engine computes with.",
)
@option(
    "--batch",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    help="Jobs at once, at most.",
)
@option(
    "--chunk-tokens",
    type=click.IntRange(16, 2**20),
    default=512,
    show_default=True,
    help="Prefill tokens in one step, which running jobs wait for.",
)
@option(
    "--suffix-bytes",
    type=ByteSize(),
    default="1G",
    show_default=True,
    help="Memory of the tokens beyond the prefixes; jobs wait when it is full.",
)
@option("--threads", type=click.IntRange(1, 4096), help="CPU threads of torch.")
@option(
    "--trust-remote-code",
    envvar="PREFILLQ_TRUST_REMOTE_CODE",
    is_flag=True,
    help="Run the Python code in the model's folder. Read it first.",
)
@option(
    "--grace",
    type=click.FloatRange(min=0),
    default=25.0,
    show_default=True,
    help="Seconds that running jobs have after SIGTERM; the rest goes back to the queue.",
)
@option(
    "--watchdog",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Seconds without a step of any running job after which the process ends; 0: never.",
)
@option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve metrics for Prometheus on this port; 0: any that is free. Default: none.",
)
@option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="Address to serve them on. Whoever reaches it can read them.",
)
@option(
    "--metrics-tenant",
    is_flag=True,
    help="Label the metrics with tenants too; without it none is named or told apart.",
)
@option(
    "--traces",
    is_flag=True,
    help="Send OpenTelemetry traces by OTLP over HTTP; OTEL_EXPORTER_OTLP_ENDPOINT says where to.",
)
@option(
    "--audit",
    envvar="PREFILLQ_AUDIT",
    is_flag=True,
    help="Recompute the used cache entry's checksum after every job.",
)
@json_option
@click.pass_context
def start(
    ctx: click.Context,
    *,
    model: str,
    template: tuple[str, ...],
    exclude: tuple[str, ...],
    pin: tuple[Pin, ...],
    device: str,
    dtype: str,
    cache_bytes: int,
    disk_bytes: int,
    warm: Warm,
    engine: Mode | Auto,
    kernels: KernelName | Auto,
    batch: int,
    chunk_tokens: int,
    suffix_bytes: int,
    threads: int | None,
    grace: float,
    watchdog: float,
    metrics_port: int | None,
    metrics_host: str,
    metrics_tenant: bool,
    traces: bool,
    trust_remote_code: bool,
    audit: bool,
    as_json: bool,
) -> None:
    """Serve one model until SIGTERM; the jobs that run are finished first.

    A second SIGTERM gives them back to the queue at once. Exit status 9: the device hangs or was
    lost.

    The log is JSON lines, except on a terminal without --json.
    """
    wait_passively()
    # Heavy imports wait until a worker is really wanted, and torch until the line above ran.
    from worker.celery_worker import run_worker
    from worker.service import WorkerService

    settings: Settings = ctx.obj
    log_level = ctx.find_root().params.get("log_level") or "INFO"
    configure_logs(level=log_level, force_json=as_json)
    service = WorkerService(
        settings,
        WorkerOptions(
            model=model,
            templates=template,
            exclude=exclude,
            pins=pin,
            device=device,
            dtype=dtype,
            cache_bytes=cache_bytes,
            disk_bytes=disk_bytes,
            warm=warm,
            engine=engine,
            kernels=kernels,
            batch=batch,
            chunk_tokens=chunk_tokens,
            suffix_bytes=suffix_bytes,
            threads=threads,
            grace_s=grace,
            watchdog_s=watchdog,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            metrics_tenant=metrics_tenant,
            traces=traces,
            audit=audit,
            trust_remote_code=trust_remote_code,
        ),
    )
    ctx.exit(run_worker(service, log_level=log_level))


@worker.command(name="list")
@json_option
@click.pass_obj
def list_command(settings: Settings, *, as_json: bool) -> None:
    """Show live workers, their warm versions and what the greedy check found."""
    workers = list_workers(open_client(settings), settings)
    if as_json:
        emit_json(workers)
        return
    if not workers:
        note(f"no worker has reported in the last {EXPIRES_S} s")
        return
    for description in workers:
        try:
            _show(check_report(description))
        except CodecError as error:  # of another release, or written by hand
            _line(f"{description.get('id', 'a worker')!s:.80}  {error.problem}: {error.given}")


def _line(text: str) -> None:
    # A report is what its worker says, and must not steer the terminal.
    click.echo(one_line(text))


def _show(description: dict[str, Any]) -> None:
    cache = description["cache"]
    disk = description.get("disk")
    on_disk = (
        f", disk {disk['bytes'] / MIB:.0f} of {disk['max_bytes'] / MIB:.0f} MiB" if disk else ""
    )
    _line(
        f"{description['id']}  {description['model']} on {description['device']}"
        f" ({description['dtype']}, {description['engine']}), "
        f"{len(description['templates'])} templates, {description['running']} running, "
        f"cache {cache['bytes'] / MIB:.0f} of {cache['max_bytes'] / MIB:.0f} MiB, "
        f"{cache['hits']} hits, {cache['misses']} misses{on_disk}"
    )
    if refused := description.get("refused_messages"):
        reasons = ", ".join(f"{one_line(why)} {count}" for why, count in sorted(refused.items()))
        click.echo(f"  messages refused: {sum(refused.values())} ({reasons})")
    if admission := description.get("admission"):  # a worker of an older release has none
        _line(
            f"  proof made in {admission['seconds']:.1f} s, scores within"
            f" {admission['max_logit_error']:.1e} of the plain path's"
        )
        for refusal in admission["refused"]:
            _line(f"  refused: {refusal['way']}: {refusal['reason']}")
    emit_table(
        ("version", "prefix tokens", "MiB", "in cache", "prefill s", "cached against uncached"),
        [
            (
                version["version"],
                version["prefix_tokens"],
                f"{version['bytes'] / MIB:.1f}",
                _cached(version),
                f"{version['prefill_s']:.2f}",
                f"{version['parity']} ({version['parity_tokens']} tokens)",
            )
            for version in description["versions"]
        ],
    )


def _cached(version: dict[str, Any]) -> str:
    if not version["cached"]:
        return "no"
    return "pinned" if version.get("pinned") else "yes"
