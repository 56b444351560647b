"""What loading a model gives a worker. No torch here: a worker with a fake engine needs none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from contract.model_folder import ModelFolder
from contract.settings import Settings
from worker.engine.base import Engine
from worker.options import WorkerOptions

if TYPE_CHECKING:
    from worker.model import LoadedModel
    from worker.prefix.disk import PrefixStore


class Proven(Protocol):
    """What an engine was admitted on; `worker.engine.admission.Admission` is one."""

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model in memory, the engine that runs it, and where its prefixes are kept."""

    model: LoadedModel
    engine: Engine
    admission: Proven
    plain: Engine | None = None  # the oracle of the parity check; None: the engine itself
    store: PrefixStore | None = None  # prefixes on disk, or none


Load = Callable[[ModelFolder, WorkerOptions, Settings], Loaded]


def load_model_and_engine(
    folder: ModelFolder, options: WorkerOptions, settings: Settings
) -> Loaded:
    """Load the model and admit an engine for it; seconds to minutes. Raises ModelError."""
    from worker.loading import load  # torch is imported here and not before

    return load(folder, options, settings)
