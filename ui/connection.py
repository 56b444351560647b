"""A browser's connection, which ends also when the browser takes nothing more."""

from __future__ import annotations

import asyncio
import socket

from uvicorn.protocols.http.h11_impl import H11Protocol

from contract.logs import get_logger

log = get_logger(__name__)

SLOW_S = 10.0
# Bytes that the kernel keeps for a browser, and as many for itself. It tells of room once a third
# is free; of the megabytes that it takes by itself, a slow reader may need longer for that.
_KERNEL_BYTES = 64 * 1024


class Connection(H11Protocol):
    """uvicorn's, cut off when nothing that was written has been taken for `slow_s`.

    uvicorn ends a connection by asyncio's `close`, which waits until all that was written is taken.
    Of a browser that never reads that is never, and its connection would count for ever.
    """

    slow_s = SLOW_S
    _left = 0  # bytes that were not taken yet at the last look
    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # Writing is paused as soon as anything is left over, so that `pause_writing` tells of it.
        transport.set_write_buffer_limits(high=0)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        super().connection_made(transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._look_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._look_no_more()

    def _look_later(self) -> None:
        self._look_no_more()
        self._left = self.transport.get_write_buffer_size()
        self._look = self.loop.call_later(self.slow_s, self._cut_off_if_stuck)

    def _look_no_more(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _cut_off_if_stuck(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left < self._left:
            self._look_later()
            return
        log.info("slow_browser_cut_off", seconds=self.slow_s, bytes=left)
        self.transport.abort()
