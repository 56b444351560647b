"""Chromium without a window, driven by Playwright. Debian's is used; Playwright brings none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from playwright.sync_api import Browser as Driven, Page, sync_playwright

Size = tuple[int, int]
Scheme = Literal["light", "dark"]

PHONE: Size = (375, 812)
DESKTOP: Size = (1280, 860)

# Its sandbox needs rights that containers lack, and the pages are our own. The others keep it from
# asking its maker's hosts for anything; Playwright gives it a new profile and some of them itself.
_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # And should it ask all the same, there is no such host.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def find_chromium() -> str | None:
    """Its path; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Browser:
    """One browser for many pages."""

    driven: Driven

    @contextmanager
    def page(
        self,
        size: Size = DESKTOP,
        scheme: Scheme = "light",
        *,
        javascript: bool = True,
        expected: str | None = None,
    ) -> Iterator[Page]:
        """A page in a profile of its own; what it complains of fails the test, unless all of it
        has the `expected` words.
        """
        context = self.driven.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme=scheme,
            java_script_enabled=javascript,
            reduced_motion="reduce",
        )
        page = context.new_page()
        page.set_default_timeout(15_000)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda said: complaints.append(said.text) if said.type == "error" else None,
        )
        try:
            yield page
            assert [each for each in complaints if expected is None or expected not in each] == []
        finally:
            context.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Raises RuntimeError where there is no Chromium."""
    path = find_chromium()
    if path is None:
        raise RuntimeError("no chromium on PATH")
    with sync_playwright() as playwright:
        driven = playwright.chromium.launch(executable_path=path, args=_OPTIONS)
        try:
            yield Browser(driven=driven)
        finally:
            driven.close()
