"""The status page in a real browser without a screen. `make test` runs the first test, and `make night` all.

`SCREENSHOTS=DIR` keeps pictures of each state.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

from changelog.base.errors import UnavailableError
from changelog.base.runtime import SystemRuntime
from changelog.lease import EntryState
from recovery import states
from recovery.http.history import HistoryPoint
from recovery.http.server import listening, run_uvicorn
from recovery.last_audit import Audits
from recovery.states import Level
from recovery.statistics.verdict import SourceVerdict
from recovery.status.known import DiskStatus, Status
from tests.given.chromium import running_browser
from tests.given.command_line import plant
from tests.given.daemon_process import PATIENCE_S, running_daemon
from tests.given.shown_status import BROKEN_KEY, NAME, STUCK_ID, SetClock, ShownStatus, fed, healthy, stuck, unanswered
from tests.recovery.http.test_audits import plant as plant_run
from tiered.settings import DaemonSettings

WHOLE = next(iter((healthy().audits or Audits()).runs))
pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    """One browser for all tests, with a new and empty profile, because its start takes seconds."""
    with running_browser() as running:
        yield running


@pytest.fixture
def browser(started: Browser) -> Iterator[Browser]:
    """The browser without any page. A page that stays open would go on asking a server that is gone."""
    yield started
    for context in started.contexts:
        context.close()


class WatchedPage:
    """A page, the errors that its console told, and the hosts that it asked for anything. `keep` takes a picture."""

    def __init__(self, browser: Browser, url: str, *, width: int = 1200, scheme: Any = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url.rstrip("/"))
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_S * 1000)
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._ask)
        self.page.goto(url)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def _ask(self, request: Request) -> None:
        self.hosts.add(httpx.URL(request.url).netloc.decode())

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def until(self, selector: str, text: str | re.Pattern[str]) -> None:
        expect(self.page.locator(selector)).to_contain_text(text, timeout=PATIENCE_S * 1000)

    def ask(self) -> None:
        """Lets the page ask now, as after it was hidden, and not only 3 s after the last answer."""
        self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def ask_soon(self) -> None:
        """Lets the page ask when `served` has looked again. If that takes long, the page asks by itself."""
        self.page.wait_for_timeout(300)
        self.ask()

    def keep(self, name: str) -> None:
        if where := os.environ.get("SCREENSHOTS"):
            self.page.wait_for_timeout(500)
            self.page.screenshot(path=Path(where, f"{name}.png"), full_page=True)

    def wider_than_screen(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@contextmanager
def served(shown: ShownStatus) -> Iterator[str]:
    """The URL of a server that looks once a quarter of a second, in a thread of its own."""
    stop = threading.Event()
    with listening(DaemonSettings(http_port=0)) as bound:
        async def serve() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run_uvicorn, shown.app, bound)
                while not stop.is_set():
                    await shown.sample()
                    await SystemRuntime().sleep(0.25)
                tasks.cancel_scope.cancel()

        thread = threading.Thread(target=partial(anyio.run, serve))
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
        finally:
            stop.set()
            thread.join()


class RunningClock(SetClock):
    """`SetClock` that goes on, and that a test puts forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return SystemRuntime.monotonic(self) + self.ahead_s

    def wall_ns(self) -> int:
        return SystemRuntime.wall_ns(self)


def shown(status: Status | Exception, **more: Any) -> ShownStatus:
    made = ShownStatus(status, runtime=RunningClock(), **more)
    made.worker.answered_at = made.worker.passed_at = made.runtime.monotonic()
    return made


def with_history(made: ShownStatus) -> ShownStatus:
    now = made.runtime.monotonic()
    for number in range(720):
        gap = 300 <= number < 330
        at = now - (720 - number) * 5
        made.sampler.history.add(HistoryPoint(at) if gap else HistoryPoint(at, 12.0, 15.0, float(720 - number)))
    return made


# --- what it shows ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), pytest.param(400, "dark", marks=pytest.mark.night)])
def test_it_shows_what_the_status_says_in_both_schemes_and_on_a_narrow_screen(browser: Browser, scheme: str, width: int) -> None:
    with served(with_history(shown(stuck(), show_objects=True))) as url:
        watched = WatchedPage(browser, url, width=width, scheme=scheme)
        said = httpx.get(f"{url}status.json", trust_env=False).json()
        watched.until("#headline", said["headline"])
        watched.until("#tiles", "12.4 per s")
        watched.page.wait_for_selector("#rates canvas")
        watched.page.locator("summary").click()
        passes = watched.page.get_by_role("progressbar")
        back = watched.page.evaluate("getComputedStyle(document.body).backgroundColor")
        found = {
            "the top row": watched.page.locator("#tiles dt").all_inner_texts()[:4],
            "the backlog": re.findall(r"\d+", watched.page.locator("#tiles > div").filter(has_text="Backlog").inner_text())[:1],
            "the level": watched.text("#level").lower(),
            "the orders": watched.page.locator("#orders code").all_inner_texts(),
            "what is missing of the stuck entries": [
                part for entry in said["stuck"]["entries"] for part in (entry["error"], entry["type"], entry["advice"], NAME)
                if part not in watched.text("#stuck-list")
            ],
            "daemons that are missing": [each for each in said["daemons"] if each["instance"] not in watched.text("#daemons")],
            "the last audit": "clean: 4,012 blobs" in watched.text("#audits"),
            "the first passes under way": [tuple(map(each.get_attribute, ("aria-label", "aria-valuetext"))) for each in passes.all()],
            "the states of entries": watched.page.locator("#entries tbody th").all_inner_texts(),
            "what the chart is called": "are dealt with" in (watched.page.locator("#rates").get_attribute("aria-label") or ""),
            "the columns": watched.page.evaluate(COLUMNS),
            "texts without enough contrast": watched.page.evaluate(LOW_CONTRAST),
            "tables that are cut, and broken words": watched.page.evaluate(CUT),
            "wider than the screen": watched.wider_than_screen() > 0,
            "the scheme": "light" if sum(map(int, re.findall(r"\d+", back)[:3])) > 380 else "dark",
        }  # fmt: skip
        assert found == {
            "the top row": ["Recovery", "Stuck entries", "Last audit", "Daemons alive"],
            "the backlog": ["12"],
            "the level": "needs you",
            "the orders": [order["type"] for order in said["orders"] if order["type"]],
            "what is missing of the stuck entries": [],
            "daemons that are missing": [],
            "the last audit": True,
            "the first passes under way": [("First pass of Audit", "about 31 %: at least 1,250,000 of about 4,000,000 blobs")],
            "the states of entries": ["under way"],
            "what the chart is called": True,
            "the columns": {column: in_words(column, value) for column, value in said["sources"]["recovery"]["total"].items()},
            "texts without enough contrast": [],
            "tables that are cut, and broken words": [],
            "wider than the screen": False,
            "the scheme": scheme,
        }
        watched.keep(f"stuck-{scheme}-{width}")
        assert watched.errors == []
        assert watched.hosts == {httpx.URL(url).netloc.decode()}


def in_words(column: str, value: float | str | None) -> str:
    if value is None or isinstance(value, bool):
        return {None: "not known", True: "yes", False: "no"}[value]
    return "9.4 MB" if column.startswith("bytes") else f"{value:,}"


COLUMNS = """() => Object.fromEntries([...document.querySelectorAll("#columns tbody tr")].map((row) => [
  row.querySelector("th").textContent, row.querySelector("td").textContent,
]))"""


CUT = """() => [
  ...[...document.querySelectorAll('main table')].filter((each) => each.scrollWidth > each.parentElement.clientWidth),
  ...[...document.querySelectorAll('.command code span')].filter((each) => each.textContent.length <= 36 && each.offsetHeight > 30),
].map((each) => each.textContent.slice(0, 60))"""

LOW_CONTRAST = """() => {
  const parts = (text) => { const m = text.match(/[\\d.]+/g).map(Number); return m.length === 3 ? [...m, 1] : m; };
  const light = ([r, g, b]) => [r, g, b].map((c) => { c /= 255; return c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; })
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) { const c = parts(getComputedStyle(node).backgroundColor); if (c[3]) return c; }
    return [255, 255, 255, 1];
  };
  const low = [];
  for (const node of document.querySelectorAll("main *, header *, footer *")) {
    if (![...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()) || !node.checkVisibility()) continue;
    const [one, other] = [light(parts(getComputedStyle(node).color)), light(behind(node))].sort((a, b) => b - a);
    if ((one + .05) / (other + .05) < 4.5) low.push(`${node.textContent.slice(0, 40)}: ${((one + .05) / (other + .05)).toFixed(2)}`);
  }
  return low;
}"""


ALONE = """() => {
  const rows = {}, tiles = [...document.querySelectorAll("#tiles > div")], whole = document.querySelector("#tiles").offsetWidth;
  for (const tile of tiles) (rows[tile.offsetTop] ||= []).push(tile.offsetWidth);
  return Object.values(rows).filter((row) => row.length === 1 && row[0] < whole).length;
}"""


@pytest.mark.night
def test_an_idle_store_takes_little_room_and_no_tile_is_alone_in_its_row(browser: Browser) -> None:
    """"0 %: at least 0 of 0 entries" stood above all, and a ninth tile below."""
    recovery = healthy().sources["recovery"]
    total = replace(recovery.total, snapshot_records_known=0, snapshot_progress=0, snapshot_committed=False)
    none = replace(healthy().entries, by_state=dict.fromkeys(EntryState, 0), oldest_age_s=None, counted=0)
    idle = replace(healthy(), sources={"recovery": replace(recovery, total=total)}, entries=none, audits=Audits())
    disk, held = DiskStatus(10**10, 10**11), healthy().audits
    made = shown(idle)
    with served(made) as url:
        watched = WatchedPage(browser, url)
        for feed, roomy, audits in product((None, fed().feed), (None, disk), (Audits(), held)):
            made.status = replace(idle, feed=feed, disk=roomy, audits=audits)
            watched.ask_soon()
            number = 8 + (feed is not None) + (roomy is not None) + (audits is held)
            expect(watched.page.locator("#tiles > div")).to_have_count(number, timeout=PATIENCE_S * 1000)
            for width in (1200, 900, 400):
                watched.page.set_viewport_size({"width": width, "height": 900})
                assert (watched.page.evaluate(ALONE), watched.wider_than_screen() > 0) == (0, False), f"{number} tiles at {width}"
        assert watched.page.locator("#snapshots").is_hidden()
        assert watched.text("#entries") == "None is open."
        watched.page.set_viewport_size({"width": 1200, "height": 900})
        watched.keep("idle-light-1200")
        assert watched.errors == []


@pytest.mark.night
def test_a_feed_is_shown_with_its_sinks_and_hidden_where_there_is_none(browser: Browser) -> None:
    made = shown(healthy())
    with served(made) as url:
        watched = WatchedPage(browser, url, width=400)
        watched.until("#headline", "Recovery keeps up.")
        assert not watched.page.locator("#feed").is_visible()
        made.status = fed()
        watched.ask_soon()
        watched.until("#feed", "behind: A sink fails: gs://my-bucket/feed: it answered <b>503</b>")
        watched.until("#feed", "9,120 updates committed · 7,433 live references")
        watched.until("#feed", "3 entries wait for it, the oldest for 1 s; at most 24 h.")
        watched.until("#feed", "4 updates behind and 60 s · fails since")
        watched.until("#orders", "The sink gs://my-bucket/feed takes nothing.")
        watched.keep("feed-light-400")
        assert watched.wider_than_screen() <= 0
        assert watched.page.evaluate(LOW_CONTRAST) == []
        assert watched.errors == []


@pytest.mark.night
def test_all_is_well_and_what_changes_is_shown_without_a_reload_and_spoken(browser: Browser) -> None:
    made = with_history(shown(healthy()))
    with served(made) as url:
        watched = WatchedPage(browser, url, scheme="dark")
        watched.until("#headline", "Recovery keeps up.")
        watched.until("#orders", "Nothing to do.")
        watched.until("#stuck-list", "None. Nothing waits for an operator.")
        assert watched.page.title() == "nothing known to be wrong · tiered recovery"
        watched.keep("well-dark-1200")
        source = made.status.sources["recovery"] if isinstance(made.status, Status) else None
        assert source is not None
        made.status = replace(
            healthy(), sources={"recovery": replace(source, verdict=SourceVerdict(states.FALLING_BEHIND, 99.0, 9.0))}
        )
        watched.until("#headline", "Recovery falls behind")
        watched.until("#spoken", "Recovery falls behind")
        assert watched.page.locator("#answer").get_attribute("data-level") == "behind"
        watched.keep("behind-dark-1200")
        assert watched.errors == []


@pytest.mark.night
def test_text_is_never_taken_for_html(browser: Browser) -> None:
    evil = "<img src=x onerror=alert(1)><script>document.title='owned'</script>"
    entry = replace(stuck().stuck.entries[0], object=evil, error=evil, names=(evil,))
    with served(shown(replace(stuck(), stuck=replace(stuck().stuck, entries=(entry,))), show_objects=True)) as url:
        watched = WatchedPage(browser, url)
        watched.until("#stuck-list", evil)
        assert watched.page.locator("#stuck-list img, #stuck-list script").count() == 0
        assert watched.errors == []


@pytest.mark.night
def test_audits_are_listed_and_their_reports_open(browser: Browser, tmp_path: Path) -> None:
    plant_run(tmp_path, "2026-11-22 night")
    with served(shown(healthy(), show_objects=True, audit_reports=tmp_path)) as url:
        watched = WatchedPage(browser, url)
        watched.until("#audits", "2026-11-22 night")
        watched.page.get_by_role("link", name="report").click()
        expect(watched.page).to_have_title("2026-11-22 night", timeout=PATIENCE_S * 1000)
        assert watched.errors == []


@pytest.mark.night
def test_each_level_has_a_sign_a_word_and_a_colour_of_its_own_and_only_ok_is_green(browser: Browser) -> None:
    looks = {
        Level.OK: healthy(),
        Level.BEHIND: fed(),
        Level.STUCK: stuck(),
        Level.UNKNOWN: replace(healthy(), away=("long-term tier",)),
        Level.LOST: replace(healthy(), audits=Audits((replace(WHOLE, findings={"dangling": (2, 0)}),))),
    }
    made = shown(healthy())
    green = set()
    with served(made) as url:
        watched = WatchedPage(browser, url)
        for level, found in looks.items():
            made.status = found
            watched.ask_soon()
            expect(watched.page.locator("#answer")).to_have_attribute("data-level", level.value, timeout=PATIENCE_S * 1000)
            sign = watched.page.evaluate("getComputedStyle(document.querySelector('.mark'), '::before').content")
            assert sign == {"ok": '"✓"', "behind": '"↓"', "unknown": '"?"'}.get(level, '"!"')
            colour = watched.page.evaluate("getComputedStyle(document.querySelector('.mark')).backgroundColor")
            green |= {level} if colour == "rgb(20, 113, 58)" else set()
            assert watched.text("#level").lower() in watched.page.title() or level is Level.STUCK
            watched.keep(f"level-{level.value}")
        assert watched.text("#tiles > div:nth-child(3) dt") == "Lost objects"
        assert green == {Level.OK} and watched.errors == []


@pytest.mark.parametrize("how", ["it sleeps", "500", "no JSON", "another JSON", "a part that cannot be shown"])
@pytest.mark.night
def test_a_page_that_is_left_open_does_not_stay_green(browser: Browser, how: str) -> None:
    """The machine of the page slept, or the daemon answers with something else: nothing of it is of now."""
    made = shown(healthy(), tiered="tiered -c /etc/tiered.yaml")
    with served(made) as url:
        watched = WatchedPage(browser, url)
        watched.until("#level", re.compile("nothing known", re.IGNORECASE))
        if how == "it sleeps":
            watched.page.route("**/status.json", lambda route: None)  # there is no answer yet
            watched.page.evaluate("answeredAt = Date.now() - 3600000")
        else:
            broken = {**httpx.get(f"{url}status.json", trust_env=False).json(), "services": {"x": 1}}
            body = {"500": "", "no JSON": "<html>", "another JSON": "[]"}.get(how, json.dumps(broken))
            watched.page.route("**/status.json", lambda route: route.fulfill(status=500 if how == "500" else 200, body=body))
        if how != "it sleeps":
            watched.ask()
        watched.until("#headline", "The daemon gives no answer")
        expect(watched.page.locator("#answer")).to_have_attribute("data-level", "unknown")
        assert watched.page.evaluate("document.body.matches('.lost.old')")
        assert "grayscale(1)" in watched.page.evaluate("getComputedStyle(document.querySelector('#tiles')).filter")
        assert watched.text("#orders code").startswith("tiered -c /etc/tiered.yaml status")
        watched.page.unroute("**/status.json")
        watched.ask()
        watched.until("#headline", "Recovery keeps up.")
        assert watched.page.evaluate("!document.body.matches('.lost, .old')")


# --- by keyboard ------------------------------------------------------------------------------------


FOCUSED = "document.activeElement.dataset.copies || document.activeElement.id || document.activeElement.name"


@pytest.mark.night
def test_every_command_is_reached_by_tab_and_copied_by_a_key_and_keeps_the_focus(browser: Browser) -> None:
    with served(shown(stuck(), show_objects=True)) as url:
        watched = WatchedPage(browser, url, width=400)
        watched.until("#stuck-list", STUCK_ID)
        reached = []
        for _ in range(40):
            watched.page.keyboard.press("Tab")
            focused = watched.page.evaluate(FOCUSED)
            reached.append(focused)
            if focused == f"tiered log retry {STUCK_ID}":
                watched.page.keyboard.press("Enter")
                watched.until("#spoken", f"Copied: tiered log retry {STUCK_ID}")
                assert watched.page.evaluate("navigator.clipboard.readText()") == focused
                assert watched.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                with watched.page.expect_response("**/status.json"), watched.page.expect_response("**/recent.json"):
                    watched.ask()
                watched.page.evaluate("new Promise((wake) => setTimeout(wake, 100))")  # what was answered is drawn
                assert watched.page.evaluate("document.activeElement.dataset.copies") == focused
        of_entries = (f"tiered log show {STUCK_ID}", f"tiered log retry {STUCK_ID}", f"tiered log retry '{BROKEN_KEY}'")
        commands = ["tiered log list --stuck", *of_entries]
        assert [command for command in dict.fromkeys(reached) if command in commands] == commands
        assert {"span", "decisions", "entries"} <= set(reached)


@pytest.mark.night
def test_names_are_hidden_and_a_link_leads_to_the_stuck_entries_at_once(browser: Browser) -> None:
    with served(shown(stuck())) as url:
        watched = WatchedPage(browser, url)
        watched.until("#stuck-list", STUCK_ID)
        assert "holiday" not in watched.page.content()
        watched.page.keyboard.press("Tab")
        watched.page.keyboard.press("Enter")
        watched.page.keyboard.press("Tab")
        assert watched.page.evaluate("document.activeElement.dataset.copies") == f"tiered log show {STUCK_ID}"


# --- when something does not answer -----------------------------------------------------------------


@pytest.mark.night
def test_before_the_first_look_it_says_that_it_knows_nothing(browser: Browser) -> None:
    with served(shown(unanswered())) as url:
        watched = WatchedPage(browser, url)
        watched.until("#headline", "The changelog could not be read yet.")
        watched.until("#orders", "tiered check")
        watched.until("#services", "changelog")
        assert watched.page.locator("#tiles").is_hidden()
        watched.keep("nothing-light-1200")
        assert watched.errors == []


@pytest.mark.night
def test_when_the_changelog_goes_away_old_figures_are_marked_as_old(browser: Browser) -> None:
    made = shown(healthy())
    with served(made) as url:
        watched = WatchedPage(browser, url)
        watched.until("#headline", "Recovery keeps up.")
        made.down["changelog"] = UnavailableError("connection refused")
        made.status = unanswered()
        assert isinstance(made.runtime, RunningClock)
        made.runtime.ahead_s = 600
        watched.ask_soon()
        watched.until("#headline", "It is not known whether recovery keeps up. These figures are 10 min old.")
        watched.until("#services", "changelog does not answer")
        watched.until("#problems", "no answer within 10 s")
        watched.until("#as-of", re.compile(r"These figures are from .*\d\d:\d\d"))
        watched.until("#daemons", "alive then, seen 1 s earlier")
        assert watched.page.evaluate("document.body.classList.contains('old')")
        watched.keep("stale-light-1200")
        assert watched.errors == []


@pytest.mark.night
def test_no_daemon_lives_and_a_tier_is_down(browser: Browser) -> None:
    made = shown(replace(healthy(), daemons=[]))
    made.down["long-term tier"] = UnavailableError("connection refused")
    with served(made) as url:
        watched = WatchedPage(browser, url)
        watched.until("#headline", "The long-term tier does not answer")
        watched.until("#services", re.compile(r"long-term tier does not answer, since \d\d:\d\d UTC \(\d+ s\)"))
        watched.until("#daemons", "None has written to the changelog within a day.")
        watched.until("#orders", "No daemon lives.")
        del made.down["long-term tier"]
        watched.ask_soon()
        watched.until("#services", re.compile(r"its last outage: \d\d:\d\d UTC to \d\d:\d\d UTC \(\d+ s\)"))
        watched.until("#services", "What fails for the callers of your services is not known here")
        watched.keep("outage-light-1200")


@pytest.mark.night
def test_a_live_daemon_is_killed_and_restarted_under_an_open_page(browser: Browser, tmp_path: Path) -> None:
    planting = threading.Thread(target=plant, args=(tmp_path / "store", None))  # playwright has an event loop in this thread
    planting.start()
    planting.join()
    with running_daemon(tmp_path) as daemon:
        daemon.until(lambda said: any(each["event"] == "recovered" for each in said["decisions"]), "recent.json")
        watched = WatchedPage(browser, daemon.url)
        watched.until("#headline", re.compile("Recovery keeps up|Nothing waits"))
        watched.until("#decisions", "recovered")
        url, port = daemon.url, daemon.port
        daemon.process.kill()
        daemon.process.wait()
        watched.until("#headline", re.compile(r"The daemon gives no answer since \d\d:\d\d:\d\d UTC"))
        watched.until("#fresh", "no answer for")
        assert watched.page.title() == "not known · tiered recovery"
        assert watched.page.evaluate("document.body.classList.contains('lost')")
        watched.until("#daemons", "alive then")
        watched.keep("lost-light-1200")
        assert all("ERR_CONNECTION" in error for error in watched.errors)
    with running_daemon(tmp_path, port=port) as daemon:
        assert daemon.url == url
        watched.until("#headline", re.compile("Recovery keeps up|Nothing waits"))
        assert not watched.page.evaluate("document.body.matches('.lost, .old')")
        expect(watched.page.locator("#as-of")).to_be_hidden()
        watched.until("#self", daemon.status()["daemon"]["instance"])
