"""What a message's text shows by itself: clocks, random values, and what looks like a command.

All of it is looked for in the author's own text, never in a variable's value. Patterns are narrow:
a warning that most templates give is one that nobody reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta

from templates.finding import Finding
from templates.placeholders import without_placeholders
from templates.spec import TemplateSpec
from templates.tokenizer import TemplateTokenizer

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
_MONTH = "|".join(f"{month[:3]}(?:{month[3:]})?" if month[3:] else month for month in _MONTHS)
_DAY = (
    r"(?:\d{4}-\d{2}-\d{2}|\d{1,2}[./]\d{1,2}[./]\d{2,4}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\.? (?:of )?(?:{_MONTH})\.?,? \d{{4}}"
    rf"|(?:{_MONTH})\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|\d{{1,2}}:\d{{2}}\b)"
)
_WEEKDAY = r"(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day,? )?"
# As in: Today is Monday, 3 May 2026. Current date: 2026-05-03. It is now 14:05.
_TOLD_TIME = re.compile(
    r"\b(?:today(?:'s date)?(?: is|:| =)|(?:current|today's) (?:date|time|day)(?: and time)?"
    r"(?: is|:| =)?|(?:time|it) is now|now(?: is|:| =)|as of today,?)"
    rf"[ \t]{{0,4}}(?:the )?{_WEEKDAY}(?:the )?(?P<value>{_DAY})",
    re.IGNORECASE,
)
_HEX = r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}"
_TOLD_ID = re.compile(
    r"\b(?:request|session|trace|run|build|job|correlation)[ _-]?(?:id)?\b"
    r"[ \t]{0,4}[:=#]?[ \t]{0,4}"
    rf"(?P<value>{_HEX}|\d{{10}}(?:\d{{3}})?\b)"
    r"|\bnonce\b[ \t]{0,4}[:=][ \t]{0,4}(?P<nonce>[\w-]{6,64})",
    re.IGNORECASE,
)
# Jinja and shell, which nothing here evaluates.
_COMMAND = re.compile(
    r"\{\{[^{}\n]{0,80}\}\}"
    r"|\{%-?[ \t]{0,4}(?:if|for|set|else|elif|endif|endfor|include|macro|block)\b[^\n]{0,80}?%\}"
    r"|\$\((?:date|uuidgen|hostname|whoami)\b[^()\n]{0,40}\)"
    r"|\$\{(?:now|date|today|time|timestamp|uuid|random)\}",
    re.IGNORECASE,
)
_CONTROL_LIKE = re.compile(
    r"<\|[a-z][a-z0-9_]{1,40}\|>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>", re.IGNORECASE
)
_CLOCK_NAMES = re.compile(
    r"(?:utc_?)?now|today(?:s_date)?|(?:current|todays?)_(?:date|time|datetime|day)|"
    r"date_?time|time_?stamp|uuid|guid|nonce|random(?:_\w+)?|(?:request|session|trace|run)_id",
    re.IGNORECASE,
)


def changes_by_name(variable: str) -> bool:
    """True for a variable that by its name has another value in every job: a clock, a random id."""
    return _CLOCK_NAMES.fullmatch(variable) is not None


def lint_texts(spec: TemplateSpec, *, today: date) -> Iterator[Finding]:
    """Warnings about the texts of the messages. `today` is compared with the dates in them."""
    days = re.compile("|".join(map(re.escape, _spellings(today))), re.IGNORECASE)
    for number, message in enumerate(spec.messages, 1):
        text = without_placeholders(message.content)
        yield from _clock(number, text, days)
        for match in _TOLD_ID.finditer(text):
            yield Finding(
                level="warning",
                code="random_in_text",
                message=f"message {number} states an id, {_shown(match)}, as if it were one job's "
                "or one build's",
                remedy="Take it out: with another one each time, no version's prefix is ever used "
                "twice.",
                in_message=number,
                at=match.start(),
            )
        for match in _COMMAND.finditer(text):
            yield Finding(
                level="warning",
                code="not_substituted",
                message=f"message {number} holds {match.group()!r}, which stays as it is",
                remedy="Only {{ name }} is replaced. Write \\{{ for braces that are meant as text.",
                in_message=number,
                at=match.start(),
            )


def lint_control_tokens(spec: TemplateSpec, tokenizer: TemplateTokenizer) -> Iterator[Finding]:
    """Errors for control tokens of the model in the texts, warnings for those of other models."""
    for number, message in enumerate(spec.messages, 1):
        text = without_placeholders(message.content)
        spelt = [token for token in tokenizer.control_tokens if token in text]
        for token in spelt:
            yield Finding(
                level="error",
                code="control_token_in_text",
                message=f"message {number} spells a control token of the model, {token!r}",
                remedy="Take it out, or put a space into it; control tokens are the chat "
                "template's business.",
                in_message=number,
                at=text.index(token),
            )
        for match in _CONTROL_LIKE.finditer(text):
            if match.group() not in tokenizer.control_tokens:
                yield Finding(
                    level="warning",
                    code="foreign_control_token",
                    message=f"message {number} holds {match.group()!r}, which looks like a control "
                    "token and is none of this model's",
                    remedy="Leave turns to the chat template, which writes the model's own tokens.",
                    in_message=number,
                    at=match.start(),
                )


def _clock(number: int, text: str, days: re.Pattern[str]) -> Iterator[Finding]:
    told = {match.start("value"): _shown(match) for match in _TOLD_TIME.finditer(text)}
    same = {match.start(): repr(match.group()) for match in days.finditer(text)}
    for at, value in sorted({**same, **told}.items()):
        what = "tells the time" if at in told else "holds the date of today"
        yield Finding(
            level="warning",
            code="clock_in_text",
            message=f"message {number} {what}, {value}",
            remedy="Leave it out, or make it a variable behind the fixed text: each new date is a "
            "new version, whose prefix every worker computes again.",
            in_message=number,
            at=at,
        )


def _spellings(today: date) -> Iterator[str]:
    """This day and its neighbours, for time zones, as people and programs write them."""
    for day in (today - timedelta(days=1), today, today + timedelta(days=1)):
        month = _MONTHS[day.month - 1]
        yield day.isoformat()
        for name in (month, month[:3]):
            yield f"{day.day} {name} {day.year}"
            yield f"{day.day}. {name} {day.year}"
            yield f"{name} {day.day}, {day.year}"
        yield f"{day.day:02}.{day.month:02}.{day.year}"
        yield f"{day.month:02}/{day.day:02}/{day.year}"
        yield f"{day.day:02}/{day.month:02}/{day.year}"


def _shown(match: re.Match[str]) -> str:
    """The value that a pattern found, short enough for a message."""
    groups = match.groupdict()
    return repr((groups.get("value") or groups.get("nonce") or match.group())[:40])
