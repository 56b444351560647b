"""Acknowledgements over a connection that is not what it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker.transport import QoS


@pytest.fixture
def qos() -> Any:
    """One message taken, on a channel that was closed meanwhile; there is place for no other."""
    closed = SimpleNamespace(connection=None, do_restore=False, conn_or_acquire=_falls_over)
    made = QoS(closed, prefetch_count=1)
    made._delivered["tag"] = SimpleNamespace(delivery_info={})
    assert not made.can_consume()
    return made


def _falls_over(_client: object = None) -> Any:
    raise AttributeError("'NoneType' object has no attribute 'client'")


def test_job_that_ends_after_its_channel_was_closed_frees_its_place(qos: Any) -> None:
    """Its acknowledgement comes from kombu's event loop, which an error would end."""
    qos.ack("tag")
    assert qos.can_consume()


@pytest.mark.parametrize("requeue", [True, False])
def test_message_given_back_after_its_channel_was_closed_frees_its_place(
    qos: Any, requeue: bool
) -> None:
    """The same of one that is rejected."""
    qos.reject("tag", requeue=requeue)
    assert qos.can_consume()
