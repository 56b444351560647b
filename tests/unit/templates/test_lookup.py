"""Callers of one event loop who want the same version at once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from contract.calls import Call
from contract.codec import pack
from contract.errors import RedisUnreachable
from templates.lookup import SharedLookup
from tests.support.published import make_version

VERSION = make_version()


class Shelf:
    """A server that has one version, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.open = asyncio.Event()
        self.away = False

    async def ask_each(self, calls: Sequence[Call]) -> list[Any]:
        self.asked += len(calls)
        await self.open.wait()
        if self.away:
            raise RedisUnreachable("away")
        return [pack(VERSION.to_plain())] * len(calls)


def test_a_version_is_read_once_for_all_who_wait_for_it() -> None:
    """However many submit at once with nothing kept; and then it is kept."""

    async def scenario() -> None:
        shelf = Shelf()
        lookup = SharedLookup(shelf)
        asking = [asyncio.create_task(lookup.get(VERSION.ref)) for _ in range(100)]
        await asyncio.sleep(0)
        shelf.open.set()
        found = await asyncio.gather(*asking)
        assert all(each is found[0] for each in found)
        assert await lookup.get(VERSION.ref) is found[0]
        assert shelf.asked == 1
        assert not lookup._reads

    asyncio.run(scenario())


def test_a_caller_that_is_cancelled_takes_nothing_from_the_others() -> None:
    """Neither the first, who began the read, nor another; and all of them leave no noise."""

    async def scenario() -> None:
        shelf = Shelf()
        lookup = SharedLookup(shelf)
        asking = [asyncio.create_task(lookup.get(VERSION.ref)) for _ in range(3)]
        await asyncio.sleep(0)
        for each in asking[:2]:
            each.cancel()
        await asyncio.sleep(0)
        shelf.open.set()
        assert (await asking[2]).ref == VERSION.ref
        assert [each.cancelled() for each in asking[:2]] == [True, True]
        assert shelf.asked == 1

    asyncio.run(scenario())


def test_a_read_that_failed_is_not_kept() -> None:
    """All who waited are told; the next caller reads anew."""

    async def scenario() -> None:
        shelf = Shelf()
        shelf.away = True
        shelf.open.set()
        lookup = SharedLookup(shelf)
        asking = [asyncio.create_task(lookup.get(VERSION.ref)) for _ in range(3)]
        for each in asking:
            with pytest.raises(RedisUnreachable):
                await each
        shelf.away = False
        assert (await lookup.get(VERSION.ref)).ref == VERSION.ref
        assert shelf.asked == 2

    asyncio.run(scenario())


def test_a_read_that_failed_with_nobody_left_makes_no_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Asyncio says of an error that nobody looked at, some time later."""

    async def scenario() -> None:
        shelf = Shelf()
        shelf.away = True
        lookup = SharedLookup(shelf)
        asking = asyncio.create_task(lookup.get(VERSION.ref))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.sleep(0)
        shelf.open.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not lookup._reads

    asyncio.run(scenario())
    gc.collect()
    assert "never retrieved" not in caplog.text
