"""What the probabilities of answers from a list must be, by plain calls of the model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.support.tiny_models import EOS
from worker.engine.base import Generation
from worker.model import LoadedModel

Choices = tuple[tuple[int, ...], ...]


def plain_probabilities(
    model: LoadedModel, job: tuple[int, ...], choices: Choices
) -> tuple[float, ...]:
    """One uncached forward over prompt and choice each; see `worker.engine.choices`."""
    module: Any = model.module
    whole = len({choice[0] for choice in choices}) < len(choices)
    nested = any(a != b and b[: len(a)] == a for a in choices for b in choices)
    logs = []
    for choice in choices:
        with torch.no_grad():
            scores = module(input_ids=torch.tensor([job + choice])).logits[0, len(job) - 1 :]
        targets = choice[:1]
        if whole:
            targets = (*choice, EOS) if nested else choice
        rows = scores.double().log_softmax(-1)
        logs.append(rows[torch.arange(len(targets)), list(targets)].sum())
    return tuple(torch.stack(logs).softmax(0).tolist())


def assert_labelled(given: Generation, choices: Choices, expected: tuple[float, ...]) -> None:
    """The likeliest of `choices`, and probabilities within 1e-4 of `expected`, also where they
    are so small that every other number would be."""
    probabilities = given.choice_probabilities
    assert probabilities == pytest.approx(expected, abs=1e-4)
    logs = [math.log(p) for p in probabilities]
    assert logs == pytest.approx([math.log(p) for p in expected], abs=2e-3)
    assert sum(probabilities) == pytest.approx(1)
    assert given.choice_index == expected.index(max(expected))
    assert given.token_ids == choices[given.choice_index]
    assert (given.finish_reason, len(given.text)) == ("stop", len(given.token_ids))
