"""A thousand templates of a hundred tenants against ten of ten, on one Redis and two workers each.

    python -m bench.many_templates [--templates 1000] [--tenants 100] [--rounds 5] [--json]

The workers are whole but for their model, so what is measured is all that is not computing. Both
sides run the same jobs in turns; the side whose turn it is not stands still. Each has one job for
every template before anything is measured.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Self

import click

from bench.cached_vs_uncached import triage
from bench.machine import describe_machine
from contract.console import emit_json, json_option, note, option
from contract.model_folder import ModelFolder, read_model_folder
from contract.model_store import find_model
from contract.redis_client import connect
from contract.settings import Settings
from local.redis_server import EmbeddedRedis
from local.workers import WorkerProcess
from producer.client import Producer
from scale.formula import Goal
from scale.rows import Assumed
from scale.watching import Watcher
from templates.compile import compile_template
from templates.registry import Registry
from templates.tokenizer import TemplateTokenizer
from worker.options import DEFAULT_MODEL

_WAIT_S = 600.0
_IDLE_S = 5.0
_LOOKS = 10  # of `prefillq scale`, each round; each kind


class Side:
    """One Redis with its templates and workers; a context manager."""

    def __init__(
        self, folder: Path, model: ModelFolder, *, name: str, templates: int, tenants: int
    ) -> None:
        self.templates = templates
        self._tenants = tenants
        self._model = model
        self._name = name
        self._folder = folder
        self._stack = ExitStack()
        self.workers: list[WorkerProcess] = []
        self.submit_s: list[list[float]] = []
        self.claim_s: list[list[float]] = []
        self.jobs_per_s: list[float] = []
        self.picked_up_s: list[float] = []
        self.first_look_s = 0.0
        self.look_s: list[list[float]] = []
        self.look_at_one_s: list[list[float]] = []
        self._asked = 0

    def __enter__(self) -> Self:
        enter = self._stack.enter_context
        redis = enter(EmbeddedRedis())
        self._settings = Settings(redis_url=redis.url, cache_dir=self._folder / "cache")
        self.client: Any = enter(connect(self._settings))
        self._registry = Registry(self.client, self._settings)
        self._spec = triage()
        self._compiled = compile_template(
            self._spec, self._model, TemplateTokenizer.load(self._model.path)
        )
        self._ticket = dict(self._spec.samples[0].input)
        before = self.used_memory()
        for number in range(self.templates):
            self._publish(f"t{number % self._tenants}", f"triage-{number}")
        self.redis_bytes = (self.used_memory() - before) / self.templates
        self.addresses = [f"t{n % self._tenants}/triage-{n}" for n in range(self.templates)]
        self._producer = enter(Producer(self._settings))
        self._watcher = Watcher(self.client, self._settings, assumed=Assumed())
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop_workers()
        self._stack.close()

    def start_workers(self, count: int) -> float:
        """Seconds until all of them take jobs."""
        started = time.perf_counter()
        self.workers = [
            WorkerProcess(
                self._settings,
                log_path=self._folder / f"{self._name}-{number}.log",
                command=(sys.executable, "-m", "bench.fake_worker"),
                options=[str(self._model.path)],
            ).start()
            for number in range(count)
        ]
        for worker in self.workers:
            worker.wait_ready()
        self._producer.submit(self.addresses[-1], self._ticket).result(timeout=_WAIT_S)
        return time.perf_counter() - started

    def stop_workers(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.workers = []

    def pause(self) -> None:
        for worker in self.workers:
            worker.pause()

    def resume(self) -> None:
        for worker in self.workers:
            worker.resume()

    def visit_all(self) -> None:
        """One job for every template."""
        self._burst(self.addresses)

    def round(self, jobs: int) -> None:
        """Jobs one by one, each of the next template, then as many at once."""
        submit_s, claim_s = [], []
        for _ in range(jobs):
            address = self._next()
            started = time.perf_counter()
            handle = self._producer.submit(address, self._ticket)
            submit_s.append(time.perf_counter() - started)
            claim_s.append(handle.result(timeout=_WAIT_S).timings.queue_s)
        self.submit_s.append(submit_s)
        self.claim_s.append(claim_s)
        started = time.perf_counter()
        self._burst([self._next() for _ in range(4 * jobs)])
        self.jobs_per_s.append(4 * jobs / (time.perf_counter() - started))

    def pick_up(self, number: int) -> None:
        """Seconds until the first job of a template that was published just now is claimed."""
        address = ("t0", f"late-{number}")
        self._publish(*address)
        result = self._producer.submit("/".join(address), self._ticket).result(timeout=_WAIT_S)
        self.picked_up_s.append(result.timings.queue_s)

    def look(self) -> None:
        """Looks of `prefillq scale` at all templates, then at one by its name.

        The first of all reads every version; later ones, of `--watch` and `--serve`, know them.
        """
        if not self.first_look_s:
            self.first_look_s = self._look()
        self.look_s.append([self._look() for _ in range(_LOOKS)])
        self.look_at_one_s.append([self._look(self._next()) for _ in range(_LOOKS)])

    def _look(self, *targets: str) -> float:
        started = time.perf_counter()
        self._watcher.look(targets, Goal(wait_s=10.0))
        return time.perf_counter() - started

    def idle(self) -> tuple[float, float]:
        """Milliseconds of CPU in a second that a worker and Redis take when there is no job."""
        worker, redis = self._cpu_s()
        time.sleep(_IDLE_S)
        worker_after, redis_after = self._cpu_s()
        count = len(self.workers)
        return (
            1000 * (worker_after - worker) / _IDLE_S / count,
            1000 * (redis_after - redis) / _IDLE_S,
        )

    def used_memory(self) -> int:
        return int(self.client.info("memory")["used_memory"])

    def resident_bytes(self) -> float:
        """Of one worker."""
        import psutil

        sizes = [int(psutil.Process(worker.pid).memory_info().rss) for worker in self.workers]
        return sum(sizes) / len(sizes)

    def _cpu_s(self) -> tuple[float, float]:
        import psutil

        times = [psutil.Process(worker.pid).cpu_times() for worker in self.workers]
        info = self.client.info("cpu")
        return (
            sum(t.user + t.system for t in times),
            float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
        )

    def _publish(self, tenant: str, name: str) -> None:
        spec = self._spec.model_copy(update={"tenant": tenant, "name": name})
        self._registry.publish(spec, self._compiled, self._model)

    def _next(self) -> str:
        self._asked += 1
        return self.addresses[self._asked * 7919 % self.templates]  # prime: all, in no order

    def _burst(self, addresses: Sequence[str]) -> None:
        handles = [self._producer.submit(address, self._ticket) for address in addresses]
        for _ in self._producer.wait(handles, timeout=_WAIT_S):
            pass


@click.command()
@option("--templates", default=1000, show_default=True, type=click.IntRange(min=20))
@option("--tenants", default=100, show_default=True, type=click.IntRange(min=1))
@option("--few", default=10, show_default=True, type=click.IntRange(min=1))
@option("--workers", default=2, show_default=True, type=click.IntRange(min=1))
@option("--jobs", default=100, show_default=True, type=click.IntRange(min=1))
@option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@json_option
def main(
    *,
    templates: int,
    tenants: int,
    few: int,
    workers: int,
    jobs: int,
    rounds: int,
    as_json: bool,
) -> None:
    """Print latencies with few and with many templates, their ratios, and memory for each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = _model(folder / "model")
        sides = [
            stack.enter_context(Side(folder, model, name="few", templates=few, tenants=few)),
            stack.enter_context(
                Side(folder, model, name="many", templates=templates, tenants=tenants)
            ),
        ]
        found: dict[str, Any] = {
            "machine": describe_machine(),
            "templates": [side.templates for side in sides],
            "workers": workers,
            "jobs_measured": jobs * rounds,
        }
        ready, resident, idle, visited = [], [], [], []
        for side in sides:
            note(f"{side.templates} templates: published; starting workers")
            ready.append(side.start_workers(workers))
            time.sleep(5)  # what follows a start
            resident.append(side.resident_bytes())
            idle.append(side.idle())
            note(f"{side.templates} templates: ready; one job for each")
            side.visit_all()
            visited.append(side.resident_bytes())
            side.pause()
        for number in range(rounds):
            for side in sides if number % 2 else reversed(sides):
                note(f"round {number + 1} of {rounds}: {side.templates} templates")
                side.resume()
                time.sleep(1)
                side.round(jobs)
                side.look()
                side.pick_up(number)
                side.pause()
        more = sides[1].templates - sides[0].templates
        found |= {
            "submit_ms": [1000 * _median(side.submit_s) for side in sides],
            "claim_ms": [1000 * _median(side.claim_s) for side in sides],
            "seconds_per_job_of_many": [1 / median(side.jobs_per_s) for side in sides],
            "picked_up_s": [median(side.picked_up_s) for side in sides],
            "scale_first_look_ms": [1000 * side.first_look_s for side in sides],
            "scale_look_ms": [1000 * _median(side.look_s) for side in sides],
            "scale_look_each_ms": [1000 * _median(side.look_s) / side.templates for side in sides],
            "scale_look_at_one_ms": [1000 * _median(side.look_at_one_s) for side in sides],
            "ready_s": ready,
            "idle_worker_cpu_ms_per_s": [worker for worker, _ in idle],
            "idle_redis_cpu_ms_per_s": [redis for _, redis in idle],
        }
        ratios = {
            name: found[name][1] / found[name][0]
            for name in (
                *("submit_ms", "claim_ms", "seconds_per_job_of_many", "picked_up_s"),
                *("scale_look_ms", "scale_look_each_ms", "scale_look_at_one_ms"),
            )
        }
        found |= {
            "ratios": ratios,
            "redis_bytes_per_template": sides[1].redis_bytes,
            "worker_bytes_per_template": (resident[1] - resident[0]) / more,
            "worker_bytes_per_template_with_a_job": (visited[1] - visited[0]) / more,
        }
    if as_json:
        emit_json(found)
        return
    for name, value in found.items():
        click.echo(f"{name:38} {_shown(value)}")


def _median(rounds: list[list[float]]) -> float:
    """The median of the rounds' medians."""
    return median(median(seconds) for seconds in rounds)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {_shown(one)}" for name, one in value.items())
    if isinstance(value, list):
        return "  ".join(_shown(one) for one in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _model(folder: Path) -> ModelFolder:
    """The default model's tokenizer, and weights that nobody loads."""
    real = find_model(DEFAULT_MODEL, Settings.load())
    folder.mkdir()
    for path in real.path.iterdir():
        if path.suffix in (".json", ".jinja") and path.name != "prefillq.json":
            shutil.copyfile(path, folder / path.name)
    (folder / "model.safetensors").write_bytes(b"no weights")
    return read_model_folder(DEFAULT_MODEL, folder)


if __name__ == "__main__":
    main()
