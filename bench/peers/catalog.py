"""The peers: where each lives and how its process is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.peers.driver import Peer
from contract.model_folder import ModelFolder
from contract.settings import Settings
from worker.engine.names import KERNELS


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSpec:
    """How to start a peer, and on which form of the model."""

    name: str
    python: Path
    arguments: tuple[str, ...]  # of the interpreter
    model: Path
    batches: bool  # False: it takes jobs one by one, so a few of them tell all
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self) -> Peer:
        """Its process. Raises PeerFailed when its environment was not made."""
        return Peer(self.name, [str(self.python), *self.arguments], environment=self.environment)


def home(peer: str, settings: Settings) -> Path:
    """Where a peer's environment and its form of the model are kept."""
    return settings.cache_dir.absolute() / "bench" / peer


def interpreter(peer: str, settings: Settings, environment: str = "venv") -> Path:
    """The Python of a peer's own environment."""
    return home(peer, settings) / environment / "bin" / "python"


def openvino_model(folder: ModelFolder, settings: Settings) -> Path:
    """OpenVINO's folder for this model; another model or other weights have another."""
    return home("openvino", settings) / f"model-{folder.model_digest[:16]}"


def gguf_model(folder: ModelFolder, settings: Settings) -> Path:
    """llama.cpp's file for this model."""
    return home("llamacpp", settings) / f"model-{folder.model_digest[:16]}.gguf"


def peer_specs(folder: ModelFolder, settings: Settings) -> dict[str, PeerSpec]:
    """All peers by name; none is started."""

    def in_venv(name: str, *arguments: str, batches: bool) -> PeerSpec:
        return PeerSpec(
            name=name,
            python=Path(sys.executable),
            arguments=("-m", *arguments),
            model=folder.path,
            batches=batches,
        )

    specs = [
        in_venv("ours", "bench.peers.run_ours", batches=True),
        *(
            in_venv(f"ours-{kernels}", "bench.peers.run_ours", kernels, batches=True)
            for kernels in KERNELS
        ),
        in_venv("uncached", "bench.peers.run_torch", "uncached", batches=False),
        in_venv("copy", "bench.peers.run_torch", "copy", batches=False),
        in_venv("generate_batch", "bench.peers.run_torch", "generate_batch", batches=True),
        PeerSpec(
            name="openvino",
            python=interpreter("openvino", settings),
            arguments=("-m", "bench.peers.run_openvino"),
            model=openvino_model(folder, settings),
            batches=True,
        ),
        PeerSpec(
            name="llamacpp",
            python=interpreter("llamacpp", settings),
            arguments=("-m", "bench.peers.run_llamacpp"),
            model=gguf_model(folder, settings),
            batches=True,
        ),
    ]
    # Where the processor is all its own, threads that spin while they wait may be faster, and
    # where it is not, they are many times slower. This is libgomp's own default: 3 ms.
    spinning = [
        replace(spec, name=f"{spec.name}_spinning", environment={"GOMP_SPINCOUNT": "300000"})
        for spec in specs
    ]
    return {spec.name: spec for spec in (*specs, *spinning)}
