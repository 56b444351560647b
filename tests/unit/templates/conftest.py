"""The real tokenizer, ours and Transformers' own."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from contract.model_folder import ModelFolder
from templates.tokenizer import TemplateTokenizer


@pytest.fixture(scope="session")
def real(smollm2: ModelFolder) -> TemplateTokenizer:
    return TemplateTokenizer.load(smollm2.path)


@pytest.fixture(scope="session")
def oracle(smollm2: ModelFolder) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(smollm2.path)
