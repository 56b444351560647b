"""The root command inside the test process."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _logs_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root command sends all logs to its own stderr, which here ends with the call."""
    monkeypatch.setattr("contract.logs.configure_logs", lambda **_options: None)
