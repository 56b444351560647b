"""Building the kernels: what is said where it cannot be done, and two builds at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from worker.engine.native import build
from worker.engine.native.build import NativeUnavailable, build_kernels

ANSWER = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that compile in no time."""
    (tmp_path / "kernels.cpp").write_text(ANSWER)
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    return tmp_path / "kernels.cpp"


def test_without_a_compiler_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compiler on PATH says how to get one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NativeUnavailable, match="no C\\+\\+ compiler") as caught:
        build_kernels(tmp_path)
    assert "apt-get install g++" in caught.value.remedy


def test_a_compile_error_shows_what_the_compiler_said(small: Path) -> None:
    """The compiler's own words are in the message, and no library is left."""
    small.write_text("#error this cannot be\n")
    with pytest.raises(NativeUnavailable, match="this cannot be") as caught:
        build_kernels(small.parent / "built")
    assert "plain PyTorch" in caught.value.remedy
    assert not list(small.parent.rglob("*.so"))


def test_an_unknown_processor_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without the vector instructions is refused before anything is compiled."""
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    with pytest.raises(NativeUnavailable, match="riscv64"):
        build_kernels(tmp_path)


def test_a_compiler_that_is_clang_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clang would bring a second thread pool."""
    fake = tmp_path / "clang++"
    fake.write_text("#!/bin/sh\necho '#define __clang__ 1'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(NativeUnavailable, match="Clang"):
        build_kernels(tmp_path)


def test_a_folder_that_cannot_be_made_is_told(small: Path) -> None:
    """A file in the folder's place gives the system's reason."""
    (small.parent / "taken").write_text("")
    with pytest.raises(NativeUnavailable, match="cannot be written"):
        build_kernels(small.parent / "taken")


def test_it_is_built_once_and_again_for_other_sources(small: Path) -> None:
    """The same sources give the same library; changed ones another beside it."""
    first = build_kernels(small.parent / "built")
    written = first.stat().st_mtime_ns
    assert build_kernels(small.parent / "built") == first
    assert first.stat().st_mtime_ns == written
    small.write_text(ANSWER.replace("42", "43"))
    assert build_kernels(small.parent / "built") != first


def test_a_damaged_library_is_told(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that does not load says which folder to remove."""
    library = build_kernels(small.parent / "built")
    library.write_bytes(b"not a library")
    monkeypatch.setattr(build.torch, "ops", _NotLoaded())
    with pytest.raises(NativeUnavailable, match="cannot be loaded") as caught:
        build.load_kernels(small.parent / "built")
    assert str(library.parent) in caught.value.remedy


class _NotLoaded:
    """`torch.ops` in a process that has not loaded the kernels."""

    prefillq = None

    def load_library(self, path: str) -> None:
        raise OSError(f"{path}: invalid ELF header")


def test_two_processes_may_build_at_once(small: Path) -> None:
    """Both come out with a library that loads, and nothing half done stays."""
    script = (
        "import ctypes, sys; from pathlib import Path; from worker.engine.native import build;"
        "build.SOURCES = Path(sys.argv[1]);"
        "library = build.build_kernels(build.SOURCES / 'built');"
        "print(ctypes.CDLL(str(library)).answer())"
    )
    command = [sys.executable, "-c", script, str(small.parent)]
    root = Path(build.__file__).parents[3]
    both = [
        subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True, env=os.environ)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0].splitlines()[-1] for process in both]
    assert said == ["42", "42"]
    assert len([path for path in small.parent.rglob("*") if path.suffix == ".so"]) == 1
    assert not list(small.parent.rglob("*.o"))
