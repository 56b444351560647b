"""What lies on disk: model folders, GGUF files, tokenizers, stored prefixes."""

from __future__ import annotations

import json
import struct
import tempfile
from functools import cache
from pathlib import Path
from unittest.mock import patch

import gguf
import numpy as np
from hypothesis import strategies as st

from contract import model_store
from contract.canonical import digest
from contract.model_folder import ModelFolder, read_model_folder
from contract.model_store import find_model, stored_models
from contract.settings import Settings
from templates.tokenizer import TemplateTokenizer
from tests.fuzz.judge import Found, bounded, judged
from tests.fuzz.mutations import BYTES, edited, edited_json
from tests.fuzz.targets import Target
from tests.support.made_entries import made_entry
from tests.support.made_tokenizers import KINDS
from tests.support.model_folders import settle, write_model
from worker.engine.parity import Parity
from worker.models.fetch import _check_weights
from worker.models.gguf_header import check_gguf
from worker.prefix.disk import PrefixStore

_BUDGET = 10**6
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "eos_token_id": [2, 3],
    "max_position_embeddings": 128,
    "text_config": {"n_positions": 64},
    "auto_map": {"AutoModelForCausalLM": "modeling.Own"},
}
_TOKENIZER_CONFIG = {
    "eos_token": {"content": "</s>"},
    "bos_token": "<s>",
    "chat_template": [{"name": "default", "template": "{{ messages }}"}],
    "added_tokens_decoder": {"5": {"content": "<x>", "special": True}},
    "extra_special_tokens": {"image": "<img>"},
}
_FILES = {
    "config.json": [_CONFIG],
    "generation_config.json": [{"eos_token_id": 2}],
    "tokenizer_config.json": [_TOKENIZER_CONFIG],
    "tokenizer.json": [{"model": {"vocab": {"a": 0}}, "added_tokens": []}],
    "chat_template.jinja": ["{{ messages }}"],
}


@cache
def _folder(name: str) -> Path:
    """A folder of this process, gone with it."""
    kept = tempfile.TemporaryDirectory(prefix=f"prefillq-fuzz-{name}-")
    _KEPT.append(kept)
    return Path(kept.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _read_model(changes: dict[str, bytes]) -> None:
    folder = write_model(_folder("model"))
    for name in _FILES:
        if name in changes:
            (folder / name).write_bytes(changes[name])
    if "model.safetensors" in changes:
        (folder / "model.safetensors").write_bytes(changes["model.safetensors"])
    try:
        described = read_model_folder("made", folder)
        if not all(type(id_) is int for id_ in described.eos_ids):
            raise Found("ids that are none")
        _check_weights("made", folder)
    finally:
        for name in ("generation_config.json", "chat_template.jinja"):
            (folder / name).unlink(missing_ok=True)


def _read_tokenizer(data: bytes) -> None:
    folder = _folder("tokenizer")
    (folder / "tokenizer.json").write_bytes(data)
    TemplateTokenizer.load(folder)


@cache
def _remembering() -> tuple[Settings, ModelFolder, Path]:
    """A model that was looked at, and the file that remembers its description."""
    settings = Settings(cache_dir=_folder("cache"))
    settle(write_model(settings.models_dir / "made"))
    described = find_model("made", settings)
    [file] = (settings.models_dir / ".digests").glob("*.json")
    return settings, described, file


def _remembered(data: bytes) -> str:
    """A damaged memory is made again; that of another format, folder or time is no memory."""
    settings, right, file = _remembering()
    file.write_bytes(data)
    model_store._remembered.clear()
    hashed: list[str] = []

    def read(name: str, path: Path) -> ModelFolder:
        hashed.append(name)
        return read_model_folder(name, path)

    with bounded(), patch.object(model_store, "read_model_folder", read):
        stored_models(settings)
        found = find_model("made", settings)
    if hashed and found != right:
        raise Found("a description of another model")
    return "made again" if hashed else "believed"


def _gguf_bytes() -> bytes:
    path = _folder("gguf") / "good.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    writer.add_array("some.numbers", [1, 2, 3])
    writer.add_tensor("blk.0.x", np.zeros((2, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def _read_gguf(data: bytes) -> None:
    """What passes our check must not keep the library busy, or fill memory."""
    path = _folder("gguf") / "made.gguf"
    path.write_bytes(data)
    check_gguf(path)
    try:
        gguf.GGUFReader(path)
    except Exception:  # noqa: BLE001 - `fetch_model` makes a ModelError of whatever it is
        return


def _stored() -> bytes:
    folder = _folder("stored")
    store = PrefixStore(folder, max_bytes=_BUDGET)
    parity = Parity(
        outcome="identical",
        checked_tokens=4,
        first_difference=None,
        max_logit_error=0.0,
        seconds=0.1,
    )
    entry = made_entry(tokens=4)
    store.save(entry, parity, engine="made")
    [file] = folder.glob("*.safetensors")
    return file.read_bytes()


@st.composite
def _prefix_files(draw: st.DrawFn) -> bytes:
    """Files with edits anywhere, and files whose header was changed with its length in order."""
    good = _stored()
    if draw(st.booleans()):
        return draw(edited([good], BYTES))
    length = struct.unpack("<Q", good[:8])[0]
    header = json.loads(good[8 : 8 + length])
    about = draw(edited_json([json.loads(header["__metadata__"]["about"])]))
    text = about.decode("utf-8", "replace")
    header["__metadata__"] = {"about": text, "digest": digest(text)}
    changed = draw(edited_json([header])) if draw(st.booleans()) else json.dumps(header).encode()
    return struct.pack("<Q", len(changed)) + changed + good[8 + length :]


def _load_prefix(data: bytes) -> str:
    """A file that is not what was stored is refused, and gone; no file fails a job."""
    entry = made_entry(tokens=4)
    folder = _folder("loaded")
    store = PrefixStore(folder, max_bytes=_BUDGET)
    path = store._path(entry.key, entry.ids)
    path.write_bytes(data)
    with bounded():
        stored = store.load(entry.key, entry.ids, engine="made")
    if stored is None:
        path.unlink(missing_ok=True)
        return "refused"
    if stored.entry.checksum != entry.checksum and not stored.entry.audit():
        raise Found("an entry that its own checksum refuses")
    return "ok"


def targets() -> tuple[Target, ...]:
    """See `tests.fuzz.targets`."""
    weights = (write_model(_folder("model")) / "model.safetensors").read_bytes()
    tokenizers = [json.loads(KINDS[kind]().to_str()) for kind in ("word level", "unigram")]
    texts = [json.dumps(data).encode() for data in tokenizers]
    files = {name: edited_json(seeds) for name, seeds in _FILES.items()}
    changes = st.one_of(
        *(st.fixed_dictionaries({name: content}) for name, content in files.items()),
        st.fixed_dictionaries({"model.safetensors": edited([weights], BYTES)}),
    )
    memory = [json.loads(_remembering()[2].read_text("utf-8"))]
    return (
        Target(
            name="model-folder",
            about="config, tokenizer and weight files of a model",
            inputs=changes,
            run=lambda files: judged(lambda: _read_model(files)),
            short=100,
        ),
        Target(
            name="tokenizer",
            about="tokenizer.json",
            inputs=st.one_of(edited_json(tokenizers), edited(texts, BYTES)),
            run=lambda data: judged(lambda: _read_tokenizer(data)),
            short=60,
        ),
        Target(
            name="digests",
            about="the remembered descriptions of models",
            inputs=edited_json(memory),
            run=_remembered,
            short=60,
        ),
        Target(
            name="gguf",
            about="headers of GGUF files",
            inputs=edited([_gguf_bytes()], BYTES),
            run=lambda data: judged(lambda: _read_gguf(data)),
            short=150,
        ),
        Target(
            name="prefix-file",
            about="prefixes on disk",
            inputs=_prefix_files(),
            run=_load_prefix,
            short=150,
        ),
    )
