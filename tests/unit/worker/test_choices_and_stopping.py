"""Which ids may come next, and when a completion is over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from contract.errors import InvalidInput
from templates.spec import GenerationSpec
from worker.engine.base import StopReason, never
from worker.engine.choices import Choices
from worker.engine.stopping import Ending, StopStrings

EOS = (2, 3)


def decode(ids: Sequence[int]) -> str:
    """Each id from 4 is a letter; 30 is the first byte of a pair that 31 completes."""
    return "".join(_letter(ids, at) for at in range(len(ids)))


def _letter(ids: Sequence[int], at: int) -> str:
    if ids[at] == 30:
        return "é" if at + 1 < len(ids) and ids[at + 1] == 31 else "\N{REPLACEMENT CHARACTER}"
    if ids[at] == 31:
        return "" if at and ids[at - 1] == 30 else "\N{REPLACEMENT CHARACTER}"
    return chr(93 + ids[at]) if ids[at] > 3 else ""


def ids_of(text: str) -> list[int]:
    return [ord(letter) - 93 for letter in text]


def ending(
    *,
    max_new_tokens: int = 8,
    stop: tuple[str, ...] = (),
    choices: Choices | None = None,
    should_stop: StopReason | None = None,
) -> Ending:
    return Ending(
        GenerationSpec(max_new_tokens=max_new_tokens, stop=stop),
        eos_ids=EOS,
        choices=choices,
        decode=decode,
        should_stop=(lambda: should_stop) if should_stop else never,
    )


def test_choices_allow_their_ids_and_nothing_else() -> None:
    """At each step only ids that lead to a choice are allowed."""
    choices = Choices(((10, 11), (10, 12), (20,)), EOS)
    assert choices.allowed(()) == [10, 20]
    assert choices.allowed((10,)) == [11, 12]


def test_choice_that_begins_another_may_end_or_go_on() -> None:
    """The end-of-sequence ids are allowed exactly where a choice is complete."""
    choices = Choices(((10,), (10, 11)), EOS)
    assert choices.allowed(()) == [10]
    assert choices.allowed((10,)) == [2, 3, 11]
    assert choices.decided((10,)) is None
    assert choices.decided((10, 3)) == 0
    assert choices.decided((10, 11)) == 1


def test_choice_is_decided_when_one_is_left() -> None:
    """The rest of the only choice left need not be computed."""
    choices = Choices(((10, 11, 12), (20, 21)), EOS)
    assert choices.decided(()) is None
    assert choices.decided((10,)) == 0


def test_choices_that_cannot_be_told_apart_are_refused() -> None:
    """Without an end-of-sequence id a choice must not begin another; none may be empty."""
    with pytest.raises(InvalidInput, match="beginning of another"):
        Choices(((10,), (10, 11)), ())
    with pytest.raises(InvalidInput, match="at least one token"):
        Choices(((10,), ()), EOS)


def test_decided_choice_ends_with_all_its_ids() -> None:
    """The completion of a choice is complete, though only its first id was computed."""
    end = ending(choices=Choices(((10, 11, 12), (20, 21)), EOS))
    assert end.after([10])
    assert (end.reason, end.choice_index) == ("stop", 0)
    assert end.token_ids([10]) == (10, 11, 12)


def test_end_id_of_a_choice_is_kept() -> None:
    """An end-of-sequence id that decided is part of the completion."""
    end = ending(choices=Choices(((10,), (10, 11)), EOS))
    assert not end.after([10])
    assert end.after([10, 2])
    assert (end.choice_index, end.token_ids([10, 2])) == (0, (10, 2))


def test_choice_longer_than_max_new_tokens_is_not_cut() -> None:
    """An answer from a list is always exactly one of the list."""
    end = ending(max_new_tokens=1, choices=Choices(((10, 11, 12), (10, 11, 13)), EOS))
    assert end.max_new_tokens == 4
    assert not end.after([10])
    assert not end.after([10, 11])
    assert end.after([10, 11, 13])


@pytest.mark.parametrize("eos", EOS)
def test_any_end_id_ends(eos: int) -> None:
    """A model with several end-of-sequence ids stops at each of them."""
    end = ending()
    assert not end.after([10])
    assert end.after([10, eos])
    assert end.reason == "stop"


def test_length_ends() -> None:
    """At max_new_tokens the completion is cut, and says so."""
    end = ending(max_new_tokens=2)
    assert not end.after([10])
    assert end.after([10, 11])
    assert end.reason == "length"


def test_stop_string_across_token_borders() -> None:
    """A stop string is found when its last token arrives, and is not part of the text."""
    end = ending(max_new_tokens=99, stop=("cde", "xy"))
    ids = ids_of("abcdefg")
    steps = [end.after(ids[: n + 1]) for n in range(5)]
    assert steps == [False, False, False, False, True]
    assert end.reason == "stop_string"
    assert end.text(ids[:5]) == "ab"


def test_earliest_stop_string_cuts() -> None:
    """When one token completes two stop strings, the text ends before the first of them."""
    strings = StopStrings(("d", "bcd"), decode)
    assert strings.found(ids_of("abcd"))
    assert strings.cut("abcd") == "a"


def test_stop_string_far_into_a_long_text() -> None:
    """The search looks at the end only, and still finds a string that just ended."""
    seen: list[int] = []

    def counting(ids: Sequence[int]) -> str:
        seen.append(len(ids))
        return decode(ids)

    strings = StopStrings(("xyz",), counting)
    assert not strings.found(ids_of("a" * 500 + "xy"))
    assert strings.found(ids_of("a" * 500 + "xyz"))
    assert max(seen) < 20


def test_stop_string_with_a_character_of_two_tokens() -> None:
    """A character split over tokens is matched once it is whole."""
    strings = StopStrings(("é",), decode)
    assert not strings.found([10, 30])
    assert strings.found([10, 30, 31])


@pytest.mark.parametrize("reason", ["cancelled", "expired"])
def test_cancelled_and_expired_jobs_stop_after_the_next_token(reason: StopReason) -> None:
    """Between tokens the job is asked whether it is still wanted."""
    end = ending(should_stop=reason)
    assert end.after([10])
    assert end.reason == reason


def test_complete_answer_counts_although_the_job_was_cancelled() -> None:
    """The token that completes an answer is not thrown away by a late cancel."""
    end = ending(should_stop="cancelled")
    assert end.after([10, 2])
    assert end.reason == "stop"


def test_nothing_changes_after_the_end() -> None:
    """A step beyond the end, as on MPS, changes neither reason nor choice."""
    end = ending(choices=Choices(((10,), (20, 21)), EOS))
    assert end.after([10])
    assert end.after([10, 77])
    assert (end.reason, end.choice_index) == ("stop", 0)
