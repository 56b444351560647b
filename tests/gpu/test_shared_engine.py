"""The shared-prefix engine on a CUDA device: proven, equal in float32, near in bfloat16."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

from contract.model_folder import ModelFolder
from templates.spec import GenerationSpec
from tests.support.tiny_models import key_for, random_ids, tiny_model
from worker.engine.admission import admit
from worker.engine.base import Engine, Generation, GenerationRequest
from worker.engine.names import Auto, KernelName
from worker.engine.parity import TOLERANCE, largest_error, largest_score
from worker.engine.reference import ReferenceEngine
from worker.engine.shared.build import SharedOptions
from worker.model import LoadedModel, load_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIONS = SharedOptions(rows=8, chunk_tokens=32, suffix_bytes=64 << 20)
DTYPES = [torch.float32, torch.bfloat16]


def on_cuda(architecture: str, dtype: torch.dtype) -> LoadedModel:
    model = tiny_model(architecture, dtype=dtype)
    module: Any = model.module
    device = torch.device("cuda")
    return replace(model, module=module.to(device), device=device)


def jobs(vocabulary: int) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """A prefix, and requests that begin with it."""
    stretch = max(1, vocabulary // 96)
    prefix = tuple(i * stretch for i in random_ids(64, seed=1))
    tails = [random_ids(1 + 9 * n, seed=n + 2) for n in range(8)]
    return prefix, [prefix + tuple(i * stretch for i in tail) for tail in tails]


def answers(engine: Engine, requests: list[GenerationRequest]) -> list[Generation]:
    with ThreadPoolExecutor(max_workers=len(requests)) as threads:
        return list(threads.map(engine.generate, requests))


def check(model: LoadedModel, kernels: KernelName | Auto = "auto") -> None:
    """Admitted as shared; eight jobs at once give what the plain path gives."""
    dtype = str(model.dtype).removeprefix("torch.")
    engine, admission = admit(model, OPTIONS, kernels=kernels)
    assert admission.way.mode == "shared"
    assert admission.max_logit_error <= TOLERANCE[dtype]
    prefix, prompts = jobs(model.module.config.vocab_size)
    spec = GenerationSpec(max_new_tokens=16, min_new_tokens=16)
    asked = [GenerationRequest(ids=ids, generation=spec, keep_scores=True) for ids in prompts]
    reference = ReferenceEngine(model)
    plain = [reference.generate(request) for request in asked]
    with closing(engine):
        entry = engine.prefill(key_for(model), prefix)
        given = answers(engine, [replace(request, entry=entry) for request in asked])
        assert entry.audit()
    for expected, ours in zip(plain, given, strict=True):
        allowed = TOLERANCE[dtype] * largest_score(expected.first_scores)
        assert largest_error(expected.first_scores, ours.first_scores) <= allowed
        if dtype == "float32":
            assert ours.token_ids == expected.token_ids


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma2", "gpt2"])
def test_tiny_models(architecture: str, dtype: torch.dtype) -> None:
    """Case P21: the same tokens in float32, scores within the stated tolerance in bfloat16."""
    check(on_cuda(architecture, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_kernels(dtype: torch.dtype) -> None:
    """The same where torch.compile makes the element-wise parts."""
    check(on_cuda("llama", dtype), "compiled")


@pytest.mark.model
@pytest.mark.parametrize("dtype", DTYPES)
def test_real_model(smollm2: ModelFolder, dtype: torch.dtype) -> None:
    """The same on SmolLM2-135M-Instruct."""
    check(load_model(smollm2, device=torch.device("cuda"), dtype=dtype))


def test_seed_means_the_same_as_on_the_cpu() -> None:
    """A sampled answer does not depend on the device, where the scores do not."""
    _, prompts = jobs(96)
    spec = GenerationSpec(max_new_tokens=12, min_new_tokens=12, temperature=0.8, seed=7)
    request = GenerationRequest(ids=prompts[3], generation=spec)
    tokens = []
    for model in (tiny_model(), on_cuda("llama", torch.float32)):
        engine, _ = admit(model, OPTIONS)
        with closing(engine):
            tokens.append(engine.generate(request).token_ids)
    assert tokens[0] == tokens[1]
