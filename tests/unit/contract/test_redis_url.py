"""Redis URLs: what each kind says, in redis-py's words and in kombu's, and never a password."""

from __future__ import annotations

import pytest

from contract.celery_app import make_celery
from contract.redis_client import connect
from contract.redis_url import broker_url, check_redis_url, parse_sentinel_url, redacted
from contract.settings import Settings

FULL = (
    "sentinel://app:p%2Fw%40s3cret@one:1111,[::1]:2222,three/4"
    "?master=main&sentinel_username=su&sentinel_password=sp"
)


def test_all_that_a_sentinel_url_may_say() -> None:
    """Hosts with and without port, IPv6, login, database, the master's name, their own login."""
    url = parse_sentinel_url(FULL)
    assert url.sentinels == (("one", 1111), ("::1", 2222), ("three", 26379))
    assert (url.master, url.db) == ("main", 4)
    assert (url.username, url.password) == ("app", "p/w@s3cret")
    assert (url.sentinel_username, url.sentinel_password) == ("su", "sp")


def test_what_a_sentinel_url_need_not_say() -> None:
    """Database 0 of the master that sentinels are usually told of, and no login."""
    url = parse_sentinel_url("sentinel://one")
    assert (url.sentinels, url.master, url.db) == ((("one", 26379),), "mymaster", 0)
    assert (url.username, url.password, url.sentinel_password) == (None, None, None)


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://",
        "sentinel://one,,two",
        "sentinel://:s3cret@",
        "sentinel://u:s3cret@one:99999",
        "sentinel://u:s3cret@one:port",
        "sentinel://u:s3c/ret@one:1",
        "sentinel://u:s3cret@one/db",
        "sentinel://u:s3cret@one/0?mastr=main",
        "sentinel://u:s3cret@[::1",
        "sentinels://u:s3cret@one",
    ],
)
def test_what_is_no_sentinel_url_is_refused_and_not_shown(url: str) -> None:
    """The error says what is expected; a password in the URL is not in it."""
    with pytest.raises(ValueError, match=r"sentinel|database|options") as caught:
        check_redis_url(url)
    assert "s3c" not in f"{caught.value} {caught.value.__cause__}"


def test_kombu_gets_a_url_for_each_sentinel_and_the_masters_name() -> None:
    """Each with the login, for kombu takes that from whichever it is at."""
    login = "app:p%2Fw%40s3cret@"
    assert broker_url(FULL) == ";".join(
        f"sentinel://{login}{host}/4" for host in ("one:1111", "[::1]:2222", "three:26379")
    )
    options = make_celery(Settings(redis_url=FULL)).conf.broker_transport_options
    assert options["master_name"] == "main"
    asked = options["sentinel_kwargs"]
    assert (asked["username"], asked["password"]) == ("su", "sp")
    assert asked["socket_timeout"] <= 0.5


def test_other_urls_are_as_they_were() -> None:
    """One server needs no sentinel; a socket file has another name in kombu."""
    for url in ("redis://u:p@h:1/2", "rediss://h/0"):
        assert broker_url(url) == check_redis_url(url) == url
    assert broker_url("unix:///run/redis.sock") == "redis+socket:///run/redis.sock"
    options = make_celery(Settings(redis_url="redis://h/0")).conf.broker_transport_options
    assert "master_name" not in options


def test_redacted_sentinel_url() -> None:
    """Hosts, database and master; no login."""
    assert redacted(FULL) == "sentinel://one:1111,[::1]:2222,three:26379/4?master=main"


def test_a_client_asks_the_sentinels_with_their_login_and_the_master_with_its_own() -> None:
    """Nothing is sent before the first command, and the two logins are not mixed up."""
    with connect(Settings(redis_url=FULL)) as client:
        kwargs = client.connection_pool.connection_kwargs
        assert (kwargs["username"], kwargs["password"], kwargs["db"]) == ("app", "p/w@s3cret", 4)
        sentinels = client.connection_pool.sentinel_manager.sentinels
        assert len(sentinels) == 3
        for sentinel in sentinels:
            asked = sentinel.connection_pool.connection_kwargs
            assert (asked["username"], asked["password"]) == ("su", "sp")
