"""What an engine is asked and what it answers; no torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from contract.errors import PrefillqError
from contract.types import FinishReason
from templates.spec import GenerationSpec
from worker.prefix.entry import PrefixEntry, PrefixKey

if TYPE_CHECKING:
    from torch import Tensor

StopReason = Literal["cancelled", "expired"]


class NonFiniteLogits(PrefillqError):
    """The model's scores held NaN or infinity; any text made from them would be garbage."""

    code = "non_finite_logits"
    passing = True  # a device may give it once


def non_finite() -> NonFiniteLogits:
    """The error, with what to do."""
    return NonFiniteLogits(
        "the model's scores are not finite",
        given="NaN or infinity in the logits",
        expected="finite numbers",
        remedy="Try another dtype; float16 overflows first.",
    )


class EngineClosed(PrefillqError):
    """A request that came after the engine was told to end."""

    code = "engine_closed"


class PrefixMismatch(PrefillqError):
    """An entry that is not an exact prefix of the request, or is of another model."""

    code = "prefix_mismatch"


class PrefixUnsupported(PrefillqError):
    """The model keeps its state in a way that cannot be copied and continued from."""

    code = "prefix_unsupported"


class RequestTooLong(PrefillqError):
    """Prompt and completion together need more positions than there are."""

    code = "request_too_long"


class EngineBroken(RuntimeError):
    """The engine's thread has ended by an error of its own; its process is of no more use."""


class GrammarFailed(PrefillqError):
    """An answer for which its grammar allows no next token, or takes too long to say which."""

    code = "grammar_failed"


class Masks(Protocol):
    """What makes masks of runs; the same for all runs of a tokenizer."""

    def allowed(self, runs: Sequence[Any]) -> Tensor:
        """Bits [runs, words] int32 on the CPU: bit i of word w is 1 where id 32 w + i may follow.

        A run that has failed may have any bits; its `advance` raises.
        """


class GrammarRun(Protocol):
    """Where one answer stands in its grammar; of one request, used by one thread at a time."""

    @property
    def masks(self) -> Masks: ...

    def advance(self, token_id: int) -> bool:
        """Take the token that was chosen; True when the answer is whole and nothing may follow.

        Raises GrammarFailed for one that was not allowed.
        """


class Grammar(Protocol):
    """What answers may be, in tokens. Many requests share it, and nothing changes it."""

    def start(self) -> GrammarRun:
        """A run at the beginning of an answer."""


def never() -> StopReason | None:
    """`should_stop` of a request that nothing cancels."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One job, in ids."""

    ids: tuple[int, ...]  # the whole prompt, prefix included
    generation: GenerationSpec
    choices: tuple[tuple[int, ...], ...] | None = None  # ids of each allowed answer, without EOS
    grammar: Grammar | None = None  # what the answer must be, token by token; never with choices
    entry: PrefixEntry | None = None  # None: compute the whole prompt
    # Asked before the prefill and after every token.
    should_stop: Callable[[], StopReason | None] = never
    # Called with every token as it is chosen, on the engine's thread: to be quick about it.
    on_token: Callable[[int], None] | None = None
    keep_scores: bool = False  # True: report the first token's raw scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What came out. Seconds on the monotonic clock, the device synchronized at each edge."""

    token_ids: tuple[int, ...]  # the end-of-sequence id included, if it was produced
    text: str  # without control tokens, cut before the stop string
    choice_index: int | None = None
    choice_probabilities: tuple[float, ...] = ()  # one per choice, their sum 1
    finish_reason: FinishReason
    fork_s: float = 0.0
    suffix_prefill_s: float = 0.0  # to the first token's logits; the whole prompt when uncached
    decode_s: float = 0.0
    first_token_s: float = 0.0  # from the call's start; 0 when there was no token
    batch_size: int = 1  # the most requests that shared a step with it, itself included
    first_scores: tuple[float, ...] = ()  # one per vocabulary id, when they were asked for


class Engine(Protocol):
    """Thread-safe. Every method raises NonFiniteLogits when the model's scores are unusable."""

    @property
    def name(self) -> str:
        """As it appears in logs and listings."""

    @property
    def batch_size(self) -> int:
        """How many requests it can serve at once."""

    @property
    def stepped_at(self) -> float:
        """When it last computed something, on the monotonic clock."""

    def prefill(self, key: PrefixKey, ids: Sequence[int]) -> PrefixEntry:
        """Compute a prefix once. Raises PrefixUnsupported where the model cannot be cached."""

    def generate(self, request: GenerationRequest) -> Generation:
        """Answer a request. Raises PrefixMismatch and RequestTooLong; changes no entry.

        With a `grammar` only what it allows is chosen from, and the answer ends once it is whole;
        "length" means that it is not. Raises GrammarFailed when nothing is allowed.

        With `choices` the answer is the likeliest of them, and how tokens are chosen otherwise
        does not matter; see `worker.engine.choices`.
        """

    def close(self) -> None:
        """Answer what was asked, then end the engine's threads. Idempotent."""
