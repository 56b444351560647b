"""Which engine a model may run on here: proven, not assumed.

The model's code, Transformers, torch and the device together decide whether a shared or a copied
prefix gives what the plain path gives. So each way is tried on small random prompts before the
first job, fastest first, and the first that holds is taken; those before it are kept with the
reason why not.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from contract.errors import ModelError, PrefillqError
from contract.logs import get_logger
from worker.engine.base import Engine
from worker.engine.code import code_digest
from worker.engine.names import AUTO_KERNELS, KERNELS, Auto, KernelName, Mode
from worker.engine.native.build import NativeUnavailable
from worker.engine.proof import CHUNK_TOKENS, Proof
from worker.engine.reference import ReferenceEngine, UncachedEngine
from worker.engine.shared.build import SharedEngines, SharedOptions
from worker.model import LoadedModel
from worker.versions import library_versions

log = get_logger(__name__)

_FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to run a model."""

    mode: Mode
    kernels: KernelName | None = None  # of shared mode

    def __str__(self) -> str:
        return self.mode if self.kernels is None else f"{self.mode} ({self.kernels})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A way that does not hold here, or is not to be had."""

    way: str
    reason: str
    passing: bool = False  # for want of a compiler, say: to be tried again at the next start


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What was proven for one model, device, dtype and set of libraries."""

    way: Way
    max_logit_error: float  # as a share of the largest score
    seconds: float
    refused: tuple[Refusal, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        refused = tuple(Refusal(**refusal) for refusal in data["refused"])
        return cls(**(data | {"way": Way(**data["way"]), "refused": refused}))


def admit(
    model: LoadedModel,
    options: SharedOptions,
    *,
    mode: Mode | Auto = "auto",
    kernels: KernelName | Auto = "auto",
    folder: Path | None = None,
) -> tuple[Engine, Admission]:
    """The fastest engine that is proven for the model, and what the proof found.

    `mode` and `kernels` restrict what is tried. What was proven is kept in `folder` and not
    proven again for the same model, device, dtype and libraries. Raises ModelError where none
    of what was asked for holds, or where not even the plain path gives finite scores.
    """
    shared = SharedEngines(model, options)
    kept = (
        None if folder is None else folder / f"{_fingerprint(model, options, mode, kernels)}.json"
    )
    admission = None if kept is None else _read(kept)
    engine = None if admission is None else _rebuilt(model, shared, admission.way)
    if admission is None or engine is None:
        admission = _prove(model, shared, list(_ways(mode, kernels)))
        if kept is not None and not any(refusal.passing for refusal in admission.refused):
            _write(kept, admission)
        engine = _build(model, shared, admission.way)
    log.info(
        "engine_admitted",
        engine=engine.name,
        way=str(admission.way),
        max_logit_error=admission.max_logit_error,
        proof_s=round(admission.seconds, 3),
        refused=[f"{refusal.way}: {refusal.reason}" for refusal in admission.refused],
    )
    return engine, admission


def _ways(mode: str, kernels: str) -> Iterator[Way]:
    if mode in ("auto", "shared"):
        for name in AUTO_KERNELS if kernels == "auto" else KERNELS:
            if kernels in ("auto", name):
                yield Way(mode="shared", kernels=name)
    if mode in ("auto", "copy"):
        yield Way(mode="copy")
    if mode in ("auto", "reference"):
        yield Way(mode="reference")


def _prove(model: LoadedModel, shared: SharedEngines, ways: list[Way]) -> Admission:
    started = time.perf_counter()
    try:
        proof = Proof(model)
    except PrefillqError as error:
        raise ModelError(
            f"model {model.folder.name} gives no usable scores on this device",
            given=error,
            remedy="Try another --dtype or --device.",
        ) from error
    refused: list[Refusal] = []
    for way in ways:
        if way.mode == "shared" and (reason := _unshareable(shared)):
            if not any(refusal.way == "shared" for refusal in refused):
                refused.append(Refusal(way="shared", reason=reason))
            continue
        try:
            with closing(_build(model, shared, way, chunk_tokens=CHUNK_TOKENS)) as engine:
                error_share = 0.0 if way.mode == "reference" else proof.check(engine)
        except Exception as problem:  # noqa: BLE001 - whatever goes wrong in it, the way is no way
            passing = isinstance(problem, NativeUnavailable)
            refused.append(Refusal(way=str(way), reason=_reason(problem), passing=passing))
            if way.kernels is not None:
                shared.forget(way.kernels)
            continue
        return Admission(
            way=way,
            max_logit_error=error_share,
            seconds=time.perf_counter() - started,
            refused=tuple(refused),
        )
    raise ModelError(
        f"model {model.folder.name} cannot run as it was asked for",
        given="; ".join(f"{refusal.way}: {refusal.reason}" for refusal in refused),
        expected="what the plain path gives",
        remedy="Use --engine auto and --kernels auto, or another --dtype or --device.",
    )


def _unshareable(shared: SharedEngines) -> str:
    """Why no kernels can share a prefix of this model, "" where some may."""
    try:
        shared.pool()
    except Exception as problem:  # noqa: BLE001 - as above
        return _reason(problem)
    return ""


def _reason(problem: Exception) -> str:
    known = isinstance(problem, PrefillqError)
    text = str(problem) if known else f"{type(problem).__name__}: {problem}"
    return " ".join(text.split())[:300]


def _build(
    model: LoadedModel, shared: SharedEngines, way: Way, *, chunk_tokens: int | None = None
) -> Engine:
    if way.kernels is not None:
        return shared.make(way.kernels, chunk_tokens=chunk_tokens)
    return ReferenceEngine(model) if way.mode == "copy" else UncachedEngine(model)


def _rebuilt(model: LoadedModel, shared: SharedEngines, way: Way) -> Engine | None:
    """An engine for a way that was proven before; None where it is not to be had any more."""
    try:
        return _build(model, shared, way)
    except PrefillqError as error:
        log.warning("admission_outdated", way=str(way), error=str(error))
        return None


def _fingerprint(model: LoadedModel, options: SharedOptions, mode: str, kernels: str) -> str:
    """Hex digest of all that a proof's outcome may depend on."""
    device = model.device
    processor = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability()
    )
    parts = [
        _FORMAT,
        code_digest(),
        model.folder.model_digest,
        str(device),
        processor,
        str(model.dtype),
        library_versions(),
        mode,
        kernels,
        options.native_folder is not None,
        options.suffix_bytes,  # too little for the proof's prompts refuses a way
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read(path: Path) -> Admission | None:
    try:
        return Admission.from_dict(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("admission_unreadable", path=str(path), error=str(error))
        return None


def _write(path: Path, admission: Admission) -> None:
    """In one step; where it cannot be written the proof is made again next time."""
    temporary = path.with_suffix(f".{time.monotonic_ns()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(admission.to_dict(), indent=1), "utf-8")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        log.warning("admission_not_kept", path=str(path), error=str(error))
