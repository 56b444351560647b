"""Jobs that are not wanted any more, engines that end, and more jobs than there is room for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from contract.errors import InvalidInput
from templates.spec import GenerationSpec
from tests.support.shared_engines import (
    PATIENCE_S,
    Watched,
    ask,
    ask_in_order,
    outcome,
    shared_engine,
    together,
    wait_until,
)
from tests.support.tiny_models import POSITIONS, answer, key_for, random_ids, tiny_model
from worker.engine.base import (
    EngineClosed,
    Generation,
    GenerationRequest,
    PrefixMismatch,
    RequestTooLong,
    StopReason,
)
from worker.engine.reference import ReferenceEngine
from worker.engine.shared.engine import SharedPrefixEngine
from worker.engine.shared.pool import BLOCK_TOKENS
from worker.engine.shared.scheduler import NeverFits
from worker.model import LoadedModel

PREFIX = random_ids(48, seed=1)
Engines = tuple[SharedPrefixEngine, Watched]
REASONS: tuple[StopReason, ...] = ("cancelled", "expired")


def request(ids: tuple[int, ...], *, new: int = 6, **fields: Any) -> GenerationRequest:
    spec = GenerationSpec(max_new_tokens=new, min_new_tokens=new)
    return GenerationRequest(**({"ids": ids, "generation": spec} | fields))


def after(calls: int, reason: StopReason) -> Callable[[], StopReason | None]:
    """Wanted for so many questions, then not."""
    asked = itertools.count()
    return lambda: reason if next(asked) >= calls else None


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model()


@pytest.fixture
def engine(model: LoadedModel) -> Iterator[Engines]:
    engine, forward = shared_engine(model, chunk_tokens=20)
    with closing(engine):
        yield engine, forward


@pytest.mark.parametrize("reason", REASONS)
def test_job_stops_between_tokens(engine: Engines, reason: StopReason) -> None:
    """It keeps what it has, which is what it would have begun with; others go on."""
    shared, forward = engine
    job = random_ids(9, seed=2)
    whole = answer(shared, job, max_new_tokens=6, min_new_tokens=6)
    stopped, other = together(
        shared, forward, [request(job, should_stop=after(3, reason)), request(job)]
    )
    assert (stopped.finish_reason, stopped.token_ids) == (reason, whole.token_ids[:3])
    assert stopped.text == whole.text[:3]
    assert other.token_ids == whole.token_ids


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("labels", [None, ((7,), (8,)), ((7, 8), (7, 9))])
def test_job_stops_within_a_long_prefill(
    engine: Engines, reason: StopReason, labels: tuple[tuple[int, ...], ...] | None
) -> None:
    """Between chunks it is asked too, so that a long suffix is not computed for nothing."""
    shared, forward = engine
    job = random_ids(100, seed=2)
    stopped = shared.generate(request(job, should_stop=after(2, reason), choices=labels))
    assert (stopped.finish_reason, stopped.token_ids, stopped.text) == (reason, (), "")
    assert forward.tokens == [20, 20]
    assert stopped.choice_index is None


@pytest.mark.parametrize("reason", REASONS)
def test_job_that_is_not_wanted_any_more_is_not_begun(engine: Engines, reason: StopReason) -> None:
    """It costs no step at all."""
    shared, forward = engine
    stopped = shared.generate(request(random_ids(9, seed=2), should_stop=lambda: reason))
    assert (stopped.finish_reason, stopped.token_ids, stopped.first_token_s) == (reason, (), 0.0)
    assert forward.steps == []


def test_complete_answer_counts_although_the_job_was_cancelled(engine: Engines) -> None:
    """The last token is asked about no more."""
    shared, _ = engine
    complete = shared.generate(
        request(random_ids(9, seed=2), new=3, should_stop=after(3, "expired"))
    )
    assert (complete.finish_reason, len(complete.token_ids)) == ("length", 3)


def test_job_that_waits_for_room_is_asked_too(model: LoadedModel) -> None:
    """A job that is cancelled while it waits is answered before those that hold the room end."""
    engine, forward = shared_engine(model, rows=1)
    gone = threading.Event()
    ended: list[str] = []
    with closing(engine):
        forward.hold()
        running = ask(engine, request(random_ids(9, seed=2), new=100))
        assert forward.held.wait(PATIENCE_S)
        (waiting,) = ask_in_order(
            engine,
            [request((4, 5), should_stop=lambda: "cancelled" if gone.is_set() else None)],
        )
        running.add_done_callback(lambda _: ended.append("running"))
        waiting.add_done_callback(lambda _: ended.append("waiting"))
        gone.set()
        forward.release()
        assert outcome(waiting).finish_reason == "cancelled"
        assert len(outcome(running).token_ids) == 100
    assert ended == ["waiting", "running"]


def test_job_that_waited_and_is_not_wanted_is_not_begun(model: LoadedModel) -> None:
    """When there is room for it, at the latest, it is asked before anything is computed."""
    engine, forward = shared_engine(model, rows=1)
    gone = [random_ids(30 + n, seed=n) for n in range(3)]
    with closing(engine):
        outcomes = together(
            engine,
            forward,
            [
                request(random_ids(9, seed=2)),
                *(request(g, should_stop=after(0, "expired")) for g in gone),
            ],
        )
    assert [o.finish_reason for o in outcomes] == ["length", "expired", "expired", "expired"]
    assert max(forward.tokens) == 9


def test_close_answers_what_was_asked_and_refuses_what_comes_after(model: LoadedModel) -> None:
    """Jobs that run and jobs that wait are answered in full; later ones learn of the end."""
    engine, forward = shared_engine(model, rows=2)
    jobs = [random_ids(3 + n, seed=n) for n in range(5)]
    reference = ReferenceEngine(model)
    forward.hold()
    first = ask(engine, request(jobs[0]))
    assert forward.held.wait(PATIENCE_S)
    rest = ask_in_order(engine, [request(job) for job in jobs[1:]])
    closer = threading.Thread(target=engine.close, daemon=True)
    closer.start()
    wait_until(lambda: isinstance(outcome(ask(engine, request(jobs[0]))), EngineClosed))
    forward.release()
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    for job, future in zip(jobs, [first, *rest], strict=True):
        plain = answer(reference, job, max_new_tokens=6, min_new_tokens=6)
        assert outcome(future).token_ids == plain.token_ids
    with pytest.raises(EngineClosed):
        engine.generate(request(jobs[0]))
    with pytest.raises(EngineClosed):
        engine.prefill(key_for(model), PREFIX)


def test_close_is_idempotent_and_ends_the_thread(model: LoadedModel) -> None:
    """Twice, from several threads, or before anything was asked."""
    before = set(threading.enumerate())
    engine, _ = shared_engine(model)
    (its_thread,) = set(threading.enumerate()) - before
    closers = [threading.Thread(target=engine.close) for _ in range(3)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(PATIENCE_S)
    engine.close()
    assert not its_thread.is_alive()


def test_more_jobs_than_room_are_all_answered(model: LoadedModel) -> None:
    """With memory for a few rows only, jobs wait, and each gets its right answer."""
    engine, forward = shared_engine(model, rows=8, blocks=5, chunk_tokens=30)
    reference = ReferenceEngine(model)
    with closing(engine):
        entry = engine.prefill(key_for(model), PREFIX)
        tails = [random_ids(1 + 17 * n % 90, seed=n) for n in range(20)]
        requests = [request(PREFIX + tail, entry=entry) for tail in tails]
        answers = together(engine, forward, requests)
        assert entry.audit()
    for tail, given in zip(tails, answers, strict=True):
        assert isinstance(given, Generation), given
        plain = answer(reference, PREFIX + tail, max_new_tokens=6, min_new_tokens=6)
        assert given.token_ids == plain.token_ids
    assert 1 < max(len(step.row_counts) for step in forward.steps) <= 5


def test_largest_job_is_not_overtaken_for_ever(model: LoadedModel) -> None:
    """A job that needs all the room gets it when its turn comes."""
    engine, forward = shared_engine(model, blocks=4)
    ended: list[str] = []

    def note(name: str, _future: object) -> None:
        ended.append(name)

    with closing(engine):
        forward.hold()
        first = ask(engine, request((4, 5), new=3))
        assert forward.held.wait(PATIENCE_S)
        large = request(random_ids(4 * BLOCK_TOKENS - 5, seed=1))
        futures = ask_in_order(engine, [request((6, 7)), large, *[request((8, 9))] * 3])
        for name, future in zip(["small", "large", *["late"] * 3], futures, strict=True):
            future.add_done_callback(partial(note, name))
        forward.release()
        assert all(isinstance(outcome(f), Generation) for f in [first, *futures])
    wait_until(lambda: len(ended) == 5)
    assert ended == ["small", "large", "late", "late", "late"]


def test_job_that_can_never_fit_is_refused_with_numbers(model: LoadedModel) -> None:
    """It fails at once, with what it needs and what there is; one token less is served."""
    engine, _ = shared_engine(model, blocks=2)
    fits = 2 * BLOCK_TOKENS - 5
    with closing(engine):
        with pytest.raises(NeverFits, match=r"65 tokens.*64 at most"):
            engine.generate(request(random_ids(fits + 1, seed=1)))
        with pytest.raises(NeverFits, match=r"65 tokens.*64 at most"):
            engine.prefill(key_for(model), random_ids(65, seed=1))
        with pytest.raises(NeverFits):
            engine.generate(request(random_ids(60, seed=1), choices=((7, 8, 9), (7, 9, 8), (7, 5))))
        assert len(engine.generate(request(random_ids(fits, seed=1))).token_ids) == 6


def test_prefix_counts_only_while_it_is_computed(model: LoadedModel) -> None:
    """Memory for rows is for their own tokens: a prefix as large as the pool takes none of it."""
    engine, forward = shared_engine(model, blocks=2)
    prefix = random_ids(2 * BLOCK_TOKENS, seed=3)
    with closing(engine):
        entry = engine.prefill(key_for(model), prefix)
        jobs = [request((*prefix, 7 + n), entry=entry) for n in range(2)]
        assert all(isinstance(a, Generation) for a in together(engine, forward, jobs))
    assert max(len(step.row_counts) for step in forward.steps) == 2


def test_what_cannot_be_asked_is_refused_before_it_waits(
    engine: Engines, model: LoadedModel
) -> None:
    """Cases P1, P2, P3, P12, P19: the wall that the reference engine has, too."""
    shared, forward = engine
    entry = shared.prefill(key_for(model), PREFIX)
    steps = len(forward.steps)
    for ids in (PREFIX, PREFIX[:20], (PREFIX[0] + 1, *PREFIX[1:], 9)):
        with pytest.raises(PrefixMismatch):
            shared.generate(request(ids, entry=entry))
    with pytest.raises(PrefixMismatch):
        shared.prefill(key_for(model, model_digest="other"), PREFIX)
    with pytest.raises(RequestTooLong, match=f"{POSITIONS} positions"):
        shared.generate(request(random_ids(POSITIONS - 5, seed=1)))
    with pytest.raises(RequestTooLong):
        shared.prefill(key_for(model), random_ids(POSITIONS, seed=1))
    for empty in (lambda: shared.generate(request(())), lambda: shared.prefill(key_for(model), ())):
        with pytest.raises(InvalidInput):
            empty()
    assert len(forward.steps) == steps


def test_long_suffix_does_not_hold_up_jobs_that_generate(engine: Engines) -> None:
    """Beside a prefill in chunks every other job gets a token in every step."""
    shared, forward = engine
    tokens: list[int] = []
    long = request(random_ids(160, seed=1), new=1)
    short = request((4, 5), new=12, on_token=lambda _: tokens.append(len(forward.steps)))
    together(shared, forward, [short, long])
    assert tokens == list(range(tokens[0], tokens[0] + 12))
    assert max(forward.tokens) <= 20 + 2


def test_seconds_and_batch_size_are_reported(engine: Engines) -> None:
    """Waiting for others is not part of a job's own stages, and counts until its first token."""
    shared, forward = engine
    first, second = together(shared, forward, [request((4, 5)), request((6, 7, 8))])
    for given in (first, second):
        assert given.batch_size == 2
        assert given.fork_s == 0.0
        assert min(given.suffix_prefill_s, given.decode_s) > 0
        assert given.first_token_s >= given.suffix_prefill_s
    assert answer(shared, (4, 5)).batch_size == 1
