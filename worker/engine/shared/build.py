"""Puts a shared-prefix engine together from a model and the kernels that are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from worker.engine.base import PrefixUnsupported
from worker.engine.names import KernelName
from worker.engine.native.build import load_kernels
from worker.engine.shared.engine import DEFAULT_CHUNK_TOKENS, DEFAULT_ROWS, SharedPrefixEngine
from worker.engine.shared.forward import Forward, FusedForward, TransformersForward
from worker.engine.shared.kernels import CompiledKernels, Kernels, NativeKernels, TorchKernels
from worker.engine.shared.layers import layer_shapes
from worker.engine.shared.pool import SuffixPool
from worker.model import LoadedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """What a worker can be told about its engine."""

    rows: int = DEFAULT_ROWS  # requests at once, at most
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS
    suffix_bytes: int = 1 << 30  # memory of all rows' own tokens
    native_folder: Path | None = None  # where native kernels are kept; None: none are built


class SharedEngines:
    """Makes shared-prefix engines for one model; packed weights and the pool are made once."""

    def __init__(self, model: LoadedModel, options: SharedOptions) -> None:
        self._model = model
        self._options = options
        self._pool: SuffixPool | None = None
        self._forwards: dict[KernelName, Forward] = {}

    def make(self, kernels: KernelName, *, chunk_tokens: int | None = None) -> SharedPrefixEngine:
        """Raises PrefixUnsupported or NativeUnavailable where the kernels cannot be had."""
        pool = self.pool()
        if kernels not in self._forwards:
            self._forwards[kernels] = self._forward(kernels, pool)
        return SharedPrefixEngine(
            self._model,
            forward=self._forwards[kernels],
            pool=pool,
            rows=self._options.rows,
            chunk_tokens=chunk_tokens or self._options.chunk_tokens,
        )

    def forget(self, kernels: KernelName) -> None:
        """Free what was made for kernels that will not be used."""
        self._forwards.pop(kernels, None)

    def pool(self) -> SuffixPool:
        """Where rows keep their tokens. Raises PrefixUnsupported for a model without one."""
        if self._pool is None:
            self._pool = SuffixPool(
                layer_shapes(self._model.module),
                max_bytes=self._options.suffix_bytes,
                dtype=self._model.dtype,
                device=self._model.device,
            )
        return self._pool

    def _forward(self, kernels: KernelName, pool: SuffixPool) -> Forward:
        if kernels == "transformers":
            return TransformersForward(self._model.module)
        return FusedForward(self._model.module, self._kernels(kernels), pool=pool)

    def _kernels(self, kernels: KernelName) -> Kernels:
        if kernels == "torch":
            return TorchKernels(packed=False)
        if kernels == "compiled":
            return CompiledKernels()
        if (self._model.device.type, self._model.dtype) != ("cpu", torch.float32):
            raise PrefixUnsupported(
                f"{kernels} kernels compute in float32 on a CPU",
                given=f"{self._model.dtype} on {self._model.device}",
            )
        if kernels == "onednn":
            if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
                raise PrefixUnsupported("this build of torch has no oneDNN")
            return TorchKernels(packed=True)
        if self._options.native_folder is None:
            raise PrefixUnsupported("native kernels are switched off")
        load_kernels(self._options.native_folder)
        return NativeKernels()
