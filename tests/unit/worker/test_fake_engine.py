"""The shipped fake engine behaves like an engine where callers look."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from templates.spec import GenerationSpec
from worker.engine.base import Engine, GenerationRequest, PrefixMismatch
from worker.engine.fake import FakeEngine
from worker.prefix.entry import PrefixKey

KEY = PrefixKey(
    tenant="acme",
    digest="v1",
    model_digest="m",
    tokenizer_digest="t",
    dtype="float32",
    device="cpu",
)
REQUEST = GenerationRequest(ids=(1, 2, 3), generation=GenerationSpec())


def test_same_ids_same_text() -> None:
    """Text depends on the ids, not on the entry."""
    engine: Engine = FakeEngine()
    entry = engine.prefill(KEY, (1, 2))
    first = engine.generate(REQUEST)
    assert engine.generate(replace(REQUEST, entry=entry)) == replace(
        first, decode_s=pytest.approx(0, abs=1), first_token_s=pytest.approx(0, abs=1)
    )
    assert engine.generate(replace(REQUEST, ids=(1, 2, 4))).text != first.text


def test_own_answers() -> None:
    """A test can say what the answer is."""
    assert FakeEngine(answer=lambda r: str(sum(r.ids))).generate(REQUEST).text == "6"


def test_wrong_prefix_is_refused() -> None:
    """Like a real engine, it does not use an entry that is no prefix."""
    engine = FakeEngine()
    with pytest.raises(PrefixMismatch):
        engine.generate(replace(REQUEST, entry=engine.prefill(KEY, (9,))))


def test_choices_give_one_of_them() -> None:
    """With choices the ids are those of the choice that is named."""
    made = FakeEngine().generate(replace(REQUEST, choices=((7,), (8, 9))))
    assert made.choice_index is not None
    assert made.token_ids == ((7,), (8, 9))[made.choice_index]
    assert made.choice_probabilities == ((1.0, 0.0), (0.0, 1.0))[made.choice_index]


def test_stop_during_the_delay() -> None:
    """A slow job ends soon after it is cancelled."""
    asked = itertools.count()
    started = time.monotonic()
    stopped = FakeEngine(delay_s=30).generate(
        replace(REQUEST, should_stop=lambda: "cancelled" if next(asked) > 2 else None)
    )
    assert stopped.finish_reason == "cancelled"
    assert time.monotonic() - started < 10


def test_audit_notices_a_change() -> None:
    """A fake entry can be broken on purpose, and a fork of it cannot break it."""
    entry = FakeEngine().prefill(KEY, (1, 2))
    entry.fork()["ids"] = ()
    assert entry.audit()
    entry.kv["ids"] = ()
    assert not entry.audit()


def test_neither_fake_nor_cache_imports_torch() -> None:
    """What users need for their own tests loads without torch."""
    code = (
        "import sys, worker.engine.fake, worker.engine.parity, worker.prefix.cache;"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
