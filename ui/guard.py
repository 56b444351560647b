"""In front of everything: which hosts are answered, and what browsers are told not to do."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# No inline script or style, nothing from elsewhere, no frames.
_POLICY = "; ".join(
    [
        "default-src 'none'",
        *(f"{kind}-src 'self'" for kind in ("script", "style", "img", "connect")),
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:[0-9]{1,5})?")


class Guard:
    """Refuses requests that were sent to another name, and adds HEADERS to every response.

    A page of an attacker's whose name is made to mean this machine (DNS rebinding) is of one origin
    with ours for the browser; its requests have the attacker's name as Host. An address as Host
    is no name that somebody could have moved.
    """

    def __init__(self, app: ASGIApp, *, names: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower().rstrip(".") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        if self.answers(Headers(scope=scope).getlist("host")):
            await self._app(scope, receive, guarded)
        else:
            refusal = PlainTextResponse(
                "This name is not answered. Start with --allow-host NAME to have it answered.\n",
                status_code=421,
            )
            await refusal(scope, receive, guarded)

    def answers(self, hosts: list[str]) -> bool:
        """True for the Host header of a request that is meant for us."""
        if len(hosts) != 1 or (match := _HOST.fullmatch(hosts[0])) is None:
            return False
        name = match[1].lower().rstrip(".")
        return name in self._names or _is_address(name.strip("[]"))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
