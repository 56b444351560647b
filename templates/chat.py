"""Rendering a model's chat template, as Transformers does, without Transformers.

The environment is the one that chat templates are written for: see "Writing a chat template"
in the Transformers documentation, and `apply_chat_template` there, which the tests compare with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from contract.errors import TemplateRefused

# What a template may fail with while it runs, other than by Jinja's own errors.
_RUN_ERRORS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
# Transformers hands these to templates too; nothing here knows their values.
_UNKNOWN_TOKENS = {f"{name}_token" for name in ("unk", "sep", "pad", "cls", "mask")}

# Jinja's own, and what Transformers hands to chat templates.
_CHANGING = ("strftime_now", "lipsum")


def render_chat(
    chat_template: str,
    messages: Sequence[Mapping[str, str]],
    *,
    bos_token: str,
    eos_token: str,
    now: datetime,
    add_generation_prompt: bool = True,
) -> str:
    """The prompt of `messages` as text; `now` is what `strftime_now` tells.

    Raises TemplateRefused, in the model's own words where its template raises an exception.
    """
    tokens = {"bos_token": bos_token, "eos_token": eos_token}
    try:
        return _compiled(chat_template).render(
            messages=[dict(message) for message in messages],
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            strftime_now=now.strftime,
            **{name: text for name, text in tokens.items() if text},
        )
    except (TemplateError, *_RUN_ERRORS) as error:
        raise _refused(error, [message["role"] for message in messages]) from error


def compared_constants(chat_template: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Texts and numbers that the chat template can compare a message's content with.

    The texts are all string constants in it; the numbers may be lengths.
    """
    found = list(_tree(chat_template).find_all(nodes.Const))
    texts = dict.fromkeys(c.value for c in found if isinstance(c.value, str) and c.value)
    numbers = dict.fromkeys(c.value for c in found if type(c.value) is int)
    return tuple(texts), tuple(numbers)


def changing_calls(chat_template: str) -> tuple[str, ...]:
    """What in the chat template may give another text each time, with the lines it stands in."""
    tree = _tree(chat_template)
    clocks = [(n.lineno, n.name) for n in tree.find_all(nodes.Name) if n.name in _CHANGING]
    filters = [(n.lineno, f"|{n.name}") for n in tree.find_all(nodes.Filter) if n.name == "random"]
    lines: dict[str, list[int]] = {}
    for line, name in sorted({*clocks, *filters}):
        lines.setdefault(name, []).append(line)
    return tuple(f"{name} (line {', '.join(map(str, at))})" for name, at in lines.items())


def check_chat_template(chat_template: str) -> None:
    """Raise TemplateRefused when it is missing, no Jinja, or needs what we do not have."""
    if not chat_template.strip():
        raise TemplateRefused(
            "the model has no chat template",
            expected="chat_template.jinja, or chat_template in tokenizer_config.json",
            remedy="Use an instruction-tuned model, or put a chat template in its folder.",
        )
    unknown = meta.find_undeclared_variables(_tree(chat_template)) & _UNKNOWN_TOKENS
    if unknown:
        raise TemplateRefused(
            "the chat template writes a token other than bos_token and eos_token",
            given=", ".join(sorted(unknown)),
            remedy="Write that token's text into the model's chat template.",
        )


@lru_cache(maxsize=64)
def _compiled(chat_template: str) -> Template:
    check_chat_template(chat_template)
    return _environment().from_string(chat_template)


def _tree(chat_template: str) -> nodes.Template:
    try:
        return _environment().parse(chat_template)
    except TemplateError as error:
        raise _refused(error, []) from error


def _refused(error: Exception, roles: Sequence[str]) -> TemplateRefused:
    words = str(error) or type(error).__name__
    if "system" in roles:
        remedy = (
            "If this model knows no system role, put that text at the head of the first "
            "user message."
        )
    else:
        remedy = "Change the roles or their order in 'messages' to what the model expects."
    return TemplateRefused(
        "the model's chat template refuses these messages",
        given=f"roles {', '.join(roles)}: {words}" if roles else words,
        remedy=remedy,
    )


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what to train on; here it is a plain scope."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
