"""Small tokenizers of every kind that chat models use, made in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from contract.model_folder import ModelFolder
from templates.tokenizer import TemplateTokenizer

CORPUS = (
    "Ticket: my printer is on fire, please help me today.",
    "Answer with one label: billing, outage or question. user_name = 42",
    "The system prompt of the assistant; the user writes and the model answers.",
    "[INST] <<SYS>> </s> <s> <think> </think> <|im_start|> <|im_end|> <turn> <tool> [MASK]",
) * 8
UNKNOWN = "<unk>"
CONTROL = (UNKNOWN, "<s>", "</s>", "<turn>", "<end>", "<think>", "</think>", "[INST]", "[/INST]")


def control(text: str, **flags: bool) -> AddedToken:
    return AddedToken(text, **{"special": True, "normalized": False, **flags})


def _with_tokens(tokenizer: Tokenizer, tokens: Sequence[AddedToken] = ()) -> Tokenizer:
    tokenizer.add_tokens(list(tokens or map(control, CONTROL)))
    return tokenizer


def _bpe(tokenizer: Tokenizer, alphabet: Sequence[str] = ()) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[UNKNOWN, "<s>", "</s>"],
        initial_alphabet=list(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level(*, prefix_space: bool = False, tokens: Sequence[AddedToken] = ()) -> Tokenizer:
    """GPT-2 and Llama-3 style."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return _with_tokens(_bpe(tokenizer, pre_tokenizers.ByteLevel.alphabet()), tokens)


def metaspace(scheme: str, *, tokens: Sequence[AddedToken] = ()) -> Tokenizer:
    """SentencePiece BPE as Metaspace; Llama and Mistral style without `legacy`."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return _with_tokens(_bpe(tokenizer), tokens)


def llama2(*, tokens: Sequence[AddedToken] = ()) -> Tokenizer:
    """A dummy space before each text between control tokens, by normalizers; byte fallback."""
    trained = json.loads(metaspace("always").to_str())  # words are never merged in training
    vocab = trained["model"]["vocab"]
    for byte in range(256):
        vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    trained["model"]["byte_fallback"] = True
    trained["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(trained))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.pre_tokenizer = None
    return _with_tokens(tokenizer, tokens)


def unigram(*, tokens: Sequence[AddedToken] = ()) -> Tokenizer:
    """T5 and Gemma style: control tokens lie in the model's vocabulary, with a good score."""
    pieces = [(UNKNOWN, 0.0), ("<s>", 0.0), ("</s>", 0.0), ("[INST]", -1.0), ("<think>", -0.5)]
    pieces += [(chr(code), -9.0 - code / 1000) for code in range(33, 127)]
    pieces += [("▁", -3.0), ("▁the", -4.0), ("▁user", -5.0), ("ing", -5.5), ("▁Ticket", -4.5)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return _with_tokens(tokenizer, tokens)


def word_piece(*, tokens: Sequence[AddedToken] = ()) -> Tokenizer:
    """BERT style, lower-casing; its vocabulary holds the control tokens."""
    letters = [chr(code) for code in range(33, 127)]
    words = [UNKNOWN, "[mask]", "</s>", "the", "user", *letters, *(f"##{c}" for c in letters)]
    vocab = {word: id_ for id_, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_tokens(tokenizer, tokens)


def word_level(*, tokens: Sequence[AddedToken] = ()) -> Tokenizer:
    vocab = {word: id_ for id_, word in enumerate((*CONTROL, "the", "user", "a", "b"))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_tokens(tokenizer, tokens)


def merging() -> Tokenizer:
    """Merges and `ignore_merges` lead to control tokens, as in tekken style vocabularies."""
    chars = sorted({*"<tool></>abcdefghijklmnopqrstuvwxyz [INST]\n:."})
    merges = [("<", "t"), ("o", "o"), ("<t", "oo"), ("<too", "l"), ("<tool", ">"), ("[", "I")]
    vocab = {text: id_ for id_, text in enumerate((*chars, *(a + b for a, b in merges)))}
    vocab["[INST]"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    return _with_tokens(tokenizer, [control("<tool>"), control("[INST]"), control("<s>")])


def gluing() -> Tokenizer:
    """No split at words: "ab" is two tokens, and with an "x" behind it one."""
    chars = sorted({chr(code) for code in range(32, 127)} | {"\n"})
    merges = [("b", "x"), ("a", "bx")]
    vocab = {text: id_ for id_, text in enumerate((*chars, *(a + b for a, b in merges)))}
    return _with_tokens(Tokenizer(models.BPE(vocab=vocab, merges=merges)))


def phi3() -> Tokenizer:
    """Control tokens that take the white space at their right away."""
    tokens = [control("<s>"), *(control(text, rstrip=True) for text in CONTROL[2:])]
    return llama2(tokens=tokens)


def neox() -> Tokenizer:
    """Runs of spaces are added tokens, and no control tokens."""
    spaces = [AddedToken(" " * n, normalized=True, special=False) for n in range(8, 1, -1)]
    tokenizer = byte_level(tokens=[*map(control, CONTROL), *spaces])
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def normalized() -> Tokenizer:
    """Control tokens are looked for in the normalized text, which NFC makes."""
    tokenizer = byte_level(tokens=[control(text, normalized=True) for text in CONTROL])
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "byte-level with prefix space": lambda: byte_level(prefix_space=True),
    "metaspace always": lambda: metaspace("always"),
    "metaspace first": lambda: metaspace("first"),
    "metaspace never": lambda: metaspace("never"),
    "llama-2": llama2,
    "lstrip and rstrip": lambda: metaspace(
        "always", tokens=[control(text, lstrip=True, rstrip=True) for text in CONTROL]
    ),
    "unigram": unigram,
    "word piece": word_piece,
    "word level": word_level,
    "merging": merging,
    "gluing": gluing,
    "phi-3": phi3,
    "neox": neox,
    "normalized": normalized,
}


@cache
def made(kind: str) -> TemplateTokenizer:
    """One of KINDS, for our use."""
    return TemplateTokenizer(json.loads(KINDS[kind]().to_str()))


def make_model(chat_template: str, *, bos: str = "<s>", eos: str = "</s>") -> ModelFolder:
    """A description of a model that has this chat template, and nothing on disk."""
    return ModelFolder(
        name="made",
        path=Path("made"),
        model_digest="0" * 64,
        tokenizer_digest="1" * 64,
        chat_template=chat_template,
        bos_token=bos,
        eos_token=eos,
        eos_ids=(2,),
        max_positions=None,
        architecture="MadeForCausalLM",
    )
