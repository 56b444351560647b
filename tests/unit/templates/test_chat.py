"""Our rendering of chat templates is Transformers' own, and refusals say why."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from contract.errors import TemplateRefused
from contract.model_folder import ModelFolder
from templates.chat import check_chat_template, compared_constants, render_chat
from tests.support import chat_templates, made_tokenizers

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
CONVERSATIONS = [
    [("user", " Hello\n")],
    [("system", "Be short."), ("user", "{{ 7*7 }} {% if %} <b>&\"'</b>")],
    [("user", "a"), ("assistant", "<why>since</why>\n\nb"), ("user", "c\u2028d")],
    [("user", "a"), ("user", "b"), ("assistant", "")],
]


def _messages(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


@pytest.mark.parametrize("name", chat_templates.ALL)
@pytest.mark.parametrize("turns", CONVERSATIONS)
@pytest.mark.parametrize(("bos", "eos"), [("<s>", "</s>"), ("", "")])
def test_renders_as_transformers(
    name: str, turns: list[tuple[str, str]], bos: str, eos: str
) -> None:
    """Every construct of chat templates gives the text of apply_chat_template, or fails alike."""
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=made_tokenizers.byte_level(),
        bos_token=bos or None,
        eos_token=eos or None,
        chat_template=chat_templates.ALL[name],
    )

    def ours(*, prompt: bool) -> str:
        return render_chat(
            chat_templates.ALL[name],
            _messages(turns),
            bos_token=bos,
            eos_token=eos,
            now=datetime.now().astimezone(),
            add_generation_prompt=prompt,
        )

    for prompt in (True, False):
        try:
            wanted = theirs.apply_chat_template(
                _messages(turns), tokenize=False, add_generation_prompt=prompt
            )
        except TemplateError as error:
            with pytest.raises(TemplateRefused, match=re.escape(str(error))):
                ours(prompt=prompt)
        else:
            assert ours(prompt=prompt) == wanted


@pytest.mark.model
@pytest.mark.parametrize("turns", CONVERSATIONS)
def test_renders_the_real_template(smollm2: ModelFolder, turns: list[tuple[str, str]]) -> None:
    """SmolLM2's own chat template renders as Transformers renders it from the model's folder."""
    theirs = PreTrainedTokenizerFast.from_pretrained(smollm2.path)
    assert render_chat(
        smollm2.chat_template,
        _messages(turns),
        bos_token=smollm2.bos_token,
        eos_token=smollm2.eos_token,
        now=NOON,
    ) == theirs.apply_chat_template(_messages(turns), tokenize=False, add_generation_prompt=True)


def test_the_clock_is_given() -> None:
    """`strftime_now` tells the time it was given, not the machine's (case P16)."""
    text = render_chat("{{ strftime_now('%d %b %Y') }}", [], bos_token="", eos_token="", now=NOON)
    assert text == "02 Jan 2026"


def test_refusal_in_the_models_words() -> None:
    """A model without a system role says so itself, and the remedy tells what to do (case P14)."""
    with pytest.raises(TemplateRefused, match="System role not supported") as refusal:
        render_chat(
            chat_templates.NO_SYSTEM,
            _messages([("system", "Be short."), ("user", "Hi")]),
            bos_token="",
            eos_token="",
            now=NOON,
        )
    assert "first user message" in refusal.value.remedy


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ messages[9].content.x }}",
        "{{ 1 + 'a' }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ range(10 ** 9) }}",
        "{% include 'x' %}",
    ],
)
def test_failing_templates_are_refused(template: str) -> None:
    """Whatever a chat template fails with, or the sandbox forbids, is one kind of error."""
    with pytest.raises(TemplateRefused, match="chat template"):
        render_chat(template, _messages([("user", "x")]), bos_token="", eos_token="", now=NOON)


@pytest.mark.parametrize("template", ["", " \n"])
def test_a_model_without_a_template_is_refused(template: str) -> None:
    """A base model, without a chat template, is named as such."""
    with pytest.raises(TemplateRefused, match="has no chat template"):
        check_chat_template(template)


def test_unknown_special_tokens_are_refused() -> None:
    """A template that writes pad_token would get nothing here, and the text in Transformers."""
    with pytest.raises(TemplateRefused, match="pad_token"):
        check_chat_template("{{ messages[0].content }}{{ pad_token }}")


def test_compared_constants() -> None:
    """Texts and numbers are found wherever they stand in an expression."""
    texts, numbers = compared_constants(
        "{% if m.startswith('/fast') and '</why>' in m or m | length > 500 %}"
        "x{{ m[:7] }}{% endif %}"
    )
    assert set(texts) == {"/fast", "</why>"}
    assert set(numbers) == {500, 7}
