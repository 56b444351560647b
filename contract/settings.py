"""Settings that both sides read, each from `PREFILLQ_<NAME>` or a keyword.

Options of one command live with that command; a setting is here when producers and workers
must agree on it, or when every command takes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

import platformdirs
from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from contract.errors import SettingsError
from contract.redis_url import check_redis_url

KIB, MIB, GIB = 2**10, 2**20, 2**30

YEAR_S = 366 * 86_400.0


def _file(path: Path) -> Path:
    """A path that can be asked about and is a file; pydantic's own type lets an OSError through."""
    try:
        if path.is_file():
            return path
    except (OSError, ValueError) as error:  # a name that is too long, or that no file can have
        raise ValueError("the path of a file") from error
    raise ValueError("the path of a file")


ExistingFile = Annotated[Path, AfterValidator(_file)]


class Settings(BaseSettings):
    """Read once per process with `Settings.load()`."""

    model_config = SettingsConfigDict(
        env_prefix="PREFILLQ_", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    # Not in its repr: it may hold a password.
    redis_url: Annotated[str, Field(repr=False)] = "redis://127.0.0.1:6379/0"

    # For rediss://: who signed the server's certificate (default: whom the system trusts), and
    # our own certificate and key where the server asks for one.
    redis_ca_file: ExistingFile | None = None
    redis_cert_file: ExistingFile | None = None
    redis_key_file: ExistingFile | None = None

    cache_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_cache_dir("prefillq")))

    # How long a client waits for Redis before it says so (a submit is at most a few calls).
    redis_timeout_s: Annotated[float, Field(gt=0, le=3600)] = 2.0

    # A running job is its worker's while the lease lasts; it is renewed every quarter of it. A
    # killed worker's jobs wait for its end, so it is short; docs/reliability.md has the figures.
    lease_s: Annotated[float, Field(ge=4, le=3600)] = 6.0

    # Records and results are kept this long after the job ended.
    result_ttl_s: Annotated[float, Field(ge=1, le=YEAR_S)] = 24 * 3600.0

    # A job whose template sets no deadline may wait and run this long.
    default_deadline_s: Annotated[float, Field(gt=0, le=YEAR_S)] = 24 * 3600.0

    # How often a job is begun before it is dead: its workers died, or it failed each time for a
    # reason that might have passed. Dead jobs are kept this long for `prefillq dead`.
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 5
    dead_ttl_s: Annotated[float, Field(ge=1, le=YEAR_S)] = 7 * 24 * 3600.0

    max_variables_bytes: Annotated[int, Field(ge=1, le=64 * MIB)] = 1 * MIB
    max_result_bytes: Annotated[int, Field(ge=KIB, le=64 * MIB)] = 2 * MIB

    @field_validator("redis_url")
    @classmethod
    def _known_scheme(cls, value: str) -> str:
        return check_redis_url(value)

    @field_validator("redis_ca_file", "redis_cert_file", "redis_key_file")
    @classmethod
    def _only_with_tls(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and not info.data.get("redis_url", "rediss:").startswith("rediss:"):
            raise ValueError("a rediss:// URL beside it: with this one nothing is encrypted")
        return value

    @field_validator("redis_key_file")
    @classmethod
    def _key_of_a_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and info.data.get("redis_cert_file") is None:
            raise ValueError("the certificate of this key in redis_cert_file")
        return value

    @property
    def models_dir(self) -> Path:
        """Where `prefillq models fetch` puts models."""
        return self.cache_dir / "models"

    @classmethod
    def load(cls, **given: object) -> Self:
        """Settings from the environment, with `given` (those that are not None) on top.

        Raises SettingsError that names the variable.
        """
        chosen = {name: value for name, value in given.items() if value is not None}
        try:
            return cls(**chosen)  # type: ignore[arg-type]
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise SettingsError(
                f"setting {name} cannot be used",
                # A URL may hold a password, also one that is no URL.
                given="(not shown)" if name == "redis_url" else repr(first["input"])[:80],
                expected=first["msg"],
                remedy=f"Set PREFILLQ_{name.upper()} or the option of that name.",
            ) from (None if name == "redis_url" else error)
