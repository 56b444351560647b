"""What `prefillq worker start` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from contract.settings import GIB
from worker.engine.names import Auto, KernelName, Mode
from worker.patterns import Pin

DEFAULT_MODEL = "smollm2-135m-instruct"

# Which versions are prefilled before jobs want them: none, those that labels point to, or those
# that had jobs lately, on whatever worker.
Warm = Literal["none", "used", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of one worker process."""

    model: str = DEFAULT_MODEL
    templates: tuple[str, ...] = ()  # patterns such as "acme/*"; none means all
    exclude: tuple[str, ...] = ()  # patterns of templates that are not served all the same
    pins: tuple[Pin, ...] = ()  # templates whose labelled versions are never evicted
    device: str = "auto"
    dtype: str = "auto"
    cache_bytes: int = 2 * GIB
    disk_bytes: int = 4 * GIB  # prefilled prefixes kept in the cache folder; 0 keeps none
    warm: Warm = "none"
    threads: int | None = None  # CPU threads for torch; None leaves torch's choice
    engine: Mode | Auto = "auto"  # auto: the fastest that is proven for the model here
    kernels: KernelName | Auto = "auto"  # of the shared engine
    batch: int = 32  # jobs in flight at once, at most
    chunk_tokens: int = 512  # prefill in one step, which running jobs wait for
    suffix_bytes: int = GIB  # keys and values of the tokens beyond the prefixes
    grace_s: float = 25.0  # what running jobs have to end in after SIGTERM
    watchdog_s: float = 300.0  # without a step of any job the process ends; 0: never
    trust_remote_code: bool = False  # run the code that a model's folder brings
    metrics_port: int | None = None  # 0: any that is free; None: no metrics
    metrics_host: str = "127.0.0.1"
    metrics_tenant: bool = False  # tenants become a label, and their names are told
    traces: bool = False  # export a span tree per attempt by OTLP, see worker.tracing
    audit: bool = False  # recompute an entry's checksum after every job
