"""No surface is greener than the truth: each fault is planted in a real store, and all of them are asked."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from emulators.postgres.server import SAFE
from recovery.states import KEEPS_UP, Level, words
from tests.claims.faults import FAULTS, NAME, Fault, FaultyStore
from tests.claims.faults_on_servers import ON_SERVERS, ServedStore
from tests.conftest import postgres_or_skip
from tests.given.alerts import ALERTS, firing
from tests.given.small_disk import Mount, mount
from tests.given.surfaces import Surfaces, ask
from tests.suites import share

__all__ = ["mount"]  # a fixture

GREEN = ("Recovery keeps up", "is catching up")
GOOD = words(KEEPS_UP)
SILENT_SOON = partial(patch, "recovery.status.look.SILENCE_MAX_S", 3.0)
"""How long a daemon may be silent, so that nobody waits a minute for one that stands still."""
PAGES = {rule["alert"] for rule in ALERTS if rule["labels"]["severity"] == "page"}
PUSHED = ("rows_away", "deletes_denied")
"""On servers, one of them at each push: a service is away, or one refuses. Each takes 15 s; a killed daemon, 40 s."""
KNOWN = (
    "lost_and_audited", "payload_rotten_and_read", "lost_beside_a_narrow_clean_audit", "lost_and_audited_in_part", "lost_and_read",
    "blobs_emptied_and_recovered", "stuck",
)
"""What the changelog knows to be lost, perhaps lost, or stuck: `check` and `status` say the same of it."""
GREENEST_FIRST = (Level.OK, Level.UNKNOWN, Level.BEHIND, Level.STUCK, Level.LOST)


@pytest.mark.parametrize("name", FAULTS)
def test_no_surface_is_greener_than_the_truth(name: str, tmp_path: Path, mount: Mount) -> None:
    fault = FAULTS[name]
    ground = FaultyStore(tmp_path, mount)
    if name.startswith("disk_"):
        ground.store.mkdir()
        mount(ground.store, "-t", "tmpfs", "-o", "size=4m", "tiered-test")
    with ground.held:
        ground.put_all()
        fault.plant(ground)
        said = ask(ground, ground.settings, None if fault.show is None else NAME)
    judge(fault, said, ground, tmp_path)
    if name in KNOWN:
        orders = [order["why"] for order in said.status["orders"] if "lost" in order["why"] or "Readers" in order["why"]]
        assert said.check_code in (4, 6) and (orders or name == "stuck")
        assert all(order in said.check for order in orders), said.check


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    *share(PUSHED, 2), *(pytest.param(name, marks=pytest.mark.night) for name in ON_SERVERS if name not in PUSHED),
])  # fmt: skip
def test_no_surface_is_greener_than_the_truth_on_servers(name: str, tmp_path: Path, versitygw_url: str) -> None:
    fault = ON_SERVERS[name]
    with postgres_or_skip(SAFE) as server, SILENT_SOON():
        ground = ServedStore(tmp_path, server, versitygw_url)
        with ground.held:
            ground.start()
            before = ground.show()
            fault.plant(ground)
            ground.await_notice(fault)
            said = ask(ground, ground.settings, None, partial(ground.served, before))
            judge(replace(fault, show=None), said, ground, tmp_path)


def judge(fault: Fault, said: Surfaces, ground: FaultyStore, directory: Path) -> None:
    """`status` or the page are empty where the store cannot be opened, or the daemon cannot be reached."""
    shown = [each for each in (said.status, said.page) if each]
    for each in shown:
        assert GREENEST_FIRST.index(each["level"]) >= GREENEST_FIRST.index(fault.level), f"{each['level']}: {said.text}"
        green = [words for words in GREEN if words in each["headline"] and words not in fault.says.get("headline", "")]
        assert fault.level is Level.OK or not green, each["headline"]
        verdict = each["sources"].get("recovery", {}).get("verdict", {}).get("kind")
        assert not (each["level"] == "unknown" and (each["away"] or not each["store"]["answers"])) or verdict not in GOOD
    if said.page:
        assert said.gauge(f'tiered_status_level{{level="{said.page["level"]}"}}') == 1
    codes = {"status": said.code, "feed status": said.feed_code, "check": said.check_code, "audit show": said.shown_code}
    assert codes == {"status": fault.code, "feed status": fault.feed, "check": fault.check, "audit show": fault.show}, said.all_text
    assert bool(said.reasons) == ("ready" in fault.says), said.reasons
    surfaces = {"text": said.text, "feed": said.feed, "check": said.check, "ready": " ".join(said.reasons)}
    for where, part in fault.says.items():
        for text in [each["headline"] for each in shown] if where == "headline" else (surfaces[where],):
            assert part in text, f"{where}: {text}"
    for gauge, least in fault.metrics.items():
        assert (said.gauge(gauge) or 0) >= least, gauge
    fired, wanted = firing([said.scraped, *ground.services], directory), named(fault)
    if isinstance(ground, ServedStore) and wanted:  # how far a daemon has come then is chance, and more tickets may say so
        assert wanted <= fired and fired & PAGES <= wanted, f"{fired} fire if it stays so for a day"
    else:
        assert fired == wanted, "these fire if it stays so for a day"


def named(fault: Fault) -> set[str]:
    return {f"Tiered{name}" for name in fault.alerts.split()}


def test_every_alert_is_fired_by_its_real_cause() -> None:
    """A row of `FAULTS` or `ON_SERVERS` for a new alert, with what makes it fire."""
    rules = {rule["alert"] for rule in ALERTS}
    assert set().union(*map(named, (*FAULTS.values(), *ON_SERVERS.values()))) == rules
