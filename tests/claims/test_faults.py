"""No surface is greener than the truth: each fault is planted in a real store, and all of them are asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.status.known import StatusLevel
from tests.claims.faults import FAULTS, NAME, FaultyStore
from tests.given.small_disk import Mount, mount
from tests.given.surfaces import ask

__all__ = ["mount"]  # a fixture

GREENEST_FIRST = (StatusLevel.OK, StatusLevel.UNKNOWN, StatusLevel.BEHIND, StatusLevel.STUCK, StatusLevel.LOST)


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
    rank = GREENEST_FIRST.index(fault.level)
    for level in (said.status["level"], said.page["level"]):
        assert GREENEST_FIRST.index(level) >= rank, f"{level}: {said.text}"
        assert said.gauge(f'tiered_status_level{{level="{said.page["level"]}"}}') == 1
    codes = {"status": said.code, "feed status": said.feed_code, "check": said.check_code, "audit show": said.shown_code}
    assert codes == {"status": fault.code, "feed status": fault.feed, "check": fault.check, "audit show": fault.show}, said.all_text
    assert bool(said.reasons) == ("ready" in fault.says), said.reasons
    shown = {"text": said.text, "feed": said.feed, "check": said.check, "ready": " ".join(said.reasons)}
    for where, part in fault.says.items():
        for text in (said.status["headline"], said.page["headline"], said.text) if where == "headline" else (shown[where],):
            assert part in text, f"{where}: {text}"
    for gauge, least in fault.metrics.items():
        assert (said.gauge(gauge) or 0) >= least, gauge
