"""The page in a real Chromium: live, by keyboard, on a phone, in the dark, without JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract.redis_client import Client, connect
from contract.settings import Settings
from local.redis_server import EmbeddedRedis
from tests.support.browser import DESKTOP, PHONE, Browser, Scheme, Size, chromium, find_chromium
from tests.support.page_data import PageData
from tests.support.page_server import page_server
from tests.support.programs import missing
from tests.support.waiting import until

pytestmark = pytest.mark.unrestricted("what users see is tested without a browser")

PLACES = ("/", "/queues", "/workers", "/jobs", "/rollouts", "/tenants")
# WCAG 2.2: relative luminance of the text and of what is behind it.
CONTRAST = """
() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const lum = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest(".hidden, .skip, noscript")) continue;
    if (!node.getClientRects().length) continue;
    const [a, b] = [lum(parse(getComputedStyle(node).color)), lum(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${node.className}: ${walker.currentNode.data.trim()} ${ratio}`);
  }
  return poor;
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if find_chromium() is None:
        missing("there is no chromium on this machine; 'make services' brings it")
    with chromium() as started:
        yield started


@pytest.fixture
def data(client: Client, settings: Settings) -> PageData:
    made = PageData(client, settings)
    made.publish()
    return made


@pytest.fixture
def url(settings: Settings, data: PageData) -> Iterator[str]:
    with page_server(settings, show_text=True) as address:
        yield address


def _live(page: Any, url: str) -> None:
    page.goto(url)
    page.wait_for_selector("#state.on")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_every_page_fits_and_can_be_read(
    browser: Browser, url: str, data: PageData, size: Size, scheme: Scheme
) -> None:
    """No page is wider than the screen, and each text stands out from what is behind it."""
    jobs = data.live_after_publish()
    paths = (*PLACES, f"/jobs/{jobs['hit']}", "/templates/acme/support-triage")
    with browser.page(size, scheme) as page:
        page.goto(url)
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(18, 21, 24)") is (scheme == "dark")
        for path in paths:
            page.goto(url + path, wait_until="domcontentloaded")
            page.wait_for_selector("#state.on")
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0], path
            assert page.evaluate(CONTRAST) == [], path


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_an_address_that_is_none_of_ours(browser: Browser, url: str, size: Size) -> None:
    """It fits and can be read, asks for no updates, and leads back."""
    with browser.page(size, expected="404 (Not Found)") as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}/nothing", wait_until="networkidle")
        assert page.inner_text("h1") == "Not found"
        assert page.inner_text("#state") == ""
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert page.evaluate(CONTRAST) == []
        assert not [address for address in asked if "/live/" in address]
        page.click("text=To the overview")
        page.wait_for_selector("#state.on")


def test_numbers_come_by_themselves(browser: Browser, url: str, data: PageData) -> None:
    """A job is submitted, claimed and finished while its page and the overview are open."""
    with browser.page() as overview, browser.page() as its_own:
        _live(overview, url)
        assert "Nothing waits" in overview.inner_text("main")
        [job_id] = data.submit("acme/reply-draft")
        overview.wait_for_selector("text=1 waiting")
        _live(its_own, f"{url}/jobs/{job_id}")
        [job] = data.claim([job_id])
        its_own.wait_for_selector(".lead .badge.running")
        data.finish(job)
        its_own.wait_for_selector(".lead .badge.succeeded")
        its_own.wait_for_selector(".waterfall rect.decode")
        overview.wait_for_selector(f'a[href="/jobs/{job_id}"]')


def test_focus_and_nodes_are_kept(browser: Browser, url: str, data: PageData) -> None:
    """An update changes what differs: the focused link stays the same element, moved or not."""
    first, second = data.submit("acme/reply-draft", 2)
    with browser.page() as page:
        _live(page, f"{url}/jobs")
        page.focus(f'a[href="/jobs/{second}"]')
        page.evaluate("document.activeElement.mine = true")
        page.evaluate("document.querySelector('main').mine = true")
        data.claim([first])  # its row goes to another table, and the others move up
        page.wait_for_selector("section:has(#running) tbody tr")
        data.claim([second])  # its own row goes to another table
        page.wait_for_selector(f'section:has(#running) a[href="/jobs/{second}"]')
        assert page.evaluate("document.querySelector('main').mine") is True
        third, fourth = data.submit("acme/reply-draft", 2)
        page.wait_for_selector(f'a[href="/jobs/{fourth}"]')
        page.focus(f'a[href="/jobs/{fourth}"]')
        page.evaluate("document.activeElement.mine = true")
        data.claim([third])
        page.wait_for_selector(f'section:has(#running) a[href="/jobs/{third}"]')
        assert page.evaluate("document.activeElement.mine") is True
        assert page.evaluate("document.activeElement.getAttribute('href')") == f"/jobs/{fourth}"


def test_focus_moves_with_its_row(browser: Browser, url: str, data: PageData) -> None:
    """The longest queue comes first, and whoever was on a link stays on it."""
    data.submit("acme/reply-draft", 2)
    link = 'a[href="/templates/globex/product-tagger"]'
    with browser.page() as page:
        _live(page, f"{url}/queues")
        page.focus(link)
        page.evaluate("document.activeElement.mine = true")
        data.submit("globex/product-tagger", 3)
        page.wait_for_selector(f"tbody tr:first-child {link}")
        assert page.evaluate("document.activeElement.mine") is True


def test_what_is_chosen_stays(browser: Browser, url: str, data: PageData) -> None:
    """Updates bring new choices and leave what was typed and chosen alone."""
    with browser.page() as page:
        _live(page, f"{url}/jobs")
        page.fill("input[name=id]", "half an id")
        page.select_option("select[name=tenant]", "globex")
        data.publish({"umbrella": {"triage": 1}})
        page.wait_for_selector("option:text-is('umbrella')", state="attached")
        assert page.input_value("input[name=id]") == "half an id"
        assert page.input_value("select[name=tenant]") == "globex"


def test_by_keyboard(browser: Browser, url: str, data: PageData) -> None:
    """The skip link first, then the menu, then the page; one always sees where one is."""
    data.submit("acme/reply-draft")
    with browser.page() as page:
        page.goto(f"{url}/queues")
        order = []
        for _ in range(10):
            page.keyboard.press("Tab")
            order.append(page.evaluate("document.activeElement.innerText.trim()"))
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", order[-1]
        menu = ["Overview", "Queues", "Workers", "Jobs", "Rollouts", "Tenants"]
        assert order[:8] == ["Skip to the content", "prefillq", *menu]
        assert page.evaluate("document.activeElement.closest('main') !== null")
        page.goto(f"{url}/queues")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"


def test_hostile_text_runs_nothing(browser: Browser, url: str, data: PageData, client: Any) -> None:
    """Planted where a tenant can write, shown by the server and again by an update."""
    planted = "<script>ran = 1</script><img src=x onerror='ran = 2'>"  # fits a worker's name
    [job] = data.claim(data.submit("acme/reply-draft", text=planted), planted)
    with browser.page() as page:
        _live(page, f"{url}/jobs/{job.id}")
        assert planted in page.inner_text("main")
        data.finish(job, text=planted)
        page.wait_for_selector("#answer")
        assert page.inner_text("section:has(#answer) pre") == planted
        assert page.evaluate("window.ran") is None
        assert page.locator("main img").count() == 0


def test_without_javascript(browser: Browser, url: str, data: PageData) -> None:
    """All is there, and a reload brings what is new."""
    with browser.page(javascript=False) as page:
        page.goto(f"{url}/jobs")
        [job_id] = data.submit("acme/reply-draft")
        link = f'a[href="/jobs/{job_id}"]'

        def listed() -> bool:
            page.reload()
            return bool(page.locator(link).count())

        until(listed, what="a reload shows the new job")
        page.click(link)
        assert "queued" in page.inner_text("main")
        page.goto(f"{url}/jobs")
        page.fill("input[name=id]", job_id)
        page.click("text=Open")
        assert page.url == f"{url}/jobs/{job_id}"


def test_redis_away(browser: Browser, tmp_path: Any) -> None:
    """An open page says so and goes on by itself."""
    with EmbeddedRedis() as server:
        settings = Settings(redis_url=server.url, cache_dir=tmp_path, redis_timeout_s=0.5)
        with (
            connect(settings) as client,
            page_server(settings) as address,
            browser.page() as page,
        ):
            PageData(client, settings).publish()
            _live(page, f"{address}/queues")
            server.kill()
            page.wait_for_selector("#state.off")
            page.wait_for_selector("text=Redis does not answer")
            assert "support-triage" in page.inner_text("main")
            server.start()
            page.wait_for_selector("#state.on")
            assert page.locator("text=Redis does not answer").count() == 0


def test_the_server_away(browser: Browser, settings: Settings, data: PageData) -> None:
    """The browser says so."""
    with browser.driven.new_context() as context:
        page = context.new_page()
        with page_server(settings) as address:
            page.goto(address)
            page.wait_for_selector("#state.on")
        page.wait_for_selector("#state.off")
        assert page.inner_text("#state") == "Connection lost"
