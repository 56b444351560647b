"""How long a job stands still when its worker is killed: `python -m tests.chaos.takeover`.

Two fake workers on an embedded Redis with the default settings; a job runs on one of them, that
one gets kill -9, and the time is taken until the other has claimed the job. `--runs 20` of them,
at moments of the lease that are spread evenly.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from contract.model_store import find_model
from contract.redis_client import connect
from contract.settings import Settings
from local.redis_server import EmbeddedRedis
from producer.client import Producer
from templates.registry import Registry
from tests.support.fakes import FakeWorker, fake_workers
from tests.support.pretend import pretend_model
from tests.support.templates import make_spec, publish
from tests.support.waiting import running, until


def measure(runs: int, *, lease_s: float | None, say: bool) -> list[float]:
    """Seconds from the kill to the next claim, one for each run."""
    tokenizer = find_model("smollm2-135m-instruct", Settings.load()).path
    found = []
    with (
        EmbeddedRedis() as server,
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as model_folder,
    ):
        model = pretend_model(Path(model_folder), tokenizer_from=tokenizer)
        settings = Settings.load(redis_url=server.url, lease_s=lease_s)
        with (
            connect(settings) as client,
            Producer(settings) as producer,
            fake_workers(settings, model.path, Path(folder)) as start,
        ):
            publish(Registry(client, settings), make_spec(), model)
            workers = [start(), start()]
            for number in range(runs):
                job = producer.submit("acme/notes", {"note": "work=600"})
                first = running(job)
                time.sleep(settings.lease_s * number / runs)
                victim = _worker_called(first, workers)
                victim.kill()
                killed_at = time.monotonic()
                second = running(job, 120, attempt=2)
                found.append(time.monotonic() - killed_at)
                assert second != first
                if say:
                    sys.stderr.write(f"{number + 1:3}  {found[-1]:.2f} s\n")
                job.cancel()
                until(lambda job=job: job.status().ended, what="the cancel")
                workers.remove(victim)
                workers.append(start())
    return found


def _worker_called(worker_id: str, workers: list[FakeWorker]) -> FakeWorker:
    """Ids are `<host>-<pid>-<hex>`."""
    return next(worker for worker in workers if str(worker.pid) == worker_id.split("-")[-2])


def main() -> None:
    parser = argparse.ArgumentParser(prog="takeover", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--lease-s", type=float, help="another lease than the default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    seconds = measure(options.runs, lease_s=options.lease_s, say=not options.json)
    summary = {
        "runs": len(seconds),
        "lease_s": options.lease_s or Settings.model_fields["lease_s"].default,
        "median_s": round(statistics.median(seconds), 2),
        "worst_s": round(max(seconds), 2),
        "best_s": round(min(seconds), 2),
    }
    if options.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        sys.stdout.write(
            "recovery after kill -9: median {median_s} s, worst {worst_s} s, best {best_s} s"
            " of {runs} (lease {lease_s} s)\n".format(**summary)
        )


if __name__ == "__main__":
    main()
