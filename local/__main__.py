"""A Redis to take first steps with: `python -m local`, or `make redis` in a checkout."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

import click

from contract.errors import PrefillqError
from local.redis_server import EmbeddedRedis


@click.command()
@click.option("--port", default=6379, show_default=True, type=click.IntRange(1, 65535))
def main(*, port: int) -> None:
    """Run a Redis on loopback until Ctrl-C or SIGTERM; what it holds is gone then."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        with EmbeddedRedis(port=port) as server:
            click.echo(f"PREFILLQ_REDIS_URL={server.url}")
            sys.stdout.flush()
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        return
    except PrefillqError as error:
        click.echo(f"prefillq: {error}", err=True)
        sys.exit(error.exit_code)


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
