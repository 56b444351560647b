"""Small random models whose tokenizer spells printable ASCII, so that they can write JSON."""

from __future__ import annotations

from dataclasses import replace

import torch

from templates.tokenizer import TemplateTokenizer
from tests.support.tiny_models import EOS, VOCABULARY, tiny_model
from worker.grammars import Grammars, OutputGrammar
from worker.model import LoadedModel

FIRST = '"'
_CONTROL = ("<pad>", "<bos>", "<eos>")


def ascii_tokenizer() -> TemplateTokenizer:
    """Byte-level BPE without merges: from id 3 a blank and the characters from FIRST to "}"."""
    letters = ["\u0120", *map(chr, range(ord(FIRST), ord(FIRST) + VOCABULARY - len(_CONTROL) - 1))]
    vocab = {text: id_ for id_, text in enumerate((*_CONTROL, *letters))}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return TemplateTokenizer(
        {
            "version": "1.0",
            "added_tokens": [
                {"id": id_, "content": text, "special": True, **flags}
                for id_, text in enumerate(_CONTROL)
            ],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
            "post_processor": None,
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            },
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        }
    )


def ascii_model(architecture: str = "llama", *, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """`tiny_model` with that tokenizer."""
    return replace(tiny_model(architecture, dtype=dtype), tokenizer=ascii_tokenizer())


def ascii_grammar(schema: dict[str, object]) -> OutputGrammar:
    """A grammar for `ascii_model`."""
    grammars = Grammars(ascii_tokenizer(), tokenizer_digest="ascii", eos_ids=(EOS,))
    return grammars.get(schema)
