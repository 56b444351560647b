"""Builds the CPU kernels once per machine and PyTorch, and loads them into `torch.ops.prefillq`.

The library lies in a folder named after everything that decides its bytes: the sources, PyTorch's
version, the flags, and what the compiler says of itself and of this processor.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from filelock import FileLock

from contract.errors import PrefillqError
from contract.logs import get_logger

log = get_logger(__name__)

SOURCES = Path(__file__).parent
LIBRARY = "kernels.so"
FLAGS = (
    "-O3",
    "-std=c++20",
    "-march=native",
    "-ffp-contract=fast",  # a * b + c is one fused operation
    "-fopenmp",  # at::parallel_for is a template: without it, it would run on one thread
    "-fPIC",
    "-fvisibility=hidden",
    "-Wno-psabi",
)
BUILD_TIMEOUT_S = 600
DOES_NOT_COMPILE = "the CPU kernels do not compile"
FALLBACK = "Or go on with plain PyTorch, which does the same work slower."


class NativeUnavailable(PrefillqError):
    """The CPU kernels cannot be built or loaded here. Plain PyTorch does the same work, slower."""

    code = "native_unavailable"


def load_kernels(folder: Path) -> None:
    """Make `torch.ops.prefillq` available, compiling into `folder` the first time (half a minute).

    A second call in a process does nothing.

    Raises `NativeUnavailable` as `build_kernels` does, and where the library cannot be loaded.
    """
    if hasattr(torch.ops.prefillq, "decoder_layers"):
        return
    library = build_kernels(folder)
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise NativeUnavailable(
            "the CPU kernels cannot be loaded",
            given=error,
            remedy=f"Remove {library.parent}; they are then built again.",
        ) from error


def build_kernels(folder: Path) -> Path:
    """The library under `folder` that fits this machine and PyTorch, built where it is missing.

    Of several processes that call it at once one builds, and the others wait for it. The library
    is moved into place in one step.

    Raises `NativeUnavailable` off Linux, on a processor without AVX2, AVX-512 or 64-bit ARM,
    without GCC, and where the compiler fails. (Only AVX2 has been tried.)
    """
    _require_processor()
    compiler = _compiler()
    macros = _macros(compiler)
    library = folder / _digest(macros) / LIBRARY
    if not library.exists():
        _build(compiler, library)
    return library


def kernels_digest() -> str:
    """Names what would be built here, as its folder does; "" where nothing can be."""
    try:
        _require_processor()
        return _digest(_macros(_compiler()))
    except NativeUnavailable:
        return ""


def _require_processor() -> None:
    system, machine = platform.system(), platform.machine().lower()
    capability = torch.backends.cpu.get_cpu_capability()
    if system == "Linux" and (
        machine == "aarch64" or (machine == "x86_64" and capability.startswith("AVX"))
    ):
        return
    raise NativeUnavailable(
        "there are no CPU kernels for this machine",
        given=f"{system}, {machine}, {capability}",
        expected="Linux on x86-64 with AVX2 or AVX-512, or on 64-bit ARM",
        remedy=FALLBACK,
    )


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    raise NativeUnavailable(
        "there is no C++ compiler to build the CPU kernels with",
        given="neither CXX nor g++ nor c++ is a program on PATH",
        remedy=f"Install one (Debian: apt-get install g++). {FALLBACK}",
    )


def _run(command: list[str], problem: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the user's own compiler, no shell
            command, capture_output=True, text=True, check=True, timeout=BUILD_TIMEOUT_S
        )
    except subprocess.CalledProcessError as error:
        raise NativeUnavailable(
            problem,
            given=f"{command[0]}: {error.stderr[-2000:].strip()}",
            remedy=f"Use GCC 11 or newer. {FALLBACK}",
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(
            problem, given=error, remedy=f"Check {command[0]}. {FALLBACK}"
        ) from error
    return done.stdout


def _macros(compiler: str) -> str:
    """What the compiler predefines: its version, and this processor's instruction sets."""
    macros = _run(
        [compiler, "-march=native", "-dM", "-E", "-x", "c++", os.devnull],
        "the C++ compiler does not know this processor",
    )
    if "__clang__" in macros:  # its OpenMP would be a second thread pool beside PyTorch's
        raise NativeUnavailable(
            "the CPU kernels need GCC",
            given=f"{compiler}, which is Clang",
            remedy=f"Install g++ and set CXX to it. {FALLBACK}",
        )
    return macros


def _flags() -> list[str]:
    return [*FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]


def _digest(macros: str) -> str:
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in {".cpp", ".h"})
    texts = [f"{path.name}\0{path.read_text(encoding='utf-8')}" for path in sources]
    parts = [torch.__version__, *_flags(), macros, *texts]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(compiler: str, library: Path) -> None:
    torch_root = Path(torch.__file__).parent
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with (
            FileLock(library.parent / ".lock"),
            tempfile.TemporaryDirectory(dir=library.parent) as scratch,
        ):
            if library.exists():  # another process was first
                return
            started = time.perf_counter()
            compiled, linked = Path(scratch) / "kernels.o", Path(scratch) / LIBRARY
            source = [str(SOURCES / "kernels.cpp"), f"-I{torch_root / 'include'}"]
            _run([compiler, *_flags(), "-c", *source, "-o", str(compiled)], DOES_NOT_COMPILE)
            # Linked without -fopenmp: the threads are those that PyTorch brings.
            libraries = [f"-L{torch_root / 'lib'}", "-lc10", "-ltorch_cpu"]
            _run(
                [compiler, "-shared", str(compiled), *libraries, "-o", str(linked)],
                DOES_NOT_COMPILE,
            )
            linked.replace(library)
            log.info("kernels_built", seconds=round(time.perf_counter() - started, 1))
    except OSError as error:
        raise NativeUnavailable(
            "the CPU kernels cannot be written",
            given=error,
            remedy=f"Make {library.parent} writable. {FALLBACK}",
        ) from error
