"""The fixture `prefillq_stack` for whoever has prefillq installed; see `producer.testing`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from producer.testing import Stack


@pytest.fixture
def prefillq_stack() -> Iterator[Stack]:
    """A new stack in memory: publish templates, say how jobs are answered, submit."""
    from producer.testing import Stack  # nobody else pays for the import

    with Stack() as stack:
        yield stack
