"""Answers that have an `output.schema`: from their text to data that fits it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry

from contract.codec import check_plain
from contract.described import place_and_rule
from contract.errors import InvalidInput, PrefillqError
from templates.output_schema import COSTLY, for_grammar, without_costly


class AnswerInvalid(PrefillqError):
    """An answer that is not what its schema says, though the grammar let it pass."""

    code = "answer_invalid"


class AnswerReader:
    """Reads the answers of one schema. Safe to share between threads."""

    def __init__(self, schema: Mapping[str, Any], *, costly: frozenset[str] = COSTLY) -> None:
        """`costly`: keywords that are not checked here; a grammar has held the answer to them."""
        # An empty registry: nothing that a schema refers to is fetched.
        checked = without_costly(for_grammar(schema), costly)
        self._validator = Draft202012Validator(checked, registry=Registry())

    def read(self, text: str) -> Any:
        """The answer as plain data. Raises AnswerInvalid, which does not quote it."""
        try:
            data = json.loads(text)
            check_plain(data)
            wrong = best_match(self._validator.iter_errors(data))
        except InvalidInput as error:
            raise AnswerInvalid("the answer holds what no record can", given=error) from error
        except (ValueError, RecursionError) as error:
            raise AnswerInvalid(
                "the answer is no JSON", given=f"{len(text)} characters", expected="one JSON value"
            ) from error
        if wrong is not None:
            place, given, expected = place_and_rule(wrong)
            raise AnswerInvalid(
                f"the answer does not fit output.schema: {place}", given=given, expected=expected
            )
        return data
