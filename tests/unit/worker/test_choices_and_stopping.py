"""What each choice's probability is, and when a completion is over."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

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
    should_stop: StopReason | None = None,
) -> Ending:
    return Ending(
        GenerationSpec(max_new_tokens=max_new_tokens, stop=stop),
        eos_ids=EOS,
        decode=decode,
        should_stop=(lambda: should_stop) if should_stop else never,
    )


def scores(*rows: dict[int, float], vocabulary: int = 40) -> Tensor:
    """Raw scores whose softmax is these probabilities; the rest goes to id 0."""
    full = torch.zeros(len(rows), vocabulary, dtype=torch.float64)
    for at, row in enumerate(rows):
        full[at, 0] = 1 - sum(row.values())
        for token, probability in row.items():
            full[at, token] = probability
    return full.log() + 3.0  # a constant changes no softmax


NOTHING = scores()


def probabilities(choices: Choices, first: Tensor, rest: list[Tensor]) -> tuple[float, ...]:
    """Of raw scores [1, vocabulary] and, for each choice, [branch length, vocabulary]."""
    return choices.probabilities(choices.kept(first)[0], [choices.kept(after) for after in rest])


def test_different_first_tokens_decide() -> None:
    """Choices whose first tokens all differ need the prompt's own scores and nothing more."""
    choices = Choices(((10, 11, 12), (20,), (30, 31)), EOS)
    assert choices.branches == ((), (), ())
    assert choices.longest == 3
    found = probabilities(choices, scores({10: 0.2, 20: 0.1, 30: 0.1}), [NOTHING] * 3)
    assert found == pytest.approx((0.5, 0.25, 0.25))


def test_shared_first_token_compares_whole_choices() -> None:
    """A choice is as likely as its tokens one after the other; its last token is not read."""
    choices = Choices(((10, 11), (10, 12, 13), (20,)), EOS)
    assert choices.branches == ((10,), (10, 12), ())
    assert choices.longest == 3
    after_10 = {11: 0.4, 12: 0.2}
    found = probabilities(
        choices,
        scores({10: 0.5, 20: 0.3}),
        [scores(after_10), scores(after_10, {13: 0.5}), NOTHING],
    )
    likely = (0.5 * 0.4, 0.5 * 0.2 * 0.5, 0.3)
    assert found == pytest.approx([p / sum(likely) for p in likely])
    assert sum(found) == pytest.approx(1)


def test_end_tells_a_choice_from_one_that_it_begins() -> None:
    """Where one choice begins another, an end is a token of each; any of several ends counts."""
    choices = Choices(((10,), (10, 11), (20, 21)), EOS)
    assert choices.branches == ((10,), (10, 11), (20, 21))
    assert choices.longest == 3
    after_10 = {11: 0.6, 2: 0.1, 3: 0.2}
    found = probabilities(
        choices,
        scores({10: 0.5, 20: 0.25}),
        [scores(after_10), scores(after_10, {2: 0.5}), scores({21: 0.8}, {3: 1.0 - 1e-9})],
    )
    likely = (0.5 * 0.3, 0.5 * 0.6 * 0.5, 0.25 * 0.8)
    assert found == pytest.approx([p / sum(likely) for p in likely])


def test_only_choices_with_a_common_beginning_take_an_end() -> None:
    """Nested choices are found wherever they stand in the list; equal beginnings are not nested."""
    assert Choices(((10, 11, 12), (20,), (10, 11)), EOS).branches[2] == (10, 11)
    assert Choices(((10, 12), (10, 11)), EOS).branches == ((10,), (10,))


def test_unlikely_choices_still_add_up() -> None:
    """Probabilities that underflow on their own are a share all the same."""
    choices = Choices(((10,), (20,)), EOS)
    raw = torch.zeros(1, 40)
    raw[0, 10], raw[0, 20], raw[0, 0] = -900.0, -901.0, 900.0
    found = probabilities(choices, raw, [NOTHING] * 2)
    assert found == pytest.approx((0.7310586, 0.2689414))


def test_what_is_kept_is_small() -> None:
    """Of a large vocabulary only what a choice or an end needs; the same however it is cut."""
    choices = Choices(((10, 11), (10, 12)), EOS)
    raw = torch.randn(200, 5000)
    kept = choices.kept(raw)
    assert kept.shape == (200, 3 + len(EOS))
    assert torch.equal(kept, torch.cat([choices.kept(raw[:7]), choices.kept(raw[7:])]))


def test_choices_that_cannot_be_told_apart_are_refused() -> None:
    """Without an end-of-sequence id a choice must not begin another; none may be empty or twice
    in the list, and there must be one."""
    with pytest.raises(InvalidInput, match="beginning of another"):
        Choices(((10,), (10, 11)), ())
    for empty in (((10,), ()), ()):
        with pytest.raises(InvalidInput, match="at least one token"):
            Choices(empty, EOS)
    with pytest.raises(InvalidInput, match="the same tokens"):
        Choices(((10, 11), (10, 11)), EOS)


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
    """A step beyond the end, as on MPS, does not change the reason."""
    end = ending(max_new_tokens=2)
    assert end.after([10, 2])
    assert end.after([10, 2, 77])
    assert end.reason == "stop"


@pytest.mark.parametrize("reason", ["cancelled", "expired"])
def test_job_can_be_asked_before_it_begins(reason: StopReason) -> None:
    """A job that is not wanted any more ends without a token; one that is goes on."""
    assert ending().ask() is None
    end = ending(should_stop=reason)
    assert (end.ask(), end.reason) == (reason, reason)
