"""Whether users survive a restart of Redis, which keeps them in memory until told to save them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redis.exceptions import ResponseError

from contract.redis_client import Client

Place = Literal["ACL file", "configuration file"]

_LOST = (
    "Its users are in memory alone and gone after its next restart. To keep them, write what "
    "'prefillq tenants list --acl' prints into a file and start Redis with 'aclfile' set to it; "
    "from then on every change is saved there."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Where the users were saved, None for nowhere; `note` says it, and what to do."""

    place: Place | None
    note: str


def save_users(client: Client) -> Saved:
    """Write the users to the ACL file, else to the configuration file, if Redis has either."""
    try:
        client.acl_save()
    except ResponseError as error:
        if "not configured to use an ACL file" not in str(error):
            # With an ACL file that cannot be written, the configuration file would not have them.
            return _not_saved(f"Redis would not save its ACL file: {error}")
    else:
        return Saved(place="ACL file", note="The users are saved in the ACL file of this Redis.")
    try:
        client.config_rewrite()
    except ResponseError as error:
        if "without a config file" not in str(error):
            return _not_saved(f"Redis would not write its configuration file: {error}")
    else:
        return Saved(
            place="configuration file",
            note="The users are saved in the configuration file of this Redis.",
        )
    return _not_saved("This Redis has neither an ACL file nor a configuration file")


def _not_saved(why: str) -> Saved:
    return Saved(place=None, note=f"{why.rstrip('.')}. {_LOST}")
