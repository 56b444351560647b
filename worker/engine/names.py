"""The ways to run a model, as users name them; no torch here."""

from __future__ import annotations

from typing import Literal, get_args

# shared: batched, on one copy of each prefix; copy: one at a time, on a deep copy of the prefix;
# reference: one at a time, and no prefix is kept.
Mode = Literal["shared", "copy", "reference"]
MODES: tuple[Mode, ...] = get_args(Mode)

# What the shared engine computes with, in the order they are tried: our CPU code, oneDNN with
# packed weights, plain torch with fused weights, the model's own code around our attention; and
# torch.compile, which is tried only when it is asked for.
KernelName = Literal["native", "onednn", "torch", "transformers", "compiled"]
KERNELS: tuple[KernelName, ...] = get_args(KernelName)
AUTO_KERNELS: tuple[KernelName, ...] = KERNELS[:-1]

Auto = Literal["auto"]
