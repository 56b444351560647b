"""What can be said of a new version without a model: it compiles, and samples fit it.

A tenant's text decides how long this takes: a pattern in a JSON Schema may need exponential time,
and Python's `re` lets no other thread run meanwhile. So a worker does not call it but runs
`python -m templates.rollouts.paper`, msgpack on stdin and stdout, which the system ends after
LIMIT_S of computing. All that a schema can do to a worker then is to be refused.

By the clock it may take WALL_S: on a busy machine jobs come first, and the version is not to blame.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from contract.codec import pack, unpack
from contract.described import place_and_rule
from contract.errors import InvalidInput, PrefillqError
from contract.model_folder import ModelFolder
from templates.compile import compile_template
from templates.fill import check_positions, fill, most_new_tokens
from templates.rollouts.rollout import Finding, Outcome
from templates.spec import Sample, TemplateSpec, parse_spec
from templates.tokenizer import TemplateTokenizer
from templates.version import PublishedVersion, version_digest

LIMIT_S = 60  # of processor time
WALL_S = 900
TOO_MUCH = 5  # the exit code for want of memory
_MEMORY = 2 * 2**30
_NICE = 10  # jobs come first


def try_on_paper(
    canary: PublishedVersion,
    stable: TemplateSpec,
    model: ModelFolder,
    tokenizer: TemplateTokenizer,
) -> tuple[Finding, ...]:
    """Three gates: the version compiles to what was published, its own samples fit it, and the
    stable version's samples, which stand for the jobs that are submitted today, fit it too.
    """
    spec = canary.spec
    return (
        _compiles(canary, model, tokenizer),
        _samples("samples", spec.samples, canary, model, tokenizer)
        if spec.samples
        else _finding("samples", Outcome.INCONCLUSIVE, "there are no samples to try it on"),
        _stable_samples(canary, stable, model, tokenizer),
    )


def _compiles(
    canary: PublishedVersion, model: ModelFolder, tokenizer: TemplateTokenizer
) -> Finding:
    try:
        same = compile_template(canary.spec, model, tokenizer) == canary.compiled
    except PrefillqError as error:
        return _finding("compiles", Outcome.FAIL, error.problem)
    if version_digest(canary.spec, model) != canary.ref.digest:
        return _finding("compiles", Outcome.FAIL, "its content has another digest than its name")
    if not same:
        return _finding("compiles", Outcome.FAIL, "it compiles to other tokens than are stored")
    tokens = len(canary.compiled.prefix_ids)
    return _finding("compiles", Outcome.PASS, f"to a prefix of {tokens} tokens, as published")


def _stable_samples(
    canary: PublishedVersion, stable: TemplateSpec, model: ModelFolder, tokenizer: TemplateTokenizer
) -> Finding:
    if stable.samples:
        return _samples("stable_samples", stable.samples, canary, model, tokenizer)
    if stable.input.json_schema == canary.spec.input.json_schema:
        message = "the stable version has no samples, and the same input.schema"
        return _finding("stable_samples", Outcome.PASS, message)
    message = "the stable version has no samples, and another input.schema"
    return _finding("stable_samples", Outcome.INCONCLUSIVE, message)


def _samples(
    gate: str,
    samples: Sequence[Sample],
    canary: PublishedVersion,
    model: ModelFolder,
    tokenizer: TemplateTokenizer,
) -> Finding:
    # An empty registry: nothing that a schema refers to is fetched.
    validator = Draft202012Validator(canary.spec.input.json_schema, registry=Registry())
    new_tokens = most_new_tokens(canary.spec, tokenizer)
    for number, sample in enumerate(samples, 1):
        try:
            if wrong := best_match(validator.iter_errors(sample.input)):
                place, given, expected = place_and_rule(wrong)
                message = f"sample {number}: {place}; given: {given}; expected: {expected}"
                return _finding(gate, Outcome.FAIL, message)
            ids = fill(canary.compiled, sample.input, tokenizer).ids
            check_positions(len(ids), new_tokens, model.max_positions)
        except InvalidInput as error:
            return _finding(gate, Outcome.FAIL, f"sample {number}: {error.problem}")
        except (Unresolvable, re.error, RecursionError):
            return _finding(gate, Outcome.FAIL, f"input.schema cannot be applied to {number}")
    return _finding(gate, Outcome.PASS, f"{len(samples)} fit input.schema and the model")


def _finding(gate: str, outcome: Outcome, message: str) -> Finding:
    return Finding(gate=gate, outcome=outcome, message=message)


def pack_request(
    canary: PublishedVersion, stable: TemplateSpec, model: ModelFolder, *, limit_s: int, wall_s: int
) -> bytes:
    """What the process reads."""
    folder = {**asdict(model), "path": str(model.path), "eos_ids": list(model.eos_ids)}
    return pack(
        {
            "canary": canary.to_plain(),
            "stable": stable.to_plain(),
            "model": folder,
            "limit_s": limit_s,
            "wall_s": wall_s,
        }
    )


def unpack_findings(data: bytes) -> tuple[Finding, ...]:
    """What the process wrote. Raises CodecError, KeyError, TypeError or ValueError for less."""
    return tuple(
        Finding(gate=item["gate"], outcome=Outcome(item["outcome"]), message=item["message"])
        for item in unpack(data)
    )


def main() -> int:
    """The process."""
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what a tenant wrote is in it
    os.nice(_NICE)
    request: Any = unpack(sys.stdin.buffer.read())
    # The signals' own action: they end the process also in the midst of a pattern.
    signal.alarm(request["wall_s"])
    with suppress(ValueError, OSError):  # a lower one holds here already
        most = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (request["limit_s"], most))
    folder = request["model"]
    model = ModelFolder(
        **{**folder, "path": Path(folder["path"]), "eos_ids": tuple(folder["eos_ids"])}
    )
    try:
        findings = try_on_paper(
            PublishedVersion.from_plain(request["canary"]),
            parse_spec(request["stable"]),
            model,
            TemplateTokenizer.load(model.path),
        )
    except MemoryError:
        return TOO_MUCH
    plain = [{**asdict(finding), "outcome": str(finding.outcome)} for finding in findings]
    sys.stdout.buffer.write(pack(plain))
    return 0


if __name__ == "__main__":
    sys.exit(main())
