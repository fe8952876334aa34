"""The addresses of the daemon's HTTP server: what each says, to whom, and what is never said."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from prometheus_client import Gauge

from changelog.base.errors import ConfigurationError, CorruptRecordError, UnavailableError
from recovery.http.app import FILES
from recovery.http.sampler import EVERY_S
from recovery.status.as_json import as_json
from recovery.status.known import Status
from tests.given.repository import ROOT
from tests.given.shown_status import BROKEN_KEY, NAME, SERVICES, STUCK_ID, ShownStatus, fed, healthy, stuck, unanswered

pytestmark = pytest.mark.anyio

ADDRESSES = ["/healthz", "/readyz", "/metrics", "/status.json", "/recent.json", *(f"/{address}" for address in FILES)]


@asynccontextmanager
async def client(shown: ShownStatus) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(shown.app), base_url="http://localhost:9464") as browser:
        yield browser


async def get(shown: ShownStatus, address: str) -> httpx.Response:
    async with client(shown) as browser:
        return await browser.get(address)


# --- who may ask what ----------------------------------------------------------------------------


@pytest.mark.parametrize("address", ADDRESSES)
async def test_every_address_answers_get_and_head_and_refuses_all_that_could_change_something(address: str) -> None:
    shown = ShownStatus()
    await shown.sample()
    async with client(shown) as browser:
        got, head = await browser.get(address), await browser.head(address)
        assert got.status_code == head.status_code == 200
        assert head.content == b""
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
            refused = await browser.request(method, address)
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_the_page_of_the_server_lists_every_address_that_is_no_file_of_the_page() -> None:
    """docs/promises.md promises these: `emulators/promises` reads them there."""
    listed = re.findall(r"^\| `(/\S*)` \|", (ROOT / "docs/http.md").read_text("utf-8"), re.MULTILINE)
    app = ShownStatus().app
    routes = {route.path.replace("{run}", "RUN") for route in app._app.routes}  # type: ignore[attr-defined]
    assert sorted(listed) == sorted(routes - {f"/{address}" for address in FILES if address})


@pytest.mark.parametrize("address", [*ADDRESSES, "/nothing", "/audits/x"])
async def test_every_answer_keeps_a_browser_from_loading_guessing_and_telling(address: str) -> None:
    for answer in (await get(ShownStatus(), address), await posted(address)):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in policy


async def posted(address: str) -> httpx.Response:
    async with client(ShownStatus()) as browser:
        return await browser.post(address)


@pytest.mark.parametrize(
    "address",
    ["/nothing", "/page", "/page/page.js", "/../app.py", "/uplot/LICENSE", "/uplot/%2e%2e/%2e%2e/app.py", "//etc/passwd"],
)
async def test_there_is_nothing_at_other_addresses(address: str) -> None:
    assert (await get(ShownStatus(), address)).status_code == 404


@pytest.mark.parametrize(
    ("host", "code"),
    [("localhost", 200), ("LOCALHOST:9464", 200), ("127.0.0.1:9464", 200), ("[::1]:9464", 200), ("evil.example", 421), ("", 421),
     ("localhost.evil.example", 421), ("127.0.0.1.evil.example:9464", 421)],
)  # fmt: skip
async def test_on_this_machine_alone_only_its_own_names_are_answered(host: str, code: int) -> None:
    async with client(ShownStatus(hosts={"localhost", "127.0.0.1", "::1"})) as browser:
        assert (await browser.get("/healthz", headers={"host": host})).status_code == code


async def test_an_error_of_the_server_says_nothing_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = ShownStatus()
    monkeypatch.setattr(type(shown.view), "recent", lambda _: 1 / 0)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(shown.app, raise_app_exceptions=False), base_url="http://localhost"
    ) as browser:
        failed = await browser.get("/recent.json")
    assert failed.status_code == 500
    assert "ZeroDivision" not in failed.text
    assert failed.headers["x-content-type-options"] == "nosniff"


# --- health ----------------------------------------------------------------------------------------


async def test_alive_even_if_nothing_else_is() -> None:
    shown = ShownStatus(UnavailableError("down"))
    assert (await get(shown, "/healthz")).text == "alive\n"


async def test_ready_once_every_service_and_a_pass_answered() -> None:
    shown = ShownStatus()
    shown.worker.answered_at = None
    early = await get(shown, "/readyz")
    assert early.status_code == 503
    assert early.json()["reasons"] == [*(f"the {name} was not asked yet" for name in SERVICES), "no pass has read the changelog yet"]
    await shown.sample()
    shown.worker.answered_at = shown.runtime.now
    ready = await get(shown, "/readyz")
    assert (ready.status_code, ready.json()["ready"], ready.json()["last_pass_s_ago"]) == (200, True, 1.0)


async def test_not_ready_while_a_service_is_down_while_passes_stand_still_and_while_it_stops() -> None:
    shown = ShownStatus()
    shown.down["long-term tier"] = UnavailableError("connection refused")
    await shown.sample()
    shown.runtime.now += 3600
    shown.worker.stopping = True
    answer = await get(shown, "/readyz")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == [
        "the daemon is stopping", "the long-term tier does not answer: connection refused", "no pass has read the changelog for 3601 s",
    ]  # fmt: skip


async def test_a_service_that_answers_with_something_corrupt_does_answer() -> None:
    shown = ShownStatus()
    shown.down["high-volume tier"] = CorruptRecordError("the row ~reach breaks the format")
    await shown.sample()
    assert (await get(shown, "/readyz")).status_code == 200


# --- the status -----------------------------------------------------------------------------------


async def test_the_status_is_that_of_the_command_with_its_age() -> None:
    shown = ShownStatus(stuck(), show_objects=True)
    await shown.sample()
    shown.runtime.now += 4
    said = (await get(shown, "/status.json")).json()
    assert {name: said[name] for name in as_json(stuck())} == json.loads(json.dumps(as_json(stuck())))
    assert said["sample"] == {"age_s": 4.0, "stale": False, "every_s": 5.0, "failing_for_s": None, "error": None}
    assert [service["answers"] for service in said["services"]] == [True, True, True]


async def test_before_the_first_look_it_says_that_nothing_is_known() -> None:
    said = (await get(ShownStatus(), "/status.json")).json()
    assert said["level"] == "unknown"
    assert "no figures yet" in said["headline"]
    assert said["sample"]["age_s"] is None and said["sample"]["stale"]


async def test_if_even_the_first_look_fails_it_says_why_and_what_to_type() -> None:
    shown = ShownStatus(unanswered())
    await shown.sample()
    said = (await get(shown, "/status.json")).json()
    assert said["level"] == "unknown"
    assert "store" not in said
    assert said["orders"][0]["type"] == "tiered check"
    assert "no answer within 10 s" in said["problems"][0]


async def test_when_the_changelog_goes_away_the_last_figures_stay_with_their_age_and_the_level_is_unknown() -> None:
    shown = ShownStatus()
    await shown.sample()
    shown.status = unanswered()
    shown.runtime.now += 300
    await shown.sample()
    shown.runtime.now += 30
    said = (await get(shown, "/status.json")).json()
    assert said["level"] == "unknown"
    assert "6 min old" in said["headline"]
    assert said["sources"]["recovery"]["total"]["processed_values"] == 1_040_000
    assert said["sample"]["age_s"] == 330.0 and said["sample"]["failing_for_s"] == 30.0 and said["sample"]["stale"]
    shown.status = healthy()
    shown.worker.answered_at = shown.runtime.now
    await shown.sample()
    said = (await get(shown, "/status.json")).json()
    assert said["level"] == "ok" and said["sample"]["error"] is None


@pytest.mark.parametrize(("status", "pause_s"), [
    (healthy(), 40), (unanswered(), 10), (replace(healthy(), away=("long-term tier",)), 10),
])  # fmt: skip
async def test_a_long_look_is_followed_by_a_long_rest_unless_it_waited_for_what_is_away(status: Status, pause_s: float) -> None:
    """The end of an outage is seen soon."""
    shown = ShownStatus(status)

    async def slow() -> Status:
        shown.runtime.now += 10
        return status

    shown.sampler._look = slow
    pauses = []

    async def sleep(seconds: float) -> None:
        if seconds == EVERY_S:  # the questions, which wait for no look
            await anyio.sleep_forever()
        pauses.append(seconds)
        tasks.cancel_scope.cancel()
        await anyio.lowlevel.checkpoint()

    shown.runtime.sleep = sleep  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shown.sampler.run)
    assert pauses == [pause_s]


async def test_old_figures_say_nothing_of_the_feed_of_now_and_errors_of_sinks_hide_names() -> None:
    shown = ShownStatus(fed())
    await shown.sample()
    said = shown.view.status()
    assert said is not None
    assert (said["feed"]["state"], said["feed"]["sinks"][1]["error"]) == ("behind", "it answered <b>503</b>")
    shown.runtime.now += 61
    said = shown.view.status()
    assert said is not None
    assert (said["feed"]["state"], said["feed"]["why"]) == ("unknown", "These figures are old.")
    assert said["feed"]["records"] == 9120


async def test_figures_that_no_look_renews_go_stale_without_any_error() -> None:
    shown = ShownStatus()
    await shown.sample()
    shown.runtime.now += 61
    said = (await get(shown, "/status.json")).json()
    assert (said["level"], said["sample"]["stale"]) == ("unknown", True)
    assert said["sources"]["recovery"]["verdict"] == {
        "kind": "unknown", "inflow_per_s": None, "drain_per_s": None, "caught_up_in_s": None,
    }  # fmt: skip


async def test_the_age_of_the_figures_follows_no_clock_that_somebody_sets() -> None:
    """Figures that are ten minutes old look new if the clock was set back by an hour, and nobody would be told."""
    shown = ShownStatus()
    shown.runtime.now += 30
    assert shown.view.age_s() == 30, "none yet: since the server began to look"
    await shown.sample()
    shown.runtime.now += 600
    assert shown.view.age_s() == 600


async def test_a_tier_that_is_down_is_told_first() -> None:
    shown = ShownStatus()
    shown.down["long-term tier"] = UnavailableError("connection refused")
    await shown.sample()
    said = (await get(shown, "/status.json")).json()
    assert said["level"] == "unknown"
    assert said["headline"].startswith("The long-term tier does not answer")
    assert said["orders"][0]["type"] == "tiered check"


async def test_a_full_disk_is_told_although_every_question_is_answered() -> None:
    """Reads succeed on a full disk, and so does the cheap question. Only recovery's own writes fail."""
    shown = ShownStatus()
    await shown.sample()
    shown.worker.outages.suspect("changelog", UnavailableError("the disk is full: free some space"))
    shown.worker.outages.confirm()
    shown.runtime.now += 20
    ready = await get(shown, "/readyz")
    assert ready.status_code == 503
    assert ready.json()["reasons"] == ["the changelog does not answer recovery: the disk is full: free some space"]
    said = (await get(shown, "/status.json")).json()
    assert said["level"] == "unknown" and said["headline"].startswith("The changelog does not answer, so recovery waits.")
    [changelog, *others] = said["services"]
    assert changelog == {
        "name": "changelog", "answers": False, "for_s": 20.0, "error": "the disk is full: free some space", "last_outage": None,
        "calls": None, "failed": None,
    }  # fmt: skip
    assert all(each["answers"] for each in others) and said["orders"][0]["type"] == "tiered check"
    shown.worker.outages.answered("changelog")
    assert (await get(shown, "/readyz")).status_code == 200


async def test_the_last_outage_of_a_service_is_told_whoever_met_it() -> None:
    shown = ShownStatus()

    async def told() -> list[Any]:
        await shown.sample()
        return [each["last_outage"] for each in (await get(shown, "/status.json")).json()["services"]]

    assert await told() == [None, None, None], "a service that was not asked before was not out"
    shown.down["long-term tier"] = UnavailableError("connection refused")
    assert await told() == [None, None, None], "it is not over"
    shown.runtime.now += 60
    del shown.down["long-term tier"]
    await shown.sample()
    shown.runtime.now += 30
    assert await told() == [None, None, {"began_s_ago": 90.0, "ended_s_ago": 30.0}]
    shown.worker.outages.suspect("long_term", ConfigurationError("the bucket refuses to delete"))
    shown.worker.outages.confirm()
    shown.runtime.now += 10
    shown.worker.outages.answered("long_term")
    shown.runtime.now += 1
    assert await told() == [None, None, {"began_s_ago": 11.0, "ended_s_ago": 1.0}]


async def test_a_daemon_that_may_not_delete_says_why_and_names_no_object() -> None:
    shown = ShownStatus()
    await shown.sample()
    refusal = ConfigurationError(f"the bucket refuses to delete {NAME}/{STUCK_ID}: grant roles/storage.objectUser")
    shown.worker.outages.suspect("long_term", refusal)
    shown.worker.outages.confirm()
    said = (await get(shown, "/status.json")).json()
    assert said["headline"].startswith("The long-term tier refuses what is asked of it, so entries wait.")
    assert "photos" not in json.dumps(said) and said["services"][2]["error"].startswith("the bucket refuses to delete")


@pytest.mark.parametrize("answered", [True, False])
async def test_a_daemon_that_does_nothing_is_not_green(answered: bool) -> None:
    """Its reports go on, so it counts as alive, and nothing waits yet: `/readyz` said 503 beside a green page."""
    shown = ShownStatus()
    if not answered:
        shown.worker.answered_at = None
    shown.runtime.now += 200
    await shown.sample()
    assert (shown.view.status() or {})["level"] == "ok", "it may still be in its first pass"
    shown.runtime.now += 200
    await shown.sample()
    said = (await get(shown, "/status.json")).json()
    assert said["level"] == "unknown" and said["orders"][-1]["type"] is None
    assert said["headline"].startswith("This daemon does nothing: no pass has read the changelog for 7 min. Recovery keeps up.")
    assert (await get(shown, "/readyz")).status_code == 503


async def test_an_outage_that_nobody_met_again_is_over() -> None:
    """Another daemon did the work that was refused here, so this one never learns that it is allowed now."""
    shown = ShownStatus()
    shown.worker.outages.suspect("long_term", ConfigurationError("not allowed"))
    shown.worker.outages.confirm()
    shown.runtime.now += 3600
    shown.worker.answered_at = shown.runtime.now
    await shown.sample()
    assert (await get(shown, "/readyz")).status_code == 200


async def test_a_bug_in_a_look_is_shown_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    shown = ShownStatus(ZeroDivisionError("a bug"))
    await shown.sample()
    await shown.sample()
    assert (await get(shown, "/status.json")).json()["sample"]["error"] == "a bug"
    assert [record.getMessage() for record in caplog.records] == ["status_failed: a bug"]


# --- names of objects ------------------------------------------------------------------------------


def log_three(shown: ShownStatus) -> None:
    """A line with the name as an argument, one as a newer one with fields, and one with it in an error alone."""
    logger = logging.getLogger("tests.three")
    logger.setLevel(logging.INFO)
    logger.addHandler(shown.decisions)
    try:
        logger.info("recovered id=%s object=%s owner_was=%s: %s", STUCK_ID, NAME, "store-1", "its put did not take effect")
        logger.info("recovered object=%s: done", NAME, extra={"event": "recovered", "fields": {"object": NAME}})
        logger.error("entry_parked key=%s: %s", BROKEN_KEY, f"the row of {NAME} breaks the format")
    finally:
        logger.removeHandler(shown.decisions)


@pytest.mark.parametrize("address", ["/status.json", "/recent.json", "/readyz", "/metrics", "/"])
async def test_no_object_is_named_unless_the_settings_say_so(address: str) -> None:
    shown = ShownStatus(stuck())
    shown.down["long-term tier"] = UnavailableError(f"cannot read {NAME}/{STUCK_ID}: timeout")
    log_three(shown)
    await shown.sample()
    text = (await get(shown, address)).text
    for part in ("photos", "org.17", "holiday", "pictures", "cat.jpg"):
        assert part not in text


async def test_hidden_names_leave_the_reason_and_the_command() -> None:
    shown = ShownStatus(stuck())
    log_three(shown)
    await shown.sample()
    [one, broken] = (await get(shown, "/status.json")).json()["stuck"]["entries"]
    assert one["object"] == "…"
    assert one["error"].startswith("failed 5 times, at last with: the row … does not match its checksum: bytes on the disk have changed")
    assert one["type"] == f"tiered log retry {STUCK_ID}"
    assert broken["error"] == "the entry cannot be read"
    texts = [decision["text"] for decision in (await get(shown, "/recent.json")).json()["decisions"]]
    assert texts[2] == f"id={STUCK_ID} object=… owner_was=store-1: its put did not take effect"
    assert texts[0].startswith(f"key={BROKEN_KEY}: the row of …")


async def test_names_are_shown_if_the_settings_say_so() -> None:
    shown = ShownStatus(stuck(), show_objects=True)
    log_three(shown)
    await shown.sample()
    assert (await get(shown, "/status.json")).json()["stuck"]["entries"][0]["object"] == NAME
    decisions = (await get(shown, "/recent.json")).json()["decisions"]
    assert decisions and all(NAME in decision["text"] for decision in decisions)


# --- metrics and what is remembered --------------------------------------------------------------


async def test_metrics_are_those_of_the_registry() -> None:
    shown = ShownStatus()
    Gauge("tiered_test_figure", "A figure.", registry=shown.registry).set(7)
    answer = await get(shown, "/metrics")
    assert "tiered_test_figure 7.0" in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


async def test_points_have_ages_and_a_failed_look_is_a_gap() -> None:
    shown = ShownStatus()
    await shown.sample()
    shown.runtime.now += 5
    shown.status = unanswered()
    await shown.sample()
    shown.runtime.now += 5
    history = (await get(shown, "/recent.json")).json()["history"]
    assert history == {"age_s": [10.0, 5.0], "inflow": [12.4, None], "drain": [12.5, None], "backlog": [12, None]}
