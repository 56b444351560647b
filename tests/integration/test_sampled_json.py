"""Sampled jobs under ten schemas in the batching engine, with a real tokenizer: all of them fit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import torch

from bench.engines import Engines
from bench.json_answers import fault_of, make_requests
from bench.schemas import SCHEMAS
from contract.model_folder import ModelFolder
from tests.support.shared_engines import shared_engine
from worker.engine.base import Generation
from worker.engine.reference import ReferenceEngine
from worker.model import load_model


@pytest.fixture(scope="module")
def engines(tiny_llama: ModelFolder) -> Iterator[Engines]:
    model = load_model(tiny_llama, device=torch.device("cpu"), dtype=torch.float32)
    ours, _ = shared_engine(model, "torch", blocks=400)
    with closing(ours):
        yield Engines(model=model, ours=ours, plain=ReferenceEngine(model), way="shared")


def test_every_sampled_answer_parses_and_fits(engines: Engines) -> None:
    """And the reference engine samples the same tokens. `prefillq bench json` does 500."""
    requests = make_requests(engines, range(20), 1.0)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(engines.ours.generate, [request for request, _ in requests]))
    faults = [fault_of(a, SCHEMAS[name]) for a, (_, name) in zip(answers, requests, strict=True)]
    assert faults == [""] * 20
    assert len({answer.text for answer in answers}) > 10
    for (request, _), answer in list(zip(requests, answers, strict=True))[::7]:
        assert engines.plain.generate(request).token_ids == answer.token_ids


@pytest.mark.parametrize(
    ("text", "reason", "fault"),
    [
        ('{"amount": 1.25, "currency": "EUR"}', "stop", ""),
        ('{"amount": 1.255, "currency": "EUR"}', "stop", "is no multiple"),
        ('{"amount": 1.25, "currency": "CHF"}', "stop", "does not fit"),
        ('{"amount": 1.25', "stop", "does not parse"),
        ('{"amount": 1.25, "currency": "EUR"}', "length", "length"),
    ],
    ids=["good", "three decimals", "another currency", "half", "cut"],
)
def test_faults_are_found(text: str, reason: str, fault: str) -> None:
    """A check that finds nothing would count anything as good."""
    answer = Generation(token_ids=(), text=text, finish_reason=reason)  # type: ignore[arg-type]
    assert fault_of(answer, SCHEMAS["money"]) == fault
