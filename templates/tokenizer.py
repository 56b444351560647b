"""Text to token ids, with control tokens only where the template put them.

A tokenizer turns `<|im_end|>` into a control token wherever it reads it, in a variable too.
So there are two tokenizers here, equal in everything but one: in the second, the *twin*, every
control token has another spelling, random and known to this process only. A prompt whose
control tokens are respelt and whose ordinary text is left alone gets from the twin exactly the
ids that the first one gives for the plain text: white space next to control tokens, dummy
prefixes and normalizers act the same. But no text that comes from outside can reach a control
token in it, neither among the added tokens nor in the model's own vocabulary.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from tokenizers import AddedToken, Tokenizer

from contract.errors import InvalidInput, ModelError
from contract.files import read_text
from contract.model_folder import MAX_JSON_BYTES
from templates.compiled import Control

_NAMED_TOKENS = tuple(f"{n}_token" for n in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_LETTERS = str.maketrans("0123456789", "ghijklmnop")  # digits could meet a normalizer


class TemplateTokenizer:
    """One model's tokenizer. Thread-safe; nothing changes after construction.

    Control tokens are all added tokens, special or not (`<think>` is one), except those of
    white space only (GPT-NeoX and Gemma have such): they are plain text to any reader.
    """

    def __init__(self, data: Mapping[str, Any], *, more: Sequence[AddedToken] = ()) -> None:
        """`data` is a parsed tokenizer.json, `more` are added tokens which it lacks."""
        full = _build(data)
        full.add_tokens(list(more))
        added = full.get_added_tokens_decoder()
        control = {id_: token for id_, token in added.items() if not _blank(token)}
        key = secrets.token_hex(16).translate(_LETTERS)
        respelt = {id_: key + f"{id_:08x}".translate(_LETTERS) for id_ in control}

        self._full = full
        self._twin = _build(_respell(json.loads(full.to_str()), respelt))
        self._control_ids = frozenset(control)
        self._unknown_id = _unknown_id(data["model"], full)
        self._respelt = {token.content: respelt[id_] for id_, token in control.items()}
        # The library looks for tokens in the raw text first, then in what is left of it.
        self._patterns = tuple(
            _any_of(t.content for t in control.values() if t.normalized is normalized)
            for normalized in (False, True)
        )
        self._any_control = _any_of(self._respelt)
        self.control_tokens: Mapping[str, int] = MappingProxyType(
            {token.content: id_ for id_, token in control.items()}
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read tokenizer.json of a model folder, and the added tokens of tokenizer_config.json.

        Raises ModelError when there is no fast tokenizer or it cannot be read.
        """
        try:
            data = json.loads(read_text(path / "tokenizer.json", max_bytes=MAX_JSON_BYTES))
            config_file = path / "tokenizer_config.json"
            config = (
                json.loads(read_text(config_file, max_bytes=MAX_JSON_BYTES))
                if config_file.exists()
                else {}
            )
            return cls(data, more=_tokens_of_config(data, config))
        except BaseException as error:
            # The library, in Rust, also panics, which is no Exception.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            reason = error.strerror if isinstance(error, OSError) else error
            raise ModelError(
                "the tokenizer cannot be read",
                given=f"{path}: {type(error).__name__}: {reason!s:.200}",
                expected="a model folder with a fast tokenizer (tokenizer.json)",
                remedy="Fetch the model again, or save it with save_pretrained.",
            ) from error

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json, with all its added tokens."""
        return self._full.to_str()

    def encode_trusted(self, text: str) -> tuple[int, ...]:
        """Ids of a rendered prompt, as `apply_chat_template(tokenize=True)` gives them.

        Whatever spells a control token becomes one.
        """
        return tuple(self._full.encode(text, add_special_tokens=False).ids)

    def encode_segments(self, segments: Iterable[Control | str]) -> tuple[int, ...]:
        """Ids of a whole prompt: the given control tokens, and all else as ordinary text.

        Raises InvalidInput when the tokenizer does not keep the two apart.
        """
        text: list[str] = []
        expected: list[int] = []
        for segment in segments:
            if isinstance(segment, Control):
                text.append(self._respelt[segment.text])
                expected.append(segment.id)
            else:
                text.append(segment)
        ids = self._twin.encode("".join(text), add_special_tokens=False).ids
        found = [id_ for id_ in ids if id_ in self._control_ids]
        if found != expected:
            self._check_controls(found, expected)
        return tuple(ids)

    def encode_ordinary(self, text: str, *, after: str | None = None) -> tuple[int, ...]:
        """Ids of ordinary text that follows the control token `after`, or that begins a prompt."""
        if after is None:
            return self.encode_segments((text,))
        control = Control(self.control_tokens[after], after)
        ids = self.encode_segments((control, text))
        return ids[ids.index(control.id) + 1 :]

    def decode(self, ids: Sequence[int], *, skip_control: bool = True) -> str:
        """Text of ids. `skip_control` leaves out special tokens, as Transformers does.

        Control tokens that are not special, such as `<think>`, stay readable.
        """
        return self._full.decode(list(ids), skip_special_tokens=skip_control)

    def cut(self, text: str) -> tuple[Control | str, ...]:
        """Split text at the control tokens that it spells: leftmost first, longest first."""
        parts: list[Control | str] = [text]
        for pattern in self._patterns:
            parts = [
                piece
                for part in parts
                for piece in ([part] if isinstance(part, Control) else self._split(pattern, part))
            ]
        return tuple(part for part in parts if part != "")

    def holds_control(self, text: str) -> bool:
        """True when the text spells a control token, as it is or once normalized."""
        if self._any_control.search(text):
            return True
        normalizer = self._full.normalizer
        return normalizer is not None and bool(
            self._any_control.search(normalizer.normalize_str(text))
        )

    def reads_back(self, segments: Sequence[Control | str]) -> bool:
        """True when the joined text spells these control tokens, and no others anywhere.

        Then, and only then, `encode_trusted` of the text must give `encode_segments`'s ids.
        """
        text = "".join(part.text if isinstance(part, Control) else part for part in segments)
        return self.cut(text) == tuple(part for part in segments if part != "") and not any(
            self.holds_control(part) for part in segments if isinstance(part, str)
        )

    def _split(self, pattern: re.Pattern[str], text: str) -> list[Control | str]:
        parts: list[Control | str] = []
        position = 0
        for match in pattern.finditer(text):
            token = match.group()
            parts += (text[position : match.start()], Control(self.control_tokens[token], token))
            position = match.end()
        parts.append(text[position:])
        return parts

    def _check_controls(self, found: list[int], expected: list[int]) -> None:
        # An unknown character is no forgery, unless the same id also has a meaning of its own.
        if self._unknown_id not in expected:
            found = [id_ for id_ in found if id_ != self._unknown_id]
        if found == expected:
            return
        name = {id_: text for text, id_ in self.control_tokens.items()}
        if forged := {name[id_] for id_ in found if found.count(id_) > expected.count(id_)}:
            raise InvalidInput(
                "the tokenizer makes a control token from ordinary text",
                given=", ".join(sorted(forged)),
                expected=f"{len(expected)} control tokens, those of the template",
                remedy="Take characters that this model does not know out of the text.",
            )
        raise InvalidInput(
            "the tokenizer does not read the template's control tokens as such",
            given=f"{len(found)} found",
            expected=f"{len(expected)}: {', '.join(dict.fromkeys(name[id_] for id_ in expected))}",
            remedy="Use a model whose tokenizer.json has 'normalized': false on them.",
        )


def _build(data: Mapping[str, Any]) -> Tokenizer:
    # The post-processor adds tokens that a chat template writes itself.
    plain = {**data, "post_processor": None, "truncation": None, "padding": None}
    try:
        return Tokenizer.from_str(json.dumps(plain))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"not a tokenizer: {error}") from error


def _respell(data: dict[str, Any], respelt: Mapping[int, str]) -> dict[str, Any]:
    """The same tokenizer with other names for some ids, in the added tokens and the model."""
    model = dict(data["model"])
    vocab: Any = model["vocab"]
    if isinstance(vocab, list):  # Unigram, where the place is the id
        model["vocab"] = [
            (respelt.get(id_, piece), score) for id_, (piece, score) in enumerate(vocab)
        ]
    else:
        new_names = {token: respelt[id_] for token, id_ in vocab.items() if id_ in respelt}
        model["vocab"] = {new_names.get(token, token): id_ for token, id_ in vocab.items()}
        if model.get("unk_token") in new_names:
            model["unk_token"] = new_names[model["unk_token"]]
        if "merges" in model:
            # A merge that makes a control token, or starts from one, is what must not happen.
            skip = len(model.get("continuing_subword_prefix") or "")
            model["merges"] = [
                (left, right)
                for left, right in model["merges"]
                if new_names.keys().isdisjoint((left, right, left + right[skip:]))
            ]
    added = [
        {**token, "content": respelt.get(token["id"], token["content"])}
        for token in data["added_tokens"]
    ]
    return {**data, "model": model, "added_tokens": added}


def _blank(token: AddedToken) -> bool:
    return not token.special and token.content.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").isspace()


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _unknown_id(model: Mapping[str, Any], tokenizer: Tokenizer) -> int | None:
    """The id that stands for characters outside the vocabulary."""
    unknown = model.get("unk_token")
    return model.get("unk_id") if unknown is None else tokenizer.token_to_id(unknown)


def _tokens_of_config(data: Mapping[str, Any], config: Mapping[str, Any]) -> list[AddedToken]:
    """Added tokens that tokenizer_config.json names and tokenizer.json lacks or flags otherwise.

    Transformers adds them on loading, so they are control tokens of this model as well.
    """
    in_file = {
        token["content"]: {flag: token[flag] for flag in _FLAGS} for token in data["added_tokens"]
    }
    by_id = config.get("added_tokens_decoder") or {}
    listed = {
        token["content"]: {flag: token.get(flag, False) for flag in _FLAGS}
        for _, token in sorted(by_id.items(), key=lambda item: int(item[0]))
    }
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
    named = [config.get(name) for name in _NAMED_TOKENS]
    for token in (*named, *(extra.values() if isinstance(extra, dict) else extra)):
        given = token if isinstance(token, dict) else {"content": token}
        text = given.get("content")
        if text and text not in listed and text not in in_file:
            listed[text] = {flag: given.get(flag, False) for flag in _FLAGS} | {"special": True}
    return [
        AddedToken(text, **flags) for text, flags in listed.items() if in_file.get(text) != flags
    ]
