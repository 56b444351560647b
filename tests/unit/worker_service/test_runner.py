"""One job from claim to commit, and everything that can go another way."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from contract.errors import PrefillqError, RedisRefused, RedisUnreachable
from contract.types import CacheState, JobState, VersionRef
from templates.compiled import CompiledTemplate
from worker.engine.base import GenerationRequest, NonFiniteLogits
from worker.engine.fake import FakeEngine


def test_first_job_of_a_version_fills_the_cache_and_the_next_one_hits(make_stack: Any) -> None:
    """The job that prefills counts no cached tokens; the next counts the whole prefix."""
    stack = make_stack()
    first = stack.runner.run(stack.submit("one"))
    second = stack.runner.run(stack.submit("two"))
    assert (first.cache.state, first.cache.reason) == (CacheState.MISS, "cold")
    assert first.usage.cached_tokens == 0
    assert second.cache.state is CacheState.HIT
    assert second.usage.cached_tokens == len(stack.version.compiled.prefix_ids) > 0
    assert stack.engine.prefills == [stack.prefixes.key(stack.version)]
    assert first.text != second.text


def test_result_read_back_is_the_one_that_was_committed(make_stack: Any) -> None:
    """The record holds the result, with the worker, the attempt and the version in it."""
    stack = make_stack()
    job_id = stack.submit()
    result = stack.runner.run(job_id)
    stored = stack.store.get(job_id).result
    assert stored.status is JobState.SUCCEEDED
    assert (stored.worker, stored.attempt, stored.ref) == ("w1", 1, stack.version.ref)
    assert stored.token_ids == result.token_ids
    assert stored.timings.commit_s == pytest.approx(result.timings.commit_s)
    assert stored.timings.total_s == pytest.approx(result.timings.total_s)


def test_same_message_twice_runs_the_job_once(make_stack: Any) -> None:
    """A message delivered again finds the job ended and does nothing."""
    stack = make_stack()
    job_id = stack.submit()
    assert stack.runner.run(job_id) is not None
    asked = len(stack.engine.requests)
    assert stack.runner.run(job_id) is None
    assert len(stack.engine.requests) == asked


def test_unknown_job_is_refused_without_asking_the_engine(make_stack: Any) -> None:
    """A message for a record that is gone does nothing."""
    stack = make_stack()
    assert stack.runner.run("acme." + "0" * 32) is None
    assert not stack.engine.requests


def test_suspect_is_run_once_nothing_runs_beside_it(make_stack: Any) -> None:
    """Its workers died twice. It is claimed when the others have ended, not before."""
    stack = make_stack()
    job_id = stack.submit()
    for _ in range(2):
        stack.store.claim(job_id, "dies", 10.0)
        stack.clock.now += 11
    beside = stack.runner._company.together()
    beside.__enter__()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(stack.runner.run, job_id)
        time.sleep(0.5)
        assert not result.done()
        assert stack.store.get(job_id).job.attempt == 2
        beside.__exit__(None, None, None)
        assert result.result(10).attempt == 3


def test_only_versions_that_answered_are_told_as_used(make_stack: Any) -> None:
    """What a record says of its version is its tenant's word, until the version was found."""
    used: list[VersionRef] = []
    stack = make_stack(used=used.append)
    made_up = replace(stack.version.ref, template="x" * 64, version=99, digest="0" * 64)
    stack.versions[made_up.digest] = replace(stack.version, model_digest="f" * 64)
    stack.runner.run(stack.submit(version=replace(stack.version, ref=made_up)))
    assert used == []
    stack.runner.run(stack.submit())
    assert used == [stack.version.ref]


def test_job_past_its_deadline_is_expired_and_generates_nothing(make_stack: Any) -> None:
    """The deadline is checked at the claim."""
    stack = make_stack()
    job_id = stack.submit(deadline_s=5)
    stack.clock.now += 6
    assert stack.runner.run(job_id) is None
    assert stack.store.get(job_id).state is JobState.EXPIRED
    assert not stack.engine.requests


def test_cache_not_asked_for_is_off_and_prefills_nothing(make_stack: Any) -> None:
    """`use_cache=False` takes the plain path."""
    stack = make_stack()
    result = stack.runner.run(stack.submit(use_cache=False))
    assert (result.cache.state, result.cache.reason) == (CacheState.OFF, "not_asked_for")
    assert stack.engine.requests[-1].entry is None
    assert not stack.engine.prefills


def _with_wrong_prefix(stack: Any, position: int) -> Any:
    compiled = stack.version.compiled
    ids = list(compiled.prefix_ids)
    ids[position] += 1
    broken = CompiledTemplate(segments=compiled.segments, prefix_ids=tuple(ids))
    version = replace(stack.version, compiled=broken)
    stack.versions[version.ref.digest] = version
    return version


def test_wrong_id_in_the_prefix_is_caught_and_the_job_runs_uncached(make_stack: Any) -> None:
    """Invariant 1, broken on purpose: position 17 differs, so nothing is reused."""
    stack = make_stack()
    right = stack.runner.run(stack.submit("same"))
    _with_wrong_prefix(stack, 17)
    result = stack.runner.run(stack.submit("same"))
    assert (result.cache.state, result.cache.reason) == (CacheState.MISS, "ids_differ_at=17")
    assert stack.engine.requests[-1].entry is None
    assert result.status is JobState.SUCCEEDED
    assert result.token_ids == right.token_ids


def test_entry_whose_ids_are_not_the_versions_is_caught(make_stack: Any) -> None:
    """Invariant 1 again, one level deeper: what was prefilled is what is compared."""

    class OffByOne(FakeEngine):
        def prefill(self, key: Any, ids: Any) -> Any:
            entry = super().prefill(key, ids)
            wrong = (*entry.ids[:5], entry.ids[5] + 1, *entry.ids[6:])
            return replace(entry, ids=wrong, kv={"ids": wrong})

    stack = make_stack(engine=OffByOne())
    with pytest.MonkeyPatch.context() as patch:
        # The parity check would catch it first; this test is about the job's own check.
        patch.setattr("worker.prefixes.check_parity", lambda *_, **__: _parity("identical"))
        result = stack.runner.run(stack.submit())
    assert (result.cache.state, result.cache.reason) == (CacheState.MISS, "ids_differ_at=5")


def test_strict_template_fails_the_job_instead_of_running_uncached(make_stack: Any) -> None:
    """`strict: true` turns a prefix that does not verify into a failure with its reason."""
    stack = make_stack()
    stack.version = stack.publish(strict=True)
    _with_wrong_prefix(stack, 3)
    result = stack.runner.run(stack.submit())
    assert result.status is JobState.FAILED
    assert result.error.code == "prefix_not_verified"
    assert "ids_differ_at=3" in result.error.message
    assert not stack.engine.requests


def _parity(outcome: str) -> Any:
    from worker.engine.parity import Parity

    return Parity(
        outcome=outcome, checked_tokens=4, first_difference=0, max_logit_error=1.0, seconds=0.0
    )


def test_version_that_fails_the_greedy_check_runs_uncached(
    make_stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 4: when cached and uncached differ on this worker, the cache is not used."""
    monkeypatch.setattr("worker.prefixes.check_parity", lambda *_, **__: _parity("differs"))
    stack = make_stack()
    for _ in range(2):
        result = stack.runner.run(stack.submit())
        assert (result.cache.state, result.cache.reason) == (CacheState.OFF, "parity_differs")
        assert stack.engine.requests[-1].entry is None
    assert len(stack.engine.prefills) == 1
    assert stack.prefixes.warm_versions()[0].parity.outcome == "differs"


def test_mutated_entry_is_dropped_and_the_job_runs_again_uncached(make_stack: Any) -> None:
    """Invariant 2, broken on purpose: a job that writes to the entry is found by the audit."""

    class Mutating(FakeEngine):
        armed = False

        def generate(self, request: GenerationRequest) -> Any:
            generation = super().generate(request)
            if self.armed and request.entry is not None:
                request.entry.kv["ids"] = ()
            return generation

    stack = make_stack(engine=Mutating(), audit=True)
    stack.runner.run(stack.submit("warm"))
    stack.engine.armed = True
    result = stack.runner.run(stack.submit("hit"))
    assert (result.cache.state, result.cache.reason) == (CacheState.MISS, "entry_mutated")
    assert result.usage.cached_tokens == 0
    assert stack.engine.requests[-1].entry is None
    assert stack.prefixes.cache.stats().evictions == {"mutated": 1}
    stack.engine.armed = False
    assert stack.runner.run(stack.submit("after")).cache.reason == "cold"


class _NaN(FakeEngine):
    """Scores are NaN whenever `bad` says so."""

    def __init__(self, bad: Any) -> None:
        super().__init__()
        self._bad = bad

    def generate(self, request: GenerationRequest) -> Any:
        if self._bad(request):
            raise NonFiniteLogits("the model's scores are not finite", given="nan")
        return super().generate(request)


def test_nan_with_the_cache_is_tried_once_without_it(make_stack: Any) -> None:
    """Case P22: NaN on the cached path; the plain path answers, and the result says why."""
    armed = []
    stack = make_stack(engine=_NaN(lambda r: bool(armed) and r.entry is not None))
    stack.runner.run(stack.submit("warm"))
    armed.append(True)
    result = stack.runner.run(stack.submit("hit"))
    assert result.status is JobState.SUCCEEDED
    assert (result.cache.state, result.cache.reason) == (CacheState.MISS, "non_finite_logits")


def test_nan_on_both_paths_fails_the_job_with_that_reason(make_stack: Any) -> None:
    """Case P22: after its attempts the job fails; garbage is never an answer."""
    armed = []
    stack = make_stack(engine=_NaN(lambda _: bool(armed)))
    stack.runner.run(stack.submit("warm"))
    armed.append(True)
    result = _to_the_end(stack, stack.submit("hit"))
    assert result.status is JobState.FAILED
    assert result.error.code == "non_finite_logits"
    assert result.text == ""


def _to_the_end(stack: Any, job_id: str) -> Any:
    """Every attempt of a job that fails for a reason that may pass; its result."""
    for _ in range(stack.store.get(job_id).job.attempt, 4):
        assert stack.runner.run(job_id) is None
        assert stack.store.get(job_id).state is JobState.QUEUED
        stack.clock.now += 100
    return stack.runner.run(job_id)


def test_stale_fence_cannot_commit(make_stack: Any) -> None:
    """Invariant 6, broken on purpose: the lease ran out mid-job and another worker took over."""
    stack = make_stack()
    job_id = stack.submit()

    class Slow(FakeEngine):
        def generate(self, request: GenerationRequest) -> Any:
            stack.clock.now += 61  # the lease of 60 s ends inside this decode
            other = stack.store.claim(job_id, "w2", 60.0)
            assert other.job.fence == 2
            return super().generate(request)

    stack.runner._answers.engine = Slow()
    assert stack.runner.run(job_id) is None
    view = stack.store.get(job_id)
    assert (view.state, view.worker, view.result) == (JobState.RUNNING, "w2", None)


def test_prompt_over_the_models_positions_fails_with_the_numbers(make_stack: Any) -> None:
    """Case P12: refused before any prefill, naming both numbers."""
    stack = make_stack()
    stack.model.folder = replace(stack.model.folder, max_positions=40)
    result = stack.runner.run(stack.submit())
    assert result.status is JobState.FAILED
    assert "at most 40" in result.error.message
    assert not stack.engine.prefills


def test_other_weights_than_published_fail_with_both_digests(make_stack: Any) -> None:
    """Case P19: a version is bound to its model's digest, not to its name."""
    stack = make_stack()
    stack.model.folder = replace(stack.model.folder, model_digest="f" * 64)
    result = stack.runner.run(stack.submit())
    assert result.status is JobState.FAILED
    assert "ffffffffffff" in result.error.message


def test_crash_inside_the_engine_ends_the_job_with_a_reason(make_stack: Any) -> None:
    """An unforeseen error fails its job, and the worker goes on."""

    def explode(_: GenerationRequest) -> str:
        raise ZeroDivisionError("secret prompt text")

    stack = make_stack(engine=FakeEngine(answer=explode))
    result = stack.runner.run(stack.submit(use_cache=False))
    assert (result.status, result.error.code) == (JobState.FAILED, "internal_error")
    assert "secret" not in result.error.message


@pytest.mark.parametrize("error", [RedisUnreachable, RedisRefused])
def test_redis_trouble_while_reading_the_version_fails_no_job(
    make_stack: Any, error: type[PrefillqError]
) -> None:
    """The job is not to blame: it is queued again at once, with its attempt not counted."""
    stack = make_stack()
    job_id = stack.submit()

    def away(_: Any) -> Any:
        raise error("Redis cannot be reached")

    stack.get = away
    with pytest.raises(error):
        stack.runner.run(job_id)
    view = stack.store.get(job_id)
    assert (view.state, view.job.attempt) == (JobState.QUEUED, 0)


def test_commit_is_tried_again_while_redis_is_away(
    make_stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that cannot be written is not dropped."""
    monkeypatch.setattr("worker.runner.COMMIT_RETRY_S", 0.0)
    stack = make_stack()
    job_id = stack.submit()
    commit, failures = stack.store.commit, [1, 2, 3]

    def flaky(result: Any, fence: int) -> Any:
        if failures:
            failures.pop()
            raise RedisUnreachable("Redis cannot be reached")
        return commit(result, fence)

    monkeypatch.setattr(stack.store, "commit", flaky)
    assert stack.runner.run(job_id).status is JobState.SUCCEEDED
    assert stack.store.get(job_id).state is JobState.SUCCEEDED


@pytest.mark.parametrize("lost", [False, True])
def test_commit_given_up_is_logged_and_the_job_runs_again(
    make_stack: Any, monkeypatch: pytest.MonkeyPatch, *, lost: bool
) -> None:
    """Never dropped silently: after its time, or once the lease is known to be another's."""
    log = CapturingLogger()
    monkeypatch.setattr("worker.runner.log", log)
    monkeypatch.setattr("worker.runner.COMMIT_RETRY_S", 0.0)
    stack = make_stack()
    job_id = stack.submit()
    if not lost:
        monkeypatch.setattr("worker.runner.COMMIT_PATIENCE_S", 0.0)
        stack.leases.lease_s = 0.05

    def refuses(*_: Any) -> Any:
        if lost:
            stack.leases._held[job_id, 1].end("lost")
        raise RedisUnreachable("Redis cannot be reached")

    with monkeypatch.context() as away:
        away.setattr(stack.store, "commit", refuses)
        with pytest.raises(RedisUnreachable):
            stack.runner.run(job_id)
    given_up = [call.kwargs["job_id"] for call in log.calls if call.args == ("commit_given_up",)]
    assert given_up == [job_id]
    stack.clock.now += 61
    assert stack.runner.run(job_id).attempt == 2


def test_prefix_over_the_budget_runs_uncached(make_stack: Any) -> None:
    """A prefix that does not fit is no reason to fail a job."""
    stack = make_stack(cache_bytes=3)
    result = stack.runner.run(stack.submit())
    assert (result.status, result.cache.reason) == (JobState.SUCCEEDED, "over_budget")


def test_two_tenants_with_equal_text_have_separate_entries(make_stack: Any) -> None:
    """Case P20: the same prompt text of another tenant is a miss there, and counted there."""
    stack = make_stack()
    other = stack.publish(tenant="globex")
    stack.runner.run(stack.submit())
    result = stack.runner.run(stack.submit(version=other))
    assert result.cache.reason == "cold"
    assert stack.prefixes.key(other) != stack.prefixes.key(stack.version)
    tenants = stack.prefixes.cache.stats().tenants
    assert {name: counts.misses for name, counts in tenants.items()} == {"acme": 1, "globex": 1}


def test_cancel_while_running_stops_between_steps(
    make_stack: Any, monkeypatch: pytest.MonkeyPatch, look_every_time: Any
) -> None:
    """Case Q15: the engine asks between steps, and the record ends as cancelled."""
    stack = make_stack(engine=FakeEngine(delay_s=30.0))
    look_every_time(stack)
    job_id = stack.submit(use_cache=False)
    generate = stack.engine.generate

    def cancelled_meanwhile(request: GenerationRequest) -> Any:
        assert stack.store.cancel(job_id) is JobState.RUNNING
        stack.leases.look_all()
        return generate(request)

    monkeypatch.setattr(stack.engine, "generate", cancelled_meanwhile)
    result = stack.runner.run(job_id)
    assert (result.status, result.finish_reason) == (JobState.CANCELLED, "cancelled")
    assert stack.store.get(job_id).state is JobState.CANCELLED


@pytest.mark.usefixtures("logging_as_before")
def test_variables_and_text_are_not_in_the_log(
    make_stack: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The canonical line has every field of the design and no words of the prompt."""
    import logging

    from contract.logs import configure_logs

    configure_logs(force_json=True)
    logging.getLogger().addHandler(caplog.handler)
    stack = make_stack()
    stack.runner.run(stack.submit("marker-7319"))
    lines = [r.msg for r in caplog.records if isinstance(r.msg, dict)]
    (line,) = [line for line in lines if line.get("event") == "job_finished"]
    fields = [
        "job_id",
        "tenant",
        "template",
        "version",
        "digest",
        "model",
        "device",
        "worker",
        "attempt",
        "cache_state",
        "cache_reason",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "batch_size",
        "queue_s",
        "tokenize_s",
        "verify_s",
        "prefill_s",
        "fork_s",
        "suffix_prefill_s",
        "ttft_s",
        "decode_s",
        "commit_s",
        "total_s",
        "finish_reason",
    ]
    assert set(fields) <= line.keys()
    assert "marker-7319" not in caplog.text


def test_strict_template_is_not_answered_uncached_after_nan(make_stack: Any) -> None:
    """`strict: true` also forbids the plain path as a second try."""
    armed: list[bool] = []
    stack = make_stack(engine=_NaN(lambda r: bool(armed) and r.entry is not None))
    strict = stack.publish(strict=True)
    stack.runner.run(stack.submit("warm", version=strict))
    armed.append(True)
    result = _to_the_end(stack, stack.submit("hit", version=strict))
    assert (result.status, result.error.code) == (JobState.FAILED, "non_finite_logits")


def test_other_tokenizer_than_compiled_with_fails(make_stack: Any) -> None:
    """Ids of two tokenizers in one prompt would be garbage without an error."""
    stack = make_stack()
    stack.model.folder = replace(stack.model.folder, tokenizer_digest="e" * 64)
    result = stack.runner.run(stack.submit())
    assert result.status is JobState.FAILED
    assert "eeeeeeeeeeee" in result.error.message


def test_first_token_of_a_cold_job_comes_after_all_that_preceded_it(make_stack: Any) -> None:
    """Time to first token counts the prefill and the check of a version's first warming."""
    stack = make_stack(engine=FakeEngine(prefill_s=0.2))
    result = stack.runner.run(stack.submit())
    assert 0.2 <= result.timings.prefill_s <= result.timings.ttft_s <= result.timings.total_s
