"""What a template may cost at publish: its length a few times, not some hundred times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.errors import SpecInvalid, TemplateRefused
from templates.compile import compile_template
from tests.fuzz.judge import bounded
from tests.support.chat_templates import CHATML
from tests.support.made_tokenizers import made, make_model
from tests.support.specs import make_spec


def test_fixed_text_beyond_the_model_is_refused_early() -> None:
    """Two megabytes, for a model that reads a thousand tokens; in seconds."""
    model = replace(make_model(CHATML), max_positions=1000)
    spec = make_spec(("system", "all work " * 200_000), ("user", "{{ x }}"))
    with (
        bounded(seconds=120, mib=1500),
        pytest.raises(TemplateRefused, match="longer than the model"),
    ):
        compile_template(spec, model, made("byte-level"))


def test_fixed_text_within_the_model_is_not() -> None:
    """To the token: the first limit that is too small is that of the fixed text's own length."""
    spec = make_spec(("system", "abc " * 40), ("user", "{{ x }}"))
    model, tokenizer = make_model(CHATML), made("byte-level")
    compiled = compile_template(spec, model, tokenizer)
    prefix = len(compiled.prefix_ids)  # of the text before the variable
    for limit in (prefix + 1, prefix + 20):
        compile_template(spec, replace(model, max_positions=limit), tokenizer)
    for limit in (20, prefix):
        with pytest.raises(TemplateRefused, match="longer than the model"):
            compile_template(spec, replace(model, max_positions=limit), tokenizer)


@pytest.mark.parametrize(
    ("turns", "samples"),
    [
        ([("user", " ".join(f"{{{{ v{n} }}}}" for n in range(101)))], 0),
        ([("user", "x")] * 1001, 0),
        ([("user", "{{ x }}")], 1001),
    ],
    ids=["variables", "messages", "samples"],
)
def test_more_than_anybody_needs_is_refused(turns: list[tuple[str, str]], samples: int) -> None:
    """Publishing tries each sample, and each variable with hundreds of values."""
    with pytest.raises(SpecInvalid):
        make_spec(*turns, samples=[{"x": "y"}] * samples)
