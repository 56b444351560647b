"""Ordinary text never becomes a control token; with none spelt, ids are the library's own."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from contract.errors import InvalidInput, ModelError
from templates.compiled import Control
from templates.tokenizer import TemplateTokenizer
from tests.support import made_tokenizers as kinds
from tests.support.made_tokenizers import KINDS, made

PIECES = ("the user", " the", "the ", "  ", "\n", " a\n b ", "x<", "printer!", "user_42 é", "\t.")


def prompts(kind: str) -> st.SearchStrategy[list[Control | str]]:
    """Control tokens and ordinary texts in any order, never two texts in a row."""
    tokens = [
        Control(id_, text) for text, id_ in made(kind).control_tokens.items() if text != "<unk>"
    ]
    text = st.one_of(st.sampled_from(PIECES), st.text("abt her<>/s[]_\n.I", max_size=12))
    pair = st.tuples(st.sampled_from(tokens), text)
    return st.lists(pair, max_size=5).flatmap(
        lambda pairs: text.map(lambda first: [first, *(item for pair in pairs for item in pair)])
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_segments_get_the_ids_of_the_whole_text(kind: str, data: st.DataObject) -> None:
    """Pieces encode as in the middle of their prompt, whatever the tokenizer adds or strips
    at an edge (case P27)."""
    tokenizer = made(kind)
    segments = data.draw(prompts(kind))
    if tokenizer.reads_back(segments):
        text = "".join(s.text if isinstance(s, Control) else s for s in segments)
        assert tokenizer.encode_segments(segments) == tokenizer.encode_trusted(text)


@pytest.mark.parametrize("kind", KINDS)
def test_no_control_token_from_ordinary_text(kind: str) -> None:
    """A control token's text gives its id when trusted, and never when ordinary (case P24)."""
    tokenizer = made(kind)
    unknown = tokenizer.control_tokens.get("<unk>")
    known = [text for text in tokenizer.control_tokens if text != "<unk>"]
    for text, id_ in tokenizer.control_tokens.items():
        for ordinary in (text, f"the {text} user", text * 3, f" {text}\n"):
            assert id_ in tokenizer.encode_trusted(ordinary)
            for after in (None, *known):
                ids = set(tokenizer.encode_ordinary(ordinary, after=after))
                assert ids.isdisjoint(set(tokenizer.control_tokens.values()) - {unknown})


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_is_what_we_compare_with(kind: str) -> None:
    """Trusted encoding is the unchanged tokenizer's, without the tokens it adds itself."""
    plain = KINDS[kind]()
    text = "<s>the <end> user</s>\n the user"
    wanted = tuple(plain.encode(text, add_special_tokens=False).ids)
    assert made(kind).encode_trusted(text) == wanted


@pytest.mark.parametrize("kind", ["byte-level", "llama-2", "phi-3", "merging"])
def test_seams_cannot_forge(kind: str) -> None:
    """Two harmless texts that spell a control token together stay text, and do not read back."""
    tokenizer = made(kind)
    text = next(iter(tokenizer.control_tokens))
    joined = [text[:2] + text[2:]]
    assert not tokenizer.reads_back(joined)
    assert tokenizer.control_tokens[text] not in tokenizer.encode_segments(joined)


def test_normalizing_cannot_forge() -> None:
    """Full-width letters that NFKC turns into `</s>` stay text, and are not seen as plain."""
    tokenizer = made("unigram")
    wide = "\uff1c/s\uff1e"
    assert tokenizer.control_tokens["</s>"] in tokenizer.encode_trusted(wide)
    assert tokenizer.holds_control(wide)
    assert tokenizer.control_tokens["</s>"] not in tokenizer.encode_ordinary(wide)


def test_white_space_tokens_are_text() -> None:
    """Added tokens for runs of spaces are used in ordinary text, as the tokenizer does."""
    tokenizer = made("neox")
    assert "  " not in tokenizer.control_tokens
    assert not tokenizer.holds_control("a    b")
    ids = tokenizer.encode_ordinary("a    b")
    assert ids == tokenizer.encode_trusted("a    b")
    assert len(ids) == 3


def test_unknown_characters_are_no_forgery() -> None:
    """A character outside the vocabulary gives the unknown id, as in the library."""
    tokenizer = made("word level")
    assert tokenizer.encode_ordinary("zebra") == (tokenizer.control_tokens["<unk>"],)


def test_unknown_characters_that_mean_something_else_are_refused() -> None:
    """Where the unknown id also ends a turn, an unknown character is an error, not a turn's end."""
    tokenizer = made("word level")
    unknown = Control(tokenizer.control_tokens["<unk>"], "<unk>")
    with pytest.raises(InvalidInput, match="from ordinary text; given: <unk>"):
        tokenizer.encode_segments(["the zebra", unknown])


def test_the_guard_sees_a_twin_that_forges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a control token reachable from ordinary text, encoding would fail and name it."""
    tokenizer = TemplateTokenizer(json.loads(kinds.merging().to_str()))
    monkeypatch.setattr(tokenizer, "_twin", tokenizer._full)
    with pytest.raises(InvalidInput, match="from ordinary text; given: <tool>"):
        tokenizer.encode_ordinary("a <tool> b")


def test_cut_takes_the_leftmost_and_longest() -> None:
    """Overlapping control tokens are cut as the library matches them."""
    tokens = [kinds.control(text) for text in ("<a>", "<a><b>", "b>c")]
    tokenizer = TemplateTokenizer(json.loads(kinds.byte_level(tokens=tokens).to_str()))
    cut = tokenizer.cut("x<a><b>c<a>b>c")
    assert [s.text if isinstance(s, Control) else [s] for s in cut] == [
        *(["x"], "<a><b>", ["c"], "<a>", "b>c")
    ]
    assert tokenizer.encode_segments(cut) == tokenizer.encode_trusted("x<a><b>c<a>b>c")


def test_secret_spellings_differ() -> None:
    """Each tokenizer object has its own spelling of control tokens, unknown outside."""
    one, two = (TemplateTokenizer(json.loads(kinds.merging().to_str())) for _ in range(2))
    assert set(one._respelt.values()).isdisjoint(two._respelt.values())


def test_truncation_and_padding_are_off() -> None:
    """A tokenizer saved with truncation or padding still gives all ids, and only those."""
    plain = kinds.byte_level()
    plain.enable_truncation(4)
    plain.enable_padding(length=64)
    tokenizer = TemplateTokenizer(json.loads(plain.to_str()))
    assert tokenizer.encode_trusted("<s>the user and the printer") == made(
        "byte-level"
    ).encode_trusted("<s>the user and the printer")
    assert len(tokenizer.encode_ordinary("the user " * 20)) > 20


def test_tokens_of_the_config_count(tmp_path: Path) -> None:
    """Tokens that tokenizer_config.json alone names are control tokens, as in Transformers."""
    plain = kinds.byte_level(tokens=[kinds.control("<s>")])
    plain.save(str(tmp_path / "tokenizer.json"))
    late = {"content": "<late>", "rstrip": True, "lstrip": False, "single_word": False}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "added_tokens_decoder": {"900": {**late, "normalized": False, "special": False}},
        "extra_special_tokens": ["<more>"],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = TemplateTokenizer.load(tmp_path)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert {"<late>", "<more>", "<pad>"} < set(tokenizer.control_tokens)
    text = "<s>the<late>  user<more>\n</s><pad> a"
    assert list(tokenizer.encode_trusted(text)) == theirs.encode(text, add_special_tokens=False)
    assert tokenizer.encode_segments(tokenizer.cut(text)) == tokenizer.encode_trusted(text)


def test_decode_hides_special_tokens_only() -> None:
    """Text for people has no special tokens; `<think>` and the like stay readable."""
    tokens = [kinds.control("</s>"), AddedToken("<think>", special=False, normalized=False)]
    tokenizer = TemplateTokenizer(json.loads(kinds.byte_level(tokens=tokens).to_str()))
    ids = tokenizer.encode_trusted("<think>the user</s>")
    assert tokenizer.decode(ids) == "<think>the user"
    assert tokenizer.decode(ids, skip_control=False) == "<think>the user</s>"


def test_threads_share_a_tokenizer() -> None:
    """Many threads get the ids that one gets."""
    tokenizer = made("byte-level")
    texts = [f"the user {n} writes </s> to the printer" for n in range(50)]
    wanted = [tokenizer.encode_ordinary(text) for text in texts]
    got: list[list[tuple[int, ...]]] = []
    threads = [
        threading.Thread(target=lambda: got.append([tokenizer.encode_ordinary(t) for t in texts]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [wanted] * 8


@pytest.mark.parametrize("content", [None, "{", "[]", '{"model": {"type": "BPE"}}'])
def test_what_is_no_tokenizer_is_named(tmp_path: Path, content: str | None) -> None:
    """A missing or broken tokenizer.json is a model error with the path in it."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=str(tmp_path)):
        TemplateTokenizer.load(tmp_path)


def test_made_tokenizers_are_what_they_claim() -> None:
    """The kinds differ where they should: a dummy space, or none, after a control token."""
    space = {kind: made(kind).encode_trusted("<s>the")[1:] for kind in KINDS if "space" in kind}
    assert space["metaspace always"] != space["metaspace first"] == space["metaspace never"]
    assert isinstance(KINDS["llama-2"](), Tokenizer)
