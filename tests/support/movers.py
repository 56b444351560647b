"""Processes that move one template at random, and one that enqueues jobs of it meanwhile.

    python -m tests.support.movers move SECONDS SEED
    python -m tests.support.movers submit SECONDS FILE

Both read PREFILLQ_REDIS_URL. A mover prints how often each of its wishes was made or refused, as
JSON; the producer writes a line of JSON for each job that it was given.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contract.errors import Conflict, InvalidInput, NotFound
from contract.redis_client import connect
from contract.settings import Settings
from producer.client import Producer
from templates.registry import Registry
from templates.rollouts.control import Rollouts
from templates.rollouts.rollout import Phase
from tests.support.published import COMPILED, MODEL, make_spec
from tests.support.rollouts import make_plan

HERE = ("acme", "triage")
ADDRESSES = ("acme/triage", "acme/triage@next", "acme/triage@2", "acme/triage@3")
_MOST_VERSIONS = 8
_PAUSE_S = 0.05
_LABELS = ("production", "next")


class Mover:
    """Wishes for one move after the other, allowed or not."""

    def __init__(self, registry: Registry, seed: int) -> None:
        self._registry, self._rollouts = registry, Rollouts(registry)
        self._random = random.Random(seed)
        self.who = f"mover-{seed}"
        self.done: Counter[str] = Counter()

    def move(self) -> None:
        time.sleep(self._random.expovariate(1 / _PAUSE_S))  # or no submit would ever get through
        wishes: dict[Callable[[], object], int] = {
            self.label: 12,
            self.unlabel: 1,
            self.retire: 4,
            self.unretire: 8,
            self.start: 24,
            self.advance: 40,
            self.pause: 2,
            self.resume: 4,
            self.promote: 2,
            self.abort: 2,
            self.publish: 1,
        }
        [wish] = self._random.choices(list(wishes), list(wishes.values()))
        name = wish.__name__
        try:
            wish()
            self.done[name] += 1
        except (Conflict, NotFound, InvalidInput) as error:
            self.done[f"{name}: {error.code}"] += 1

    def label(self) -> None:
        label = self._random.choice(_LABELS)
        expect = self._registry.labels(*HERE).get(label)
        self._registry.set_label(*HERE, label, self._version(), expect=expect, who=self.who)

    def unlabel(self) -> None:
        self._registry.remove_label(*HERE, self._random.choice(_LABELS), who=self.who)

    def retire(self) -> None:
        self._registry.retire(*HERE, self._version(), who=self.who)

    def unretire(self) -> None:
        self._registry.retire(*HERE, self._version(), undo=True, who=self.who)

    def start(self) -> None:
        label = self._random.choice(("production", "production", "next"))
        stable = self._registry.labels(*HERE).get(label, 1)
        steps = tuple(sorted(self._random.sample(range(1, 10_001), 3)))
        key = self._random.choice([None, "ticket"])
        plan = make_plan(
            label=label, stable=stable, canary=self._version(), steps=steps, sticky_key=key
        )
        self._rollouts.start(*HERE, plan, who=self.who)

    def advance(self) -> None:
        rollout = self._rollouts.get(*HERE)
        if rollout is None:
            return
        warm = rollout.phase is Phase.WARMING
        self._rollouts.advance(
            *HERE,
            expect=rollout,
            phase=Phase.BAKING if warm else Phase.WARMING,
            step=rollout.step + warm,
            findings=(),
            who=self.who,
        )

    def pause(self) -> None:
        self._rollouts.pause(*HERE, who=self.who)

    def resume(self) -> None:
        self._rollouts.resume(*HERE, who=self.who)

    def promote(self) -> None:
        self._rollouts.promote(*HERE, who=self.who)

    def abort(self) -> None:
        self._rollouts.abort(*HERE, who=self.who)

    def publish(self) -> None:
        text = f"Text {self._random.randrange(_MOST_VERSIONS)}: "
        self._registry.publish(make_spec(text=text), COMPILED, MODEL, who=self.who)

    def _version(self) -> int:
        return self._random.randint(1, _MOST_VERSIONS)


def submit(settings: Settings, until: float, file: Path) -> Counter[str]:
    """Jobs by label, number and rollout, alone and in handfuls."""
    chance, done, number = random.Random(0), Counter[str](), 0
    with Producer(settings) as producer, file.open("w", encoding="utf-8") as lines:
        while time.monotonic() < until:
            number += 1
            address = chance.choice(ADDRESSES)
            key = chance.choice([None, f"customer-{chance.randrange(50)}"])
            count = chance.choice([1, 1, 5])
            inputs = [{"ticket": f"{number}-{n}"} for n in range(count)]
            try:
                jobs = producer.submit_many(
                    address, inputs, sticky_keys=None if key is None else [key] * count
                )
            except (Conflict, NotFound) as error:
                done[error.code] += 1
                continue
            for job, variables in zip(jobs, inputs, strict=True):
                done["submitted"] += 1
                line: dict[str, Any] = {"id": job.id, "address": address, "key": key, **variables}
                lines.write(json.dumps(line) + "\n")
    return done


def main(command: str, seconds: str, rest: str) -> None:
    settings = Settings.load()
    until = time.monotonic() + float(seconds)
    if command == "submit":
        done = submit(settings, until, Path(rest))
    else:
        with connect(settings) as client:
            mover = Mover(Registry(client, settings), int(rest))
            while time.monotonic() < until:
                mover.move()
            done = mover.done
    sys.stdout.write(json.dumps(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
