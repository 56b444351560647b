"""llama.cpp through its C interface: the prefix once in a unified cache, a sequence per job.

The prefix is decoded once into sequence 0 and `llama_memory_seq_cp`-ed to every job, which only
marks its cells. Suffixes are prefilled in one batch, then all jobs decode together, greedily.
Runs in the environment that `bench.peers.setup llamacpp` makes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import llama_cpp  # type: ignore[import-not-found]
import numpy as np
import numpy.typing as npt

from bench.peers.protocol import Answer, Ids, Load, Work, serve, shared_prefix

PREFIX = 0  # its sequence; job i is sequence i + 1
MICRO_BATCH = 1024  # tokens of one pass; llama.cpp's own 512 was no faster

# Token, position, sequence and whether its logits are wanted.
Row = tuple[int, int, int, bool]


class LlamaCpp:
    """See `protocol.Runner`."""

    def __init__(self) -> None:
        llama_cpp.llama_backend_init()
        self._path = ""
        self._model: Any = None
        self._context: Any = None

    def load(self, load: Load) -> str:
        """One context with room for the prefix and every job's own tokens."""
        if self._path != load.model:
            self._model = llama_cpp.llama_model_load_from_file(
                load.model.encode(), llama_cpp.llama_model_default_params()
            )
            if not self._model:
                raise RuntimeError(f"llama.cpp cannot load {load.model}")
            self._path = load.model
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        own = load.max_batch * load.own_len
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = load.prefix_len + own
        params.n_seq_max = load.max_batch + 1
        params.n_batch = max(load.prefix_len, own)
        params.n_ubatch = MICRO_BATCH
        params.n_threads = params.n_threads_batch = load.threads
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        # Its flash attention on the CPU rounds to half precision on the way (logits off by 5e-3
        # where they are off by 4e-5 without it), for a few percent of speed.
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.kv_unified = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {params.n_ctx} cells")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = _Batch(params.n_batch)
        self._eos = list(load.eos_ids)
        self._prefix: Ids = []
        return (
            f"llama-cpp-python {llama_cpp.__version__}, weights and cache in float32, "
            "no flash attention, unified cache"
        )

    def run(self, work: Work) -> Answer:
        """All jobs in one batch."""
        self._warm(shared_prefix(work))
        suffixes = [prompt[work.prefix_len :] for prompt in work.prompts]
        jobs = range(len(suffixes))
        started = time.perf_counter()
        for job in jobs:
            llama_cpp.llama_memory_seq_cp(self._memory, PREFIX, job + 1, -1, -1)
        chosen = self._decode(
            (token, work.prefix_len + at, job + 1, at == len(suffixes[job]) - 1)
            for job in jobs
            for at, token in enumerate(suffixes[job])
        )
        prefill_s = time.perf_counter() - started
        produced = [chosen]
        for step in range(work.max_new_tokens - 1):
            chosen = self._decode(
                (chosen[job], len(work.prompts[job]) + step, job + 1, True) for job in jobs
            )
            produced.append(chosen)
        seconds = time.perf_counter() - started
        for job in jobs:
            llama_cpp.llama_memory_seq_rm(self._memory, job + 1, -1, -1)
        answers = [list(ids) for ids in zip(*produced, strict=True)]
        return Answer(seconds=seconds, token_ids=answers, prefill_s=prefill_s)

    def _warm(self, prefix: Ids) -> None:
        if prefix == self._prefix:
            return
        llama_cpp.llama_memory_clear(self._memory, True)
        last = len(prefix) - 1
        self._decode((token, at, PREFIX, at == last) for at, token in enumerate(prefix))
        self._prefix = prefix

    def _decode(self, rows: Iterable[Row]) -> Ids:
        """One pass; the likeliest next token of each row that wants logits, in order."""
        wanted = self._batch.fill(list(rows))
        code = llama_cpp.llama_decode(self._context, self._batch.raw)
        if code:
            raise RuntimeError(f"llama_decode gave {code}")
        pointer = llama_cpp.llama_get_logits(self._context)
        logits: npt.NDArray[np.float32] = np.ctypeslib.as_array(pointer, (wanted, self._width))
        logits[:, self._eos] = -np.inf
        chosen: Ids = logits.argmax(axis=1).tolist()
        return chosen


class _Batch:
    """llama.cpp's batch, with numpy views of its arrays."""

    def __init__(self, size: int) -> None:
        self.raw = llama_cpp.llama_batch_init(size, 0, 1)
        self._tokens, self._positions, self._sequences_each, self._wanted = (
            np.ctypeslib.as_array(pointer, (size,))
            for pointer in (self.raw.token, self.raw.pos, self.raw.n_seq_id, self.raw.logits)
        )
        self._sequences_each[:] = 1

    def fill(self, rows: list[Row]) -> int:
        """Put these rows in; how many want logits."""
        count = len(rows)
        tokens, positions, sequences, wanted = zip(*rows, strict=True)
        self.raw.n_tokens = count
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._wanted[:count] = wanted
        for at, sequence in enumerate(sequences):
            self.raw.seq_id[at][0] = sequence
        return sum(wanted)


if __name__ == "__main__":
    serve(LlamaCpp())
