"""Which device and number type are chosen, and what is said when they are not there."""

from __future__ import annotations

import pytest
import torch

from contract.errors import ModelError, SettingsError
from worker.device import default_dtype, parse_dtype, pick_device, synchronize


def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_auto_falls_back_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an accelerator "auto" is the CPU."""
    no_accelerator(monkeypatch)
    assert pick_device() == torch.device("cpu")


def test_auto_prefers_cuda_then_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest device there is wins."""
    no_accelerator(monkeypatch)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device() == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device() == torch.device("cuda:0")


@pytest.mark.parametrize("asked", ["cuda", "cuda:0", "mps"])
def test_absent_device_is_an_error(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    """A device that was asked for by name is never replaced silently."""
    no_accelerator(monkeypatch)
    with pytest.raises(ModelError, match=asked):
        pick_device(asked)


def test_cuda_index_beyond_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device has index 0 only."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert pick_device("cuda") == torch.device("cuda:0")
    with pytest.raises(ModelError, match=r"1 CUDA device\(s\)"):
        pick_device("cuda:1")


@pytest.mark.parametrize("asked", ["gpu", "", "meta", "xpu"])
def test_unknown_spelling_is_an_error(asked: str) -> None:
    """Only devices that a worker can use have a name here."""
    with pytest.raises(SettingsError):
        pick_device(asked)


def test_default_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 but on a CUDA device that computes in bfloat16."""
    assert default_dtype(torch.device("cpu")) is torch.float32
    assert default_dtype(torch.device("mps")) is torch.float32
    for supported, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, s=supported, **__: s)
        assert default_dtype(torch.device("cuda", 0)) is dtype


def test_parse_dtype() -> None:
    """Three names, and an error for the rest."""
    assert parse_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(SettingsError, match="float32, bfloat16, float16"):
        parse_dtype("int8")


def test_synchronize_on_the_cpu_does_nothing() -> None:
    """The CPU is always up to date."""
    synchronize(torch.device("cpu"))
