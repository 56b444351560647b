"""Text that is given out stays: whole characters, and no begin of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, strategies as st
from tokenizers import Tokenizer, decoders

from tests.support.made_tokenizers import byte_level, llama2
from worker.engine.stopping import StopStrings
from worker.safe_text import SafeText


def decode(ids: Sequence[int]) -> str:
    """Each id is a byte, as in a byte-level tokenizer; 256 has no text."""
    return bytes(id_ for id_ in ids if id_ < 256).decode("utf-8", "replace")


def pieces(text: str, stop: Sequence[str] = (), *, step: int = 1) -> list[str]:
    ids = list(text.encode("utf-8"))
    safe = SafeText(stop, decode)
    return [safe.add(ids[at : at + step]) for at in range(0, len(ids), step)]


def test_a_character_split_over_tokens_is_given_out_whole() -> None:
    """With its last byte, and never as a replacement character."""
    assert pieces("aé€😀z") == ["a", "", "é", "", "", "€", "", "", "", "😀", "z"]


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    """Until it is none; a stop string itself ends the text."""
    assert pieces("ab##c", ["###"]) == ["a", "b", "", "", "##c"]
    assert pieces("ab###c", ["###"]) == ["a", "b", "", "", "", ""]


def test_the_first_of_several_stop_strings_ends_the_text() -> None:
    """Also when a longer one began before it."""
    assert "".join(pieces("one END two", ["END two!", "two"])) == "one END "
    assert "".join(pieces("x<a<b>", ["<b>"])) == "x<a"


def test_ids_without_text_change_nothing() -> None:
    """Such as the end of the sequence, before, within and after."""
    safe = SafeText((), decode)
    ids = [256, *"é".encode()[:1], 256, *"é".encode()[1:], 256, *b"x", 256]
    assert [safe.add([id_]) for id_ in ids] == ["", "", "", "é", "", "x", ""]


@given(
    text=st.text(max_size=60),
    stop=st.lists(st.text(min_size=1, max_size=4), max_size=3),
    step=st.integers(1, 7),
)
def test_what_was_given_out_is_how_the_answer_begins(text: str, stop: list[str], step: int) -> None:
    """For any text, stop strings and grouping: the answer, but for what must still be held."""
    stop = [s for s in stop if not any("\ud800" <= c <= "\udfff" for c in s)]
    text = text.encode("utf-8", "replace").decode()
    whole = StopStrings(stop, decode).cut(text)
    given_out = "".join(pieces(text, stop, step=step))
    assert whole.startswith(given_out)
    held = max(map(len, stop), default=1)
    waits = min(text.count("\ufffd"), 3)  # 8 bytes
    assert len(whole) - len(given_out) < held + waits + (1 if text else 0)


@pytest.mark.parametrize("count", [10, 2000])
def test_the_ids_before_are_not_decoded_again(count: int) -> None:
    """What a token costs does not grow with the answer."""
    longest = 0

    def watched(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids)

    safe = SafeText(["###"], watched)
    for _ in range(count):
        safe.add(b"x")
    assert longest <= 2


@pytest.mark.parametrize("character", ["\ufffd".encode(), b"\x80", b"\xe2\x82"], ids=bytes.hex)
def test_replacement_characters_flow_like_others(character: bytes) -> None:
    """Those that a model means, and bytes that are no characters, at the cost of any other text."""
    decoded = 0

    def watched(ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids)

    ids = list(character * 2000)[:2000]
    safe = SafeText((), watched)
    given_out = ""
    for count, id_ in enumerate(ids, 1):
        given_out += safe.add([id_])
        assert len(decode(ids[:count])) - len(given_out) <= 12
    assert decode(ids).startswith(given_out)
    assert decoded < 100 * len(ids)


@given(
    ids=st.lists(
        st.sampled_from([*"a\ufffdé€😀".encode(), 0x80, 0xE2, 0xF0, 0xFF]), min_size=9, max_size=60
    )
)
@example(ids=[*b"\xef\xbf\xbd" * 3, *"€\ufffd\ufffd😀".encode()])
@example(ids=[0x80, *b"\xef\xbf\xbd" * 2, *"€é".encode()])
def test_of_any_bytes_what_was_given_out_stays(ids: list[int]) -> None:
    """No character is cut in two, wherever it begins among bytes that are none."""
    safe = SafeText((), decode)
    given_out = "".join(safe.add([id_]) for id_ in ids)
    assert decode(ids).startswith(given_out)
    assert len(decode(ids)) - len(given_out) <= 12


def _byte_fallback() -> Tokenizer:
    tokenizer = llama2()
    spaces = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence(
        [spaces, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.mark.parametrize("kind", [byte_level, _byte_fallback], ids=["bytes", "fallback"])
def test_real_tokenizers_never_split_a_character(kind: Callable[[], Tokenizer]) -> None:
    """Whose tokens are bytes, also between replacement characters that were meant."""
    tokenizer = kind()
    for text in (
        "ticket 😀👩‍👩‍👧 漢字 né €",
        "漢字" * 30,
        "\ufffd" * 12 + "漢字",
        "a" + "\ufffd" * 40,
    ):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        safe = SafeText((), tokenizer.decode)
        each = [safe.add([id_]) for id_ in ids]
        whole = tokenizer.decode(ids)
        assert whole.startswith("".join(each))
        assert len(whole) - len("".join(each)) <= (4 if whole.endswith("\ufffd") else 0)
        assert "".join(each).count("\ufffd") <= text.count("\ufffd")
