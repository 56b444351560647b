"""Make the environments and models of the peers that do not run in this one.

    python -m bench.peers.setup [openvino] [llamacpp]

Everything lies under `<cache>/bench/<peer>`; what is there already is left as it is. Packages come
from the ordinary index. llama.cpp is compiled, for this machine's processor (minutes).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from bench.peers.catalog import gguf_model, home, interpreter, openvino_model
from bench.peers.driver import PeerFailed
from bench.peers.gguf_file import write_llama_gguf
from contract.console import emit_json, json_option
from contract.model_folder import ModelFolder
from contract.settings import Settings
from worker.models.fetch import fetch_model
from worker.options import DEFAULT_MODEL

# Tested together. The exporter brings a Transformers of its own, older than the project's.
OPENVINO = ("openvino-genai==2026.4.1.0", "openvino==2026.4.1", "openvino-tokenizers==2026.4.1.0")
OPENVINO_EXPORT = (
    "optimum-intel==2.2.0",
    "optimum==2.3.0",
    "openvino==2026.4.1",
    "openvino-tokenizers==2026.4.1.0",
    "transformers==5.5.4",
    "torch==2.13.0",
)
LLAMACPP = ("llama-cpp-python==0.3.36", "numpy==2.4.6")
LLAMACPP_BUILD = {
    "CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF",
    "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1),
}
_EXPORT = """
import sys
from optimum.intel import OVModelForCausalLM
model = OVModelForCausalLM.from_pretrained(
    sys.argv[1], export=True, load_in_8bit=False, compile=False, local_files_only=True
)
model.save_pretrained(sys.argv[2])
"""


def set_up_openvino(folder: ModelFolder, settings: Settings) -> None:
    """OpenVINO GenAI, and the model exported to its format in float32."""
    _environment("openvino", "venv", OPENVINO, settings)
    target = openvino_model(folder, settings)
    if target.is_dir():
        return
    # torchvision comes along with the exporter, without need, and for another build of torch.
    _environment("openvino", "export", OPENVINO_EXPORT, settings, unwanted=("torchvision",))
    _tell(f"openvino: exporting {folder.name} in float32")
    partial = target.with_name(target.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    python = interpreter("openvino", settings, "export")
    _command("openvino", settings, [python, "-c", _EXPORT, folder.path, partial])
    partial.rename(target)


def set_up_llamacpp(folder: ModelFolder, settings: Settings) -> None:
    """llama.cpp with its Python binding, and the model as a GGUF file in float32."""
    _environment("llamacpp", "venv", LLAMACPP, settings, build=LLAMACPP_BUILD)
    target = gguf_model(folder, settings)
    if not target.is_file():
        _tell(f"llamacpp: writing {folder.name} as GGUF in float32")
        write_llama_gguf(folder.path, target)


SET_UPS: dict[str, Callable[[ModelFolder, Settings], None]] = {
    "openvino": set_up_openvino,
    "llamacpp": set_up_llamacpp,
}


def _environment(
    peer: str,
    name: str,
    requirements: tuple[str, ...],
    settings: Settings,
    *,
    unwanted: tuple[str, ...] = (),
    build: Mapping[str, str] | None = None,
) -> None:
    """A virtual environment with exactly these pins; made anew when they have changed."""
    python = interpreter(peer, settings, name)
    place = python.parents[1]
    stamp, wanted = place / ".installed", "\n".join(requirements)
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return
    _tell(f"{peer}: installing {', '.join(requirements)}" + (" (compiles)" if build else ""))
    place.parent.mkdir(parents=True, exist_ok=True)
    _command(peer, settings, [sys.executable, "-m", "venv", "--clear", place])
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check"]
    # The least priority: a compiler must not take the processor from what else runs here.
    nice = ["nice", "-n", "19"] if build else []
    _command(peer, settings, [*nice, *pip, "install", *requirements], build)
    if unwanted:
        _command(peer, settings, [*pip, "uninstall", "--yes", *unwanted])
    stamp.write_text(wanted, "utf-8")


def _command(
    peer: str,
    settings: Settings,
    command: list[str | Path],
    environment: Mapping[str, str] | None = None,
) -> None:
    log = home(peer, settings) / "setup.log"
    with log.open("ab") as output:
        done = subprocess.run(  # noqa: S603 - our own command
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})},
            check=False,
        )
    if done.returncode:
        raise PeerFailed(
            f"peer {peer} cannot be set up",
            given=f"exit status {done.returncode} of {Path(command[0]).name}",
            remedy=f"See the end of {log}.",
        )


def _tell(what: str) -> None:
    click.echo(what, err=True)


@click.command()
@click.argument("peers", nargs=-1, type=click.Choice(sorted(SET_UPS)))
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@json_option
def main(*, peers: tuple[str, ...], model: str, as_json: bool) -> None:
    """Set up these peers, or all of them."""
    settings = Settings.load()
    folder = fetch_model(model, settings)
    for peer in peers or sorted(SET_UPS):
        try:
            SET_UPS[peer](folder, settings)
        except PeerFailed as error:
            raise click.ClickException(str(error)) from error
        _tell(f"{peer}: ready")
    if as_json:
        emit_json({"ready": list(peers) or sorted(SET_UPS)})


if __name__ == "__main__":
    main()
