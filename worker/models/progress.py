"""How far a fetch has come: a plain callable, and its look on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Stage ("download", "convert", ...), how much is done, and of how much (None: not known).
Progress = Callable[[str, int, int | None], None]


def silent(_stage: str, _done: int, _total: int | None) -> None:
    """Report nothing."""


@contextmanager
def shown_on_stderr() -> Iterator[Progress]:
    """A bar per stage on a terminal, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress as Bars, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:9}"), BarColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                for earlier in tasks.values():  # stages follow each other
                    bars.update(earlier, total=1, completed=1)
                    bars.stop_task(earlier)
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
