"""`prefillq ui`."""

from __future__ import annotations

import ipaddress
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from contract.console import emit_json, json_option, note, option
from contract.errors import PrefillqError

if TYPE_CHECKING:
    from contract.settings import Settings

_NEEDED = ("starlette", "uvicorn")


class ServerMissing(PrefillqError):
    """The libraries that serve the page are not installed."""

    code = "missing_extra"


@click.command()
@option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to serve on. Whoever reaches it can read the page.",
)
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8650,
    show_default=True,
    help="0: any that is free.",
)
@option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="Answer to this name too, such as a proxy's (repeatable).",
)
@option("--tenant", multiple=True, metavar="NAME", help="Show this tenant alone (repeatable).")
@option("--show-text", is_flag=True, help="Show variables and answers of jobs.")
@json_option
@click.pass_obj
def ui(
    settings: Settings,
    *,
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    tenant: tuple[str, ...],
    show_text: bool,
    as_json: bool,
) -> None:
    """Serve a page of queues, workers, jobs and rollouts, to look at, until Ctrl-C.

    It changes nothing. On this machine only, unless --host says otherwise; it asks nobody for a
    password. Prompts and answers are left out unless --show-text is given.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise ServerMissing(
            "the page needs a library that is not installed",
            given=f"no module named {missing[0]}",
            remedy="Run: pip install 'prefillq[ui]'",
        )
    from contextlib import closing

    from contract.records import RedisJobStore
    from contract.redis_client import connect
    from ui.app import make_app
    from ui.ended import Ended
    from ui.live import Streams
    from ui.reader import Reader
    from ui.scope import scope_of
    from ui.server import listen, serve

    scope = scope_of(settings, tenant)
    with closing(listen(host, port)) as listening, closing(connect(settings)) as client:
        _warn(host, show_text=show_text)
        ended = Ended(RedisJobStore(client, settings).notices)
        streams = Streams()
        names = {"localhost", *allow_host}
        if not _is_loopback(host):
            names |= {host, socket.gethostname()}
        app = make_app(
            Reader(client, settings, scope, ended),
            streams=streams,
            names=names,
            show_text=show_text,
        )
        url = _url(host, listening.getsockname()[1])

        def ready() -> None:
            if as_json:
                emit_json({"url": url})
            else:
                click.echo(url)
                note("prefillq: serving the page; Ctrl-C ends it")

        ended.start()
        try:
            serve(app, listening, streams, ready=ready)
        finally:
            ended.stop()


def _url(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/"


def _warn(host: str, *, show_text: bool) -> None:
    if _is_loopback(host):
        return
    what = "jobs with their variables and answers" if show_text else "queues, jobs and workers"
    note(
        f"prefillq: {host} can be reached from other machines, and the page asks nobody for a "
        f"password: whoever reaches it can read {what}. Put it behind a proxy that does."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
