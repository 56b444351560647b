"""The page served inside the test's own process, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import uvicorn
from starlette.types import ASGIApp

from contract.records import RedisJobStore
from contract.redis_client import connect
from contract.settings import Settings
from tests.support.waiting import until
from ui.app import make_app
from ui.ended import Ended
from ui.live import Streams
from ui.reader import Reader
from ui.scope import Scope, scope_of
from ui.server import listen, make_config


@contextmanager
def reader_of(settings: Settings, scope: Scope | None = None) -> Iterator[Reader]:
    """A reader that does not listen for notices yet."""
    with connect(settings) as client:
        ended = Ended(RedisJobStore(client, settings).notices)
        try:
            yield Reader(client, settings, scope or scope_of(settings), ended)
        finally:
            ended.stop()


@contextmanager
def page_app(
    settings: Settings,
    *,
    tenants: Sequence[str] = (),
    show_text: bool = False,
    interval_s: float = 0.2,
    streams: Streams | None = None,
) -> Iterator[ASGIApp]:
    """The application, listening for notices of tenants once a page was read."""
    with reader_of(settings, scope_of(settings, tenants)) as reader:
        reader.ended.start()
        yield make_app(
            reader,
            streams=streams or Streams(),
            names=["localhost", "testserver"],
            show_text=show_text,
            interval_s=interval_s,
        )


@contextmanager
def page_server(
    settings: Settings, *, show_text: bool = False, interval_s: float = 0.2
) -> Iterator[str]:
    """Its address, without a slash at the end."""
    streams = Streams()
    with (
        page_app(settings, show_text=show_text, interval_s=interval_s, streams=streams) as app,
        closing(listen("127.0.0.1", 0)) as listening,
    ):
        server = uvicorn.Server(make_config(app, grace_s=1))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            until(lambda: server.started, what="the page is served")
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            streams.ending.set()
            server.should_exit = True
            thread.join(timeout=10)
