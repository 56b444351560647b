"""Nothing in the sources makes code out of data: no pickles, no eval, safe loaders only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("contract", "templates", "producer", "worker", "local", "report", "scale", "ui", "bench")
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text("utf-8")
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
}

FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
}
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__", "execfile", "breakpoint"),
    *("torch.load", "torch.hub.load", "torch.jit.load", "np.load", "numpy.load", "os.system"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "os.popen"),
    *("yaml.full_load_all", "tarfile.open", "shutil.unpack_archive"),
}
# Where Transformers may read a model, it must be told to run no code but what was asked for.
LOADERS = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
    return "?"


def _complaints(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                for name in names:
                    if name.name.split(".")[0] in FORBIDDEN_MODULES:
                        yield f"line {node.lineno}: import {name.name}"
            case ast.ImportFrom(module=str(module)):
                if module.split(".")[0] in FORBIDDEN_MODULES:
                    yield f"line {node.lineno}: from {module}"
            case ast.Call(func=func, keywords=keywords):
                yield from _call(node.lineno, _dotted(func), {k.arg: k.value for k in keywords})


def _call(line: int, name: str, keywords: dict[str | None, ast.expr]) -> Iterator[str]:
    if name in FORBIDDEN_CALLS:
        yield f"line {line}: {name}()"
    shell = keywords.get("shell")
    if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
        yield f"line {line}: {name}(shell=...)"
    if name == "yaml.load_all" and _dotted(keywords.get("Loader", ast.Name("none"))) != "_Bounded":
        yield f"line {line}: {name}() with another loader than ours"
    first, _, method = name.rpartition(".")
    if method == "from_pretrained" and first in LOADERS:
        # `**where` is the one place where they are written once for two calls.
        wanted = {"trust_remote_code", "local_files_only"}
        if None not in keywords and not wanted <= keywords.keys():
            yield f"line {line}: {name}() without {', '.join(sorted(wanted - keywords.keys()))}"


@pytest.mark.parametrize("path", SOURCES)
def test_no_source_runs_data(path: str) -> None:
    """Imports, calls, shells, YAML loaders, and how Transformers is called."""
    assert list(_complaints(SOURCES[path])) == []


@pytest.mark.parametrize(
    "bad",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "import torch\ntorch.load('x')",
        "import yaml\nyaml.load('x', Loader=yaml.SafeLoader)",
        "import yaml\nyaml.load_all('x', Loader=yaml.UnsafeLoader)",
        "import subprocess\nsubprocess.run('x', shell=True)",
        "AutoModelForCausalLM.from_pretrained('x')",
        "AutoConfig.from_pretrained('x', trust_remote_code=False)",
    ],
)
def test_each_kind_is_seen(bad: str) -> None:
    """The check above would say so."""
    assert list(_complaints(bad))


def test_a_model_is_loaded_from_safetensors_only() -> None:
    """The one call that reads a model's weights says so, and passes the option on."""
    tree = ast.parse(SOURCES["worker/model.py"])
    calls = [
        {k.arg: k.value for k in node.keywords}
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and _dotted(node.func) == "AutoModelForCausalLM.from_pretrained"
    ]
    assert len(calls) == 1
    safetensors, trust = calls[0]["use_safetensors"], calls[0]["trust_remote_code"]
    assert isinstance(safetensors, ast.Constant)
    assert safetensors.value is True
    assert _dotted(trust) == "trust_remote_code"


def test_conversion_asks_for_no_code() -> None:
    """Unsaid, Transformers asks on stdin whether to run what lies beside a GGUF file."""
    tree = ast.parse(SOURCES["worker/models/convert.py"])
    [where] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        and any(isinstance(k, ast.Constant) and k.value == "gguf_file" for k in node.keys)
    ]
    said = {
        k.value: v
        for k, v in zip(where.keys, where.values, strict=True)
        if isinstance(k, ast.Constant)
    }
    trust = said["trust_remote_code"]
    assert isinstance(trust, ast.Constant)
    assert trust.value is False


def test_the_broker_takes_msgpack_only() -> None:
    """A pickled message is refused before anything looks into it."""
    from contract.celery_app import make_celery
    from contract.settings import Settings

    app = make_celery(Settings())
    assert list(app.conf.accept_content) == ["msgpack"]
    assert (app.conf.task_serializer, app.conf.result_serializer) == ("msgpack", "msgpack")
