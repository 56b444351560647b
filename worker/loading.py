"""Loading a worker's model and admitting an engine for it: the part that needs torch."""

from __future__ import annotations

import torch

from contract.model_folder import ModelFolder
from contract.settings import Settings
from worker.device import default_dtype, parse_dtype, pick_device
from worker.engine.admission import admit
from worker.engine.reference import ReferenceEngine
from worker.engine.shared.build import SharedOptions
from worker.loaded import Loaded
from worker.model import load_model
from worker.options import WorkerOptions
from worker.prefix.disk import PrefixStore


def load(folder: ModelFolder, options: WorkerOptions, settings: Settings) -> Loaded:
    """See `worker.loaded.load_model_and_engine`."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device)
    dtype = default_dtype(device) if options.dtype == "auto" else parse_dtype(options.dtype)
    model = load_model(
        folder, device=device, dtype=dtype, trust_remote_code=options.trust_remote_code
    )
    engine, admission = admit(
        model,
        SharedOptions(
            rows=options.batch,
            chunk_tokens=options.chunk_tokens,
            suffix_bytes=options.suffix_bytes,
            native_folder=settings.cache_dir / "native",
        ),
        mode=options.engine,
        kernels=options.kernels,
        folder=settings.cache_dir / "admission",
    )
    store = (
        PrefixStore(settings.cache_dir / "prefixes", max_bytes=options.disk_bytes)
        if options.disk_bytes
        else None
    )
    return Loaded(
        model=model, engine=engine, admission=admission, plain=ReferenceEngine(model), store=store
    )
