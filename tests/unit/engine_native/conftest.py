"""The kernels, built once on this machine."""

import pytest

from contract.settings import Settings
from worker.engine.native.build import NativeUnavailable, load_kernels


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    """Built where a worker would build them, so that a second run of the tests finds them."""
    try:
        load_kernels(Settings.load().cache_dir / "native")
    except NativeUnavailable as error:
        if "do not compile" in str(error):
            raise
        pytest.skip(str(error))
