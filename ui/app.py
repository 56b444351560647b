"""The web application: addresses, rendering, streams. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from contract.errors import InvalidInput
from contract.ids import tenant_of
from ui.guard import Guard
from ui.live import LiveStream, Streams
from ui.reader import Reader
from ui.views import Shown, Views, not_found
from ui.watch import Watch
from ui.words import FILTERS

INTERVAL_S = 2.0  # as often as workers report
_LIVE = "/live"

View = Callable[[dict[str, str], QueryParams], Awaitable[Shown]]

# The menu.
PLACES = (
    ("/", "Overview"),
    ("/queues", "Queues"),
    ("/workers", "Workers"),
    ("/jobs", "Jobs"),
    ("/rollouts", "Rollouts"),
    ("/tenants", "Tenants"),
)


def make_environment() -> Environment:
    """All that is put into a page is escaped: tenants choose names and write texts."""
    environment = Environment(
        loader=PackageLoader("ui", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS
    return environment


class Pages:
    """Renders what views show."""

    def __init__(self, reader: Reader, *, show_text: bool) -> None:
        self._environment = make_environment()
        self._reader = reader
        self._show_text = show_text

    def render(
        self, shown: Shown, *, path: str, query: str, live: bool, still: bool = False
    ) -> str:
        """A whole document. `live` says that it is going to be sent again by itself, `still` that
        it never is, and that there is no address to ask for it.
        """
        address = quote(path) + (f"?{query}" if query else "")
        return self._environment.get_template(shown.template).render(
            places=PLACES,
            here=_place(path),
            title=shown.title,
            live=live,
            live_address=None if still else _LIVE + address,
            away=shown.away,
            scope=self._reader.scope,
            show_text=self._show_text,
            **{"at": None, **shown.words},
        )


def make_app(
    reader: Reader,
    *,
    streams: Streams,
    names: Iterable[str],
    show_text: bool = False,
    interval_s: float = INTERVAL_S,
) -> ASGIApp:
    """The application. `names` are the hosts beside addresses that it answers to."""
    views = Views(Watch(interval_s=interval_s), reader, show_text=show_text)
    pages = Pages(reader, show_text=show_text)

    def page(view: View) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            shown = await view(request.path_params, request.query_params)
            path, query = request.url.path, request.url.query
            html = pages.render(shown, path=path, query=query, live=False)
            return HTMLResponse(html, status_code=shown.status)

        return endpoint

    def stream(view: View) -> Callable[[Request], Awaitable[Any]]:
        async def endpoint(request: Request) -> Any:
            if streams.full:
                return PlainTextResponse("Too many pages are open.\n", status_code=503)
            path = request.url.path.removeprefix(_LIVE) or "/"
            query, wanted = request.url.query, request.path_params

            async def render() -> str:
                shown = await view(wanted, request.query_params)
                return pages.render(shown, path=path, query=query, live=True)

            return LiveStream(render, streams, interval_s=interval_s)

        return endpoint

    async def missing(request: Request, _error: Exception) -> Response:
        path = request.url.path
        html = pages.render(not_found(), path=path, query="", live=False, still=True)
        return HTMLResponse(html, status_code=404)

    async def refused(_request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            text = f"{error.detail}\n"
            return PlainTextResponse(text, status_code=error.status_code, headers=error.headers)
        return PlainTextResponse("Something unexpected happened; see the log.\n", status_code=500)

    both: dict[str, View] = {
        "/": views.overview,
        "/queues": views.queues,
        "/workers": views.workers,
        "/jobs": views.jobs,
        "/jobs/{job_id}": views.job,
        "/rollouts": views.rollouts,
        "/templates/{tenant}/{name}": views.template,
        "/tenants": views.tenants,
    }
    routes: list[Route | Mount] = [Route("/find", _find, methods=["GET"])]
    for path, view in both.items():
        routes.append(Route(path, page(view), methods=["GET"]))
        routes.append(Route(_LIVE + path, stream(view), methods=["GET"]))
    routes.append(Mount("/static", StaticFiles(packages=[("ui", "static")])))
    return Starlette(
        routes=routes,
        exception_handlers={404: missing, HTTPException: refused, Exception: refused},
        middleware=[Middleware(Guard, names=tuple(names))],
    )


async def _find(request: Request) -> Response:
    """From the form for a job's id to its page."""
    job_id = request.query_params.get("id", "").strip()
    try:
        tenant_of(job_id)
    except InvalidInput:
        raise HTTPException(404) from None
    return RedirectResponse(f"/jobs/{job_id}", status_code=303)


def _place(path: str) -> str:
    """The entry of the menu that an address belongs to."""
    first = f"/{path.split('/')[1]}" if path.startswith("/") else "/"
    return "/rollouts" if first == "/templates" else first
