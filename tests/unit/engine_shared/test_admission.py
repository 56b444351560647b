"""The proof: a wrong engine is refused and the next way taken; what was proven is remembered."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.errors import ModelError
from tests.support.tiny_models import answer, key_for, random_ids, tiny_model
from worker.engine import admission as module
from worker.engine.admission import Admission, Refusal, Way, admit
from worker.engine.base import PrefixUnsupported
from worker.engine.names import Mode
from worker.engine.native.build import NativeUnavailable
from worker.engine.reference import ReferenceEngine
from worker.engine.shared import (
    attention,
    build,
    engine as engine_module,
    hook,
    kernels as kernels_module,
)
from worker.engine.shared.attention import Scoring
from worker.engine.shared.batch import Batch, make_batch
from worker.engine.shared.build import SharedOptions
from worker.engine.shared.pool import SuffixPool
from worker.model import LoadedModel
from worker.versions import library_versions

OPTIONS = SharedOptions(rows=8, chunk_tokens=64, suffix_bytes=1 << 20)


class Log:
    """The warnings that were written."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, event: str, **_: Any) -> None:
        self.warnings.append(event)

    def info(self, *_: Any, **__: Any) -> None: ...


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(module, "log", log)
    return log


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one with each proof that is made."""
    made: list[str] = []
    proof = module.Proof

    def counted(model: LoadedModel) -> Any:
        made.append(model.folder.name)
        return proof(model)

    monkeypatch.setattr(module, "Proof", counted)
    return made


def admitted(model: LoadedModel, **options: Any) -> Admission:
    engine, admission = admit(model, OPTIONS, **options)
    engine.close()
    return admission


def spoil_attention(monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Tensor]) -> None:
    """All ways that share attend wrongly."""
    for place in (hook, kernels_module):
        monkeypatch.setattr(place, "attend", wrong)


def ignore_window(
    query: Tensor, batch: Batch, pool: SuffixPool, layer: int, scoring: Scoring
) -> Tensor:
    return attention.attend(query, batch, pool, layer, replace(scoring, window=None))


def drop_prefix(
    query: Tensor, batch: Batch, pool: SuffixPool, layer: int, scoring: Scoring
) -> Tensor:
    none = replace(batch, entries=(None,) * len(batch.entries), memo={})
    return attention.attend(query, none, pool, layer, scoring)


def drop_suffix(
    query: Tensor, batch: Batch, pool: SuffixPool, layer: int, scoring: Scoring
) -> Tensor:
    """Each token sees the prefix and itself."""
    alone = torch.stack([batch.spans[:, 0] * 0, batch.spans[:, 0] - 1, batch.spans[:, 0]], dim=1)
    return attention.attend(query, replace(batch, spans=alone, memo={}), pool, layer, scoring)


def other_scale(
    query: Tensor, batch: Batch, pool: SuffixPool, layer: int, scoring: Scoring
) -> Tensor:
    return attention.attend(query, batch, pool, layer, replace(scoring, scale=scoring.scale * 1.01))


def swap_rows(
    query: Tensor, batch: Batch, pool: SuffixPool, layer: int, scoring: Scoring
) -> Tensor:
    """What one row holds reaches another."""
    wrong = replace(batch, tables=batch.tables.roll(1, 0), memo={})
    return attention.attend(query, wrong, pool, layer, scoring)


def spoil_entry(
    query: Tensor, batch: Batch, pool: SuffixPool, layer: int, scoring: Scoring
) -> Tensor:
    """Right answers, but something is written to the prefix on the way."""
    for entry in batch.entries:
        if entry is not None:
            entry.kv.layers[layer].values.mul_(1 + 1e-7)
    return attention.attend(query, batch, pool, layer, scoring)


@pytest.mark.parametrize("wrong", [drop_prefix, drop_suffix, other_scale, swap_rows, spoil_entry])
def test_wrong_attention_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Tensor]
) -> None:
    """Fault: each way that shares is refused with what was seen, and the copy is taken, which
    gives the plain path's tokens."""
    spoil_attention(monkeypatch, wrong)
    model = tiny_model()
    engine, admission = admit(model, OPTIONS)
    assert admission.way == Way(mode="copy")
    refused = {refusal.way: refusal.reason for refusal in admission.refused}
    seen = ("differ", "changed while it was used")
    for way in ("shared (onednn)", "shared (torch)", "shared (transformers)"):
        assert any(s in refused[way] for s in seen)
    job = random_ids(60, seed=1)
    plain = answer(ReferenceEngine(model), job)
    with closing(engine):
        entry = engine.prefill(key_for(model), job[:48])
        assert answer(engine, job, entry).token_ids == plain.token_ids


@pytest.mark.parametrize("architecture", ["mistral", "gemma2", "gemma3"])
def test_attention_that_ignores_the_window_is_refused(
    monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    """Case P9, fault: the proof's prompts leave the window behind."""
    spoil_attention(monkeypatch, ignore_window)
    assert admitted(tiny_model(architecture)).way == Way(mode="copy")


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_shifted_position_is_refused(monkeypatch: pytest.MonkeyPatch, architecture: str) -> None:
    """Fault: one position too far beyond the prefix."""

    def shifted(rows: Any, **options: Any) -> Any:
        moved = [
            replace(row, positions=[p + (row.entry is not None) for p in row.positions])
            for row in rows
        ]
        return make_batch(moved, **options)

    monkeypatch.setattr(engine_module, "make_batch", shifted)
    admission = admitted(tiny_model(architecture))
    assert admission.way == Way(mode="copy")
    assert "differ" in admission.refused[-1].reason


def test_kernels_that_break_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in one way, the next is tried; the reason is kept, not too long."""

    def explode(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("by\nzero " * 100)

    monkeypatch.setattr(kernels_module.TorchKernels, "silu_mul", explode)
    admission = admitted(tiny_model())
    assert admission.way == Way(mode="shared", kernels="transformers")
    reason = {refusal.way: refusal.reason for refusal in admission.refused}["shared (torch)"]
    assert reason.startswith("ZeroDivisionError: by zero")
    assert len(reason) <= 300


@pytest.mark.parametrize("mode", ["shared", "copy", "reference"])
def test_mode_restricts_what_is_tried(mode: Mode) -> None:
    """What the user asked for is taken, and nothing else is tried."""
    admission = admitted(tiny_model(), mode=mode)
    assert admission.way.mode == mode
    assert all(refusal.way.startswith("shared") for refusal in admission.refused)


def test_kernels_restrict_what_is_tried() -> None:
    """A slower way that is named is taken without trying a faster one."""
    admission = admitted(tiny_model(), kernels="torch")
    assert (admission.way, admission.refused) == (Way(mode="shared", kernels="torch"), ())


def test_what_was_asked_for_and_does_not_hold_is_an_error() -> None:
    """It says why; no other way is taken behind the user's back."""
    with pytest.raises(ModelError, match=r"shared: .* state"):
        admit(tiny_model("mamba"), OPTIONS, mode="shared")
    with pytest.raises(ModelError, match="no fused decoder"):
        admit(tiny_model("gpt2"), OPTIONS, mode="shared", kernels="torch")


def test_model_without_usable_scores_is_an_error() -> None:
    """Case P22: a model whose scores are NaN is not run in any mode."""
    model = tiny_model()
    with torch.no_grad():
        module_: Any = model.module
        module_.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ModelError, match="no usable scores"):
        admit(model, OPTIONS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_proven_within_its_tolerance(dtype: torch.dtype) -> None:
    """Case P21: float32's kernels say what they need; plain torch computes in any dtype."""
    admission = admitted(tiny_model(dtype=dtype))
    assert admission.way.mode == "shared"
    assert 0 < admission.max_logit_error < 0.05
    assert {refusal.way for refusal in admission.refused} >= {"shared (native)", "shared (onednn)"}


def test_what_was_proven_is_remembered(tmp_path: Path, proofs: list[str]) -> None:
    """A second start proves nothing, and gives the same engine and the same account of it."""
    first = admitted(tiny_model(), folder=tmp_path)
    second = admitted(tiny_model(), folder=tmp_path)
    assert (second, len(proofs)) == (first, 1)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "change",
    ["torch", "transformers", "model", "dtype", "mode", "kernels", "code", "memory"],
)
def test_other_circumstances_are_proven_again(
    tmp_path: Path, proofs: list[str], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A proof holds for the model, dtype, libraries, options and code that it was made with."""
    admitted(tiny_model(), folder=tmp_path)
    model, engine_options = tiny_model(), OPTIONS
    options: dict[str, Any] = {"folder": tmp_path}
    if change in ("torch", "transformers"):
        versions = library_versions() | {change: "99.0.0"}
        monkeypatch.setattr(module, "library_versions", lambda: versions)
    elif change == "model":
        model = tiny_model(seed=1)
    elif change == "dtype":
        model = tiny_model(dtype=torch.bfloat16)
    elif change == "code":
        monkeypatch.setattr(module, "code_digest", lambda: "another")
    elif change == "memory":
        engine_options = replace(OPTIONS, suffix_bytes=2 << 20)
    else:
        options |= {"mode": {"mode": "shared"}, "kernels": {"kernels": "torch"}}[change]
    engine, _ = admit(model, engine_options, **options)
    engine.close()
    assert len(proofs) == 2


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"[]", b"null", b'{"way": 1}', b"\xff\xfe", b'{"way": {"mode": "warp"}}'],
)
def test_damaged_memory_is_ignored_with_a_warning(
    tmp_path: Path, proofs: list[str], log: Log, damaged: bytes
) -> None:
    """It is proven again, and the file is whole afterwards."""
    first = admitted(tiny_model(), folder=tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damaged)
    second = admitted(tiny_model(), folder=tmp_path)
    assert (second.way, len(proofs)) == (first.way, 2)
    assert log.warnings == ["admission_unreadable"]
    assert json.loads(file.read_text())["way"]["mode"] == "shared"
    assert list(tmp_path.iterdir()) == [file]


def test_remembered_way_that_is_gone_is_proven_again(
    tmp_path: Path, proofs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what was taken then cannot be built any more, a worker starts on the next way."""
    make = build.SharedEngines.make
    admitted(tiny_model(), folder=tmp_path)

    def without_onednn(self: Any, kernels: str, **options: Any) -> Any:
        if kernels == "onednn":
            raise PrefixUnsupported("gone")
        return make(self, kernels, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(build.SharedEngines, "make", without_onednn)
    admission = admitted(tiny_model(), folder=tmp_path)
    assert (admission.way, len(proofs)) == (Way(mode="shared", kernels="torch"), 2)
    assert admitted(tiny_model(), folder=tmp_path) == admission
    assert len(proofs) == 2


def test_what_may_be_had_later_is_tried_again(
    tmp_path: Path, proofs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compiler the next way is taken, but only until there is one."""

    def no_compiler(*_: object) -> None:
        raise NativeUnavailable("no compiler")

    options = replace(OPTIONS, native_folder=tmp_path / "native")
    monkeypatch.setattr(build, "load_kernels", no_compiler)
    for count in (1, 2):
        engine, admission = admit(tiny_model(), options, folder=tmp_path)
        engine.close()
        assert admission.refused[0].passing
        assert len(proofs) == count
    assert not list(tmp_path.glob("*.json"))


def test_folder_that_cannot_be_written_is_harmless(tmp_path: Path, log: Log) -> None:
    """The proof is made, and made again next time."""
    (tmp_path / "file").write_text("not a folder")
    admission = admitted(tiny_model(), folder=tmp_path / "file" / "admission")
    assert admission.way.mode == "shared"
    assert log.warnings[-1] == "admission_not_kept"


def test_account_survives_its_file() -> None:
    """What is written is what is read."""
    account = Admission(
        way=Way(mode="shared", kernels="torch"),
        max_logit_error=1e-7,
        seconds=2.5,
        refused=(Refusal(way="shared (native)", reason="none"),),
    )
    assert Admission.from_dict(json.loads(json.dumps(account.to_dict()))) == account


def test_engines_are_closed_after_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the engine that is given out is left running."""
    spoil_attention(monkeypatch, drop_prefix)
    before = set(threading.enumerate())
    engine, _ = admit(tiny_model(), OPTIONS)
    assert set(threading.enumerate()) <= before  # the copying engine has no thread
    engine.close()
