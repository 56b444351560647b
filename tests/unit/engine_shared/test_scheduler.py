"""Who is in the batch and what the next step computes, without a model."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings, strategies as st

from worker.engine.shared.scheduler import Chunk, NeverFits, Row, Scheduler


def scheduler(
    *, rows: int = 4, blocks: int = 8, block_tokens: int = 4, chunk_tokens: int = 10
) -> Scheduler:
    return Scheduler(rows=rows, blocks=blocks, block_tokens=block_tokens, chunk_tokens=chunk_tokens)


def row(suffix: int, new: int = 1) -> Row:
    """A request of `suffix` tokens that will generate `new`; the last is never stored."""
    return Row(tokens=suffix + new - 1, known=suffix)


def step(books: Scheduler) -> list[Chunk]:
    """Compute what is planned; each row whose known tokens are all computed gets its next."""
    chunks = books.plan()
    completed = [chunk.row for chunk in chunks if chunk.completes]
    books.done(chunks)
    for done in completed:
        done.known += 1
    books.check_integrity()
    return chunks


def test_rows_are_admitted_in_order_of_arrival() -> None:
    """First come, first served, each with a slot and blocks of its own."""
    books = scheduler(rows=3)
    rows = [row(n + 1) for n in range(3)]
    for waiting in rows:
        books.add(waiting)
    assert len(books.waiting) == 3
    assert books.admit() == rows
    assert list(books.running) == rows
    assert len({r.slot for r in rows}) == 3
    assert len({block for r in rows for block in r.blocks}) == sum(len(r.blocks) for r in rows)


def test_row_reserves_blocks_for_all_that_it_may_hold() -> None:
    """What is reserved at admission is enough for the longest answer."""
    books = scheduler(block_tokens=4)
    one, two = row(3, new=2), row(3, new=3)
    books.add(one)
    books.add(two)
    books.admit()
    assert (len(one.blocks), len(two.blocks)) == (1, 2)


def test_full_slots_wait() -> None:
    """With all slots taken a row waits, and takes the next that is free."""
    books = scheduler(rows=1)
    first, second = row(2), row(2)
    books.add(first)
    books.add(second)
    assert books.admit() == [first]
    assert books.admit() == []
    assert (second.slot, len(books.waiting)) == (-1, 1)
    slot = first.slot
    books.remove(first)
    assert books.admit() == [second]
    assert second.slot == slot


def test_full_memory_waits_and_evicts_nothing() -> None:
    """A large row waits for room, those behind it too, and those that run keep their blocks."""
    books = scheduler(rows=4, blocks=4, block_tokens=4)
    running, large, small = row(12), row(8), row(1)
    for waiting in (running, large, small):
        books.add(waiting)
    assert books.admit() == [running]
    held = running.blocks
    for _ in range(5):
        step(books)
        assert books.admit() == []
    assert running.blocks == held
    books.remove(running)
    assert books.admit() == [large, small]


def test_row_that_can_never_fit_is_refused_with_numbers() -> None:
    """The most that fits is admitted; one token more is refused, and blocks nobody."""
    books = scheduler(blocks=2, block_tokens=4)
    with pytest.raises(NeverFits, match=r"9 tokens.*8 at most"):
        books.add(row(9))
    largest = row(8)
    books.add(largest)
    assert books.admit() == [largest]
    assert not books.waiting


def test_chunk_budget_bounds_a_steps_prefill() -> None:
    """However many and long the suffixes are, a step computes no more of them than its budget,
    and one token more for each row that generates."""
    books = scheduler(rows=4, blocks=100, chunk_tokens=10)
    for suffix in (25, 7, 3):
        books.add(row(suffix, new=9))
    books.admit()
    steps = [[(chunk.start, chunk.count) for chunk in step(books)] for _ in range(4)]
    assert steps == [
        [(0, 10)],
        [(10, 10)],
        [(20, 5), (0, 5)],
        [(25, 1), (5, 2), (0, 3)],
    ]


def test_long_suffix_does_not_stop_rows_that_generate() -> None:
    """While a long suffix is computed in chunks, each row that generates gets a token a step."""
    books = scheduler(rows=4, blocks=100, chunk_tokens=10)
    generating = [row(1, new=50) for _ in range(3)]
    for waiting in generating:
        books.add(waiting)
    books.admit()
    step(books)
    long = row(100)
    books.add(long)
    books.admit()
    for number in range(10):
        chunks = {id(chunk.row): chunk for chunk in step(books)}
        assert all(chunks[id(r)].count == 1 for r in generating)
        assert (chunks[id(long)].start, chunks[id(long)].count) == (number * 10, 10)
    assert [r.computed for r in generating] == [11] * 3


def test_older_prefill_comes_first() -> None:
    """A row that came later gets what the older ones leave of the budget."""
    books = scheduler(rows=4, blocks=100, chunk_tokens=10)
    old, young = row(12), row(12)
    books.add(old)
    books.add(young)
    books.admit()
    assert [(c.row, c.count) for c in step(books)] == [(old, 10)]
    assert [(c.row, c.count) for c in step(books)] == [(old, 2), (young, 8)]


def test_only_the_last_chunk_completes() -> None:
    """The next token is chosen when nothing known is left to compute."""
    books = scheduler(rows=1, blocks=100, chunk_tokens=10)
    books.add(row(25))
    books.admit()
    assert [len(_checked_step(books)) for _ in range(3)] == [0, 0, 1]


@pytest.mark.parametrize("state", ["waiting", "admitted", "half computed", "generating"])
def test_row_can_leave_in_any_state(state: str) -> None:
    """Whatever a row is at, all that it had is free afterwards, and others go on."""
    books = scheduler(rows=2, blocks=20, chunk_tokens=10)
    other, leaving = row(2, new=9), row(15, new=9)
    books.add(other)
    books.admit()
    books.add(leaving)
    if state != "waiting":
        books.admit()
    for _ in range({"half computed": 1, "generating": 4}.get(state, 0)):
        step(books)
    books.remove(leaving)
    books.check_integrity()
    assert (leaving.slot, leaving.blocks, len(books.waiting)) == (-1, (), 0)
    assert list(books.running) == [other]
    assert books.free_blocks == 20 - len(other.blocks)
    assert [chunk.row for chunk in step(books)] == [other]


@settings(deadline=None)  # a busy machine is no fault
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 5), blocks=st.integers(1, 12))
def test_books_balance_after_any_history(seed: int, rows: int, blocks: int) -> None:
    """After any arrivals, steps and departures no block is lost or shared, nobody is overtaken,
    every row that stays ends, and in the end all is free."""
    rng = random.Random(seed)
    books = scheduler(rows=rows, blocks=blocks, chunk_tokens=rng.randint(1, 12))
    arrived: list[Row] = []
    admitted: list[Row] = []
    left: dict[int, int] = {}  # tokens still to generate, by id of a running row
    for _ in range(60):
        if rng.random() < 0.5:
            new = rng.randint(1, 6)
            asked = row(rng.randint(1, 20), new=new)
            try:
                books.add(asked)
            except NeverFits:
                assert books.blocks_for(asked.tokens) > blocks
            else:
                arrived.append(asked)
                left[id(asked)] = new
        admitted += books.admit()
        if arrived and rng.random() < 0.15:
            gone = rng.choice(arrived)
            arrived.remove(gone)
            books.remove(gone)
            if gone in admitted:
                admitted.remove(gone)
        else:
            for chunk in _checked_step(books):
                left[id(chunk.row)] -= 1
                if left[id(chunk.row)] == 0:
                    books.remove(chunk.row)
                    arrived.remove(chunk.row)
                    admitted.remove(chunk.row)
                else:
                    chunk.row.known += 1
        books.check_integrity()
        assert admitted == arrived[: len(admitted)]
    while arrived:
        books.admit()
        chunks = _checked_step(books)
        assert chunks or books.plan()
        for chunk in chunks:
            left[id(chunk.row)] -= 1
            if left[id(chunk.row)] == 0:
                books.remove(chunk.row)
                arrived.remove(chunk.row)
            else:
                chunk.row.known += 1
    books.check_integrity()
    assert (books.free_blocks, len(books.waiting), len(books.running)) == (blocks, 0, 0)


def _checked_step(books: Scheduler) -> list[Chunk]:
    """Compute what is planned; the chunks that complete their rows."""
    chunks = books.plan()
    for chunk in chunks:
        assert chunk.start == chunk.row.computed
        assert chunk.count >= 1
        assert chunk.start + chunk.count <= min(chunk.row.known, chunk.row.tokens)
    completed = [chunk for chunk in chunks if chunk.completes]
    books.done(chunks)
    return completed


def test_broken_books_are_noticed() -> None:
    """Fault: a block lost, given twice, or a slot given twice does not go unseen."""
    for spoil in ("lost", "twice", "slot"):
        books = scheduler()
        one, two = row(4), row(4)
        books.add(one)
        books.add(two)
        books.admit()
        if spoil == "lost":
            one.blocks = ()
        elif spoil == "twice":
            one.blocks = two.blocks
        else:
            one.slot = two.slot
        with pytest.raises(RuntimeError):
            books.check_integrity()
