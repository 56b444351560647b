"""OpenVINO GenAI: continuous batching with prefix caching, all in float32.

A job of other ids after the same prefix is run first; it leaves the prefix in the cache, in blocks
of 32 tokens on the CPU, and requests that begin with the same ids find all full ones there. The
prefix alone would also leave its last block, part full; with GenAI 2026.4.1 two requests that take
that one up in the same step overwrite each other and one of them gets wrong logits.
Runs in the environment that `bench.peers.setup openvino` makes.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-not-found]
import openvino_genai as genai  # type: ignore[import-not-found]

from bench.peers.protocol import Answer, Ids, Load, Work, serve, shared_prefix

IN_FLOAT32 = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "EXECUTION_MODE_HINT": "ACCURACY",
}
# Blocks of finished jobs stay until the space is needed; the prefix must never be what goes.
ROOM = 3
# Tokens of one step: GenAI's own 256 cuts the suffixes of a large batch into more steps and was
# about a tenth slower at batch 32, on two cores.
STEP = 2048
UNUSED = 0  # an id that begins no job's own part


class OpenVino:
    """See `protocol.Runner`."""

    def __init__(self) -> None:
        self._pipeline: Any = None
        self._prefix: Ids = []
        self._eos: set[int] = set()

    def load(self, load: Load) -> str:
        """Compile the model, with a cache that holds the work `ROOM` times."""
        tokens = load.prefix_len + load.max_batch * load.own_len
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = STEP
        scheduler.max_num_seqs = max(128, load.max_batch)
        scheduler.cache_size = math.ceil(ROOM * tokens * _token_bytes(Path(load.model)) / 2**30)
        self._pipeline = None  # frees the last one's cache first
        self._pipeline = genai.ContinuousBatchingPipeline(
            load.model,
            scheduler,
            "CPU",
            {**IN_FLOAT32, "INFERENCE_NUM_THREADS": load.threads},
        )
        self._prefix = []
        self._eos = set(load.eos_ids)
        return (
            f"openvino-genai {genai.__version__}, weights and cache in float32, "
            f"{STEP} tokens a step, {scheduler.cache_size} GiB cache"
        )

    def run(self, work: Work) -> Answer:
        """All jobs as one call; the scheduler batches them."""
        prefix = shared_prefix(work)
        if prefix != self._prefix:
            longest = max(len(prompt) for prompt in work.prompts)
            self._generate([prefix + [UNUSED] * (longest - len(prefix))], 1)
            self._prefix = prefix
        started = time.perf_counter()
        results = self._generate(work.prompts, work.max_new_tokens)
        seconds = time.perf_counter() - started
        return Answer(seconds=seconds, token_ids=results)

    def _generate(self, prompts: Any, new_tokens: int) -> list[Ids]:
        config = genai.GenerationConfig()
        config.do_sample = False
        config.eos_token_id = min(self._eos)
        config.stop_token_ids = self._eos
        config.min_new_tokens = config.max_new_tokens = new_tokens
        ids = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = self._pipeline.generate(ids, [config] * len(ids))
        return [list(map(int, result.m_generation_ids[0])) for result in results]


def _token_bytes(model: Path) -> int:
    """Keys and values of one token in float32."""
    config = json.loads((model / "config.json").read_text("utf-8"))
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return int(config["num_hidden_layers"] * 2 * kv_heads * head_dim * 4)


if __name__ == "__main__":
    serve(OpenVino())
