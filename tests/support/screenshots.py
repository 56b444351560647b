"""Pictures of `prefillq ui` for the docs: `python -m tests.support.screenshots [FOLDER]`.

Needs Chromium and Pillow; starts a Redis of its own and shows made-up data.
"""

from __future__ import annotations

import sys
from pathlib import Path

from contract.redis_client import connect
from contract.settings import Settings
from local.redis_server import EmbeddedRedis
from tests.support.browser import DESKTOP, PHONE, Browser, chromium
from tests.support.page_data import PageData
from tests.support.page_server import page_server
from tests.support.waiting import until

FOLDER = Path("docs/ui")
_MAX_BYTES = 200 * 1000


def main(folder: Path) -> None:
    """Write all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    with EmbeddedRedis() as server:
        settings = Settings(redis_url=server.url)
        with (
            connect(settings) as client,
            page_server(settings, show_text=True, interval_s=0.5) as url,
            chromium() as browser,
        ):
            data = PageData(client, settings)
            data.publish()
            _overview_is_up(browser, url)  # so that ended jobs are heard of
            jobs = data.live_after_publish()
            _overview_is_up(browser, url)
            for name, path, size, scheme in (
                ("overview", "/", DESKTOP, "light"),
                ("overview-phone", "/", PHONE, "light"),
                ("job", f"/jobs/{jobs['miss']}", DESKTOP, "light"),
                ("job-phone", f"/jobs/{jobs['hit']}#time", PHONE, "dark"),
                ("workers", "/workers", DESKTOP, "dark"),
                ("rollout", "/templates/acme/support-triage", DESKTOP, "light"),
            ):
                picture = folder / f"{name}.png"
                with browser.page(size, scheme) as page:
                    page.goto(url + path)
                    page.wait_for_selector("#state.on")
                    page.screenshot(path=picture)
                _pack(picture)


def _overview_is_up(browser: Browser, url: str) -> None:
    with browser.page(DESKTOP, "light") as page:
        page.goto(url)
        until(lambda: page.locator("#state.on").count(), what="the page is live")
        page.wait_for_timeout(1500)


def _pack(picture: Path) -> None:
    """A palette of 256 colours: a page has few."""
    from PIL import Image

    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(picture, optimize=True)
    assert picture.stat().st_size < _MAX_BYTES, picture


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
