"""No job's words reach another job, and no entry serves what it was not made for.

Each check is also run against code that is broken on purpose, to show that it can fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import pytest

from contract.types import JobState
from templates.tokenizer import TemplateTokenizer
from templates.version import PublishedVersion
from worker.engine.base import Generation, GenerationRequest
from worker.engine.fake import FakeEngine
from worker.prefix.entry import PrefixKey
from worker.prefixes import PrefixService

# Invariant 5: each part of the key keeps entries apart.


def _of_tenant(stack: Any, version: PublishedVersion) -> PublishedVersion:
    return replace(version, ref=replace(version.ref, tenant="globex"))


def _of_digest(stack: Any, version: PublishedVersion) -> PublishedVersion:
    return replace(version, ref=replace(version.ref, digest="d" * 64))


def _of_model(stack: Any, version: PublishedVersion) -> PublishedVersion:
    stack.model.folder = replace(stack.model.folder, model_digest="d" * 64)
    return version


def _of_tokenizer(stack: Any, version: PublishedVersion) -> PublishedVersion:
    stack.model.folder = replace(stack.model.folder, tokenizer_digest="d" * 64)
    return replace(version, tokenizer_digest="d" * 64)


def _of_dtype(stack: Any, version: PublishedVersion) -> PublishedVersion:
    stack.model.dtype = "bfloat16"
    return version


def _of_device(stack: Any, version: PublishedVersion) -> PublishedVersion:
    stack.model.device = "cuda:0"
    return version


def _of_adapter(stack: Any, version: PublishedVersion) -> PublishedVersion:
    # No model has adapters yet; the key must keep them apart from the first one on.
    key = stack.prefixes.key
    stack.prefixes.key = lambda version: replace(key(version), adapter="d" * 64)
    return version


# What makes the second job differ from the first in just this field of the key.
CHANGES: dict[str, Callable[[Any, PublishedVersion], PublishedVersion]] = {
    "tenant": _of_tenant,
    "digest": _of_digest,
    "model_digest": _of_model,
    "tokenizer_digest": _of_tokenizer,
    "adapter": _of_adapter,
    "dtype": _of_dtype,
    "device": _of_device,
}
FIELDS = [field.name for field in fields(PrefixKey)]


def _serve(stack: Any, version: PublishedVersion) -> Any:
    ids = (*version.compiled.prefix_ids, 5, 6)
    with stack.prefixes.serve(version, ids) as served:
        return served


def _assert_kept_apart(stack: Any, changed: str) -> None:
    """Two jobs that differ in one field get two entries, each computed for its own."""
    first = _serve(stack, stack.version)
    version = CHANGES[changed](stack, stack.version)
    second = _serve(stack, version)
    # The word for "computed just now"; a hit here is another's entry.
    assert [first.cache.reason, second.cache.reason] == ["cold", "cold"]
    assert second.entry is not first.entry
    ours, theirs = (
        {name: getattr(served.entry.key, name) for name in FIELDS} for served in (first, second)
    )
    assert [name for name in FIELDS if ours[name] != theirs[name]] == [changed]
    assert stack.engine.prefills == [first.entry.key, second.entry.key]
    # And both are there for the next job: neither took the other's place.
    assert len(stack.prefixes.cache.entries()) == 2
    assert _serve(stack, version).entry is second.entry
    stack.prefixes.cache.check_integrity()


@pytest.mark.parametrize("field", FIELDS)
def test_jobs_that_differ_in_one_field_get_separate_entries(make_stack: Any, field: str) -> None:
    """Invariant 5: tenant, version, weights, tokenizer, adapter, precision and device."""
    _assert_kept_apart(make_stack(), field)


@pytest.mark.parametrize("field", FIELDS)
def test_key_without_one_field_mixes_entries_up(
    make_stack: Any, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: a key that forgets the field hands one job's entry to the other."""
    stack = make_stack()
    forgotten = getattr(stack.prefixes.key(stack.version), field)
    honest = PrefixService.key

    def forgetful(self: PrefixService, version: PublishedVersion) -> PrefixKey:
        return replace(honest(self, version), **{field: forgotten})

    monkeypatch.setattr(PrefixService, "key", forgetful)
    if field == "adapter":
        # Set by the change itself, after the key was made; forget it there.
        monkeypatch.setitem(CHANGES, field, lambda _, version: version)
    with pytest.raises(AssertionError, match=r"\['cold', ''\] == \['cold', 'cold'\]"):
        _assert_kept_apart(stack, field)
    assert len(stack.engine.prefills) == 1, "the second job was given the first one's entry"


# Invariant 3: each job's words stay in its own result.

JOBS, THREADS = 80, 4
MARKER = re.compile(r"marker-[0-9]{4}")


class Echo(FakeEngine):
    """Answers with the markers that it can read in the request's ids."""

    def __init__(self, tokenizer: TemplateTokenizer) -> None:
        super().__init__(answer=self._markers, delay_s=0.002, batch_size=THREADS)
        self._tokenizer = tokenizer

    def _markers(self, request: GenerationRequest) -> str:
        return " ".join(MARKER.findall(self._tokenizer.decode(request.ids)))


class AnswersThePrevious(Echo):
    """Fault: an answer that stayed in the engine goes to whoever comes next."""

    _left = ""

    def generate(self, request: GenerationRequest) -> Generation:
        generation = super().generate(request)
        before, self._left = self._left, generation.text
        return replace(generation, text=before)


class AddsThePrevious(Echo):
    """Fault: the right answer, and after it what another job's cache still held."""

    _left = ""

    def generate(self, request: GenerationRequest) -> Generation:
        generation = super().generate(request)
        before, self._left = self._left, generation.text
        return replace(generation, text=f"{generation.text} {before}")


class SharesItsBuffer(Echo):
    """Fault: the threads' requests lie in one place, and the last one written is answered."""

    _ids: tuple[int, ...] = ()

    def _wait(self, request: GenerationRequest) -> Any:
        self._ids = request.ids
        return super()._wait(request)

    def _markers(self, request: GenerationRequest) -> str:
        return super()._markers(replace(request, ids=self._ids, entry=None))


def _run_marked_jobs(stack: Any) -> dict[str, str]:
    """Text by marker: jobs of two tenants and four versions, on several threads at once."""
    versions = [
        stack.version,
        stack.publish(rules="Answer in one word. " * 4),
        stack.publish(tenant="globex"),
        stack.publish(name="letters"),
    ]
    marked = {
        stack.submit(
            f"This is marker-{index:04d}.",
            version=versions[index % len(versions)],
            use_cache=index % 5 != 0,
        ): f"marker-{index:04d}"
        for index in range(JOBS)
    }
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(stack.runner.run, marked))
    assert {result.status for result in results} == {JobState.SUCCEEDED}
    assert [result.job_id for result in results] == list(marked)
    return {marker: stack.store.get(job_id).result.text for job_id, marker in marked.items()}


def _assert_each_has_its_own(texts: dict[str, str]) -> None:
    crossed = {marker: text for marker, text in texts.items() if MARKER.findall(text) != [marker]}
    assert not crossed, f"{len(crossed)} of {len(texts)} jobs got another's words"


def test_every_result_holds_its_own_marker_and_no_other(
    make_stack: Any, tokenizer: TemplateTokenizer
) -> None:
    """Invariant 3: with and without the cache, over versions, tenants and threads."""
    stack = make_stack(engine=Echo(tokenizer), audit=True)
    texts = _run_marked_jobs(stack)
    assert len(texts) == JOBS
    _assert_each_has_its_own(texts)
    assert stack.prefixes.cache.stats().hits > 0
    stack.prefixes.cache.check_integrity()
    assert stack.leases.running == 0


@pytest.mark.parametrize("broken", [AnswersThePrevious, AddsThePrevious, SharesItsBuffer])
def test_engine_that_mixes_jobs_up_is_found_out(
    make_stack: Any, tokenizer: TemplateTokenizer, broken: type[Echo]
) -> None:
    """Fault: the check above sees each way in which an engine can lose track of its jobs."""
    texts = _run_marked_jobs(make_stack(engine=broken(tokenizer)))
    with pytest.raises(AssertionError, match="got another's words"):
        _assert_each_has_its_own(texts)


# A job whose time is over stops between two tokens.


class Stepwise(FakeEngine):
    """Makes a token a step, asking after each as a decode loop does; time passes at one."""

    def __init__(self, at_step: int, action: Callable[[], None]) -> None:
        super().__init__()
        self._at_step, self._action = at_step, action

    def generate(self, request: GenerationRequest) -> Generation:
        produced: list[int] = []
        reason = request.should_stop()
        while reason is None and len(produced) < request.generation.max_new_tokens:
            produced.append(len(produced) + 10)
            if len(produced) == self._at_step:
                self._action()
            reason = request.should_stop()
        return Generation(
            token_ids=tuple(produced),
            text=" ".join(map(str, produced)),
            finish_reason=reason or "length",
        )


@pytest.fixture
def late_stack(make_stack: Any, look_every_time: Any) -> Any:
    """The deadline passes while the third of eight tokens is made; the lease does not."""

    def time_passes() -> None:
        stack.clock.now += 11

    stack = make_stack(engine=Stepwise(3, time_passes))
    look_every_time(stack)
    return stack


def test_deadline_in_the_middle_of_decoding_ends_the_job(late_stack: Any) -> None:
    """Case Q16: no token is made after the deadline, and the record says expired."""
    job_id = late_stack.submit(deadline_s=10, use_cache=False)
    result = late_stack.runner.run(job_id)
    assert (result.status, result.finish_reason) == (JobState.EXPIRED, "expired")
    assert result.token_ids == (10, 11, 12)
    assert result.usage.completion_tokens == 3
    assert result.error.code == "expired"
    view = late_stack.store.get(job_id)
    assert view.state is JobState.EXPIRED
    assert view.result.token_ids == (10, 11, 12)


def test_deadline_that_nobody_looks_at_is_missed(
    late_stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: without the look at the record all eight tokens are made, so the test above bites."""
    monkeypatch.setattr(late_stack.leases, "look_all", lambda: None)
    job_id = late_stack.submit(deadline_s=10, use_cache=False)
    assert len(late_stack.runner.run(job_id).token_ids) == 8


def test_deadline_that_has_not_passed_stops_nothing(late_stack: Any) -> None:
    """The same job with time to spare makes all its tokens."""
    job_id = late_stack.submit(deadline_s=60, use_cache=False)
    result = late_stack.runner.run(job_id)
    assert (result.status, len(result.token_ids)) == (JobState.SUCCEEDED, 8)
