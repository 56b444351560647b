"""Which device and number type a worker computes with."""

from __future__ import annotations

import torch

from contract.errors import ModelError, SettingsError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick_device(asked: str = "auto") -> torch.device:
    """The device that was asked for, or with "auto" the best there is: cuda, mps, cpu.

    `asked` is "auto", "cpu", "mps", "cuda" or "cuda:<index>". Raises SettingsError for another
    spelling and ModelError when the device is not on this machine.
    """
    if asked == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise SettingsError("not a device", given=asked[:40], expected="auto, cpu, mps or cuda[:N]")
    if device.type == "cuda":
        index = device.index or 0
        if index >= torch.cuda.device_count():
            raise _absent(asked, f"{torch.cuda.device_count()} CUDA device(s)")
        return torch.device("cuda", index)  # one spelling: the device is part of cache keys
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise _absent(asked, "no Apple GPU, or a torch build without MPS")
    return torch.device(device.type)


def _absent(asked: str, found: str) -> ModelError:
    return ModelError(
        "the device that was asked for is not here",
        given=asked,
        expected=f"a device that torch {torch.__version__} sees; it sees {found}",
        remedy="Use --device auto, or install a torch build for this device.",
    )


def default_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on a CUDA device that has it, else float32, where greedy output is exact."""
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float32


def parse_dtype(name: str) -> torch.dtype:
    """`float32`, `bfloat16` or `float16`; SettingsError otherwise."""
    if name not in _DTYPES:
        raise SettingsError("not a number type", given=name[:40], expected=", ".join(_DTYPES))
    return _DTYPES[name]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given, so that a clock read means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
