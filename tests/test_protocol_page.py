"""The numbers of the protocol have one table, in `docs/protocol.md`: it has the code's, and its pages say no others."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from recovery.stray_uploads import STRAY_AGE_S
from tests.given.repository import ROOT
from tiered.embedded.blobs import EXPIRED_SLACK_NS
from tiered.metadata import NS_PER_S
from tiered.protocol.assembling import COMPLETION_MS
from tiered.protocol.writing import ASKED_AGE_MAX_S
from tiered.services.backends import MARK_AGE_MAX_S, SWAP_AGE_MAX_S, SWAP_DEADLINE_S
from tiered.settings import Settings

SETTINGS = Settings(directory="unused")
NUMBERS = {
    "SWAP_AGE_MAX_S": SWAP_AGE_MAX_S,
    "SWAP_DEADLINE_S": SWAP_DEADLINE_S,
    "MARK_AGE_MAX_S": MARK_AGE_MAX_S,
    "ASKED_AGE_MAX_S": ASKED_AGE_MAX_S,
    "COMPLETION_MS": COMPLETION_MS / 1000,
    "lease.heartbeat_interval_s": SETTINGS.lease.heartbeat_interval_s,
    "lease.expiry_s": SETTINGS.lease.expiry_s,
    "recovery.late_upload_grace_s": SETTINGS.recovery.late_upload_grace_s,
    "STRAY_AGE_S": STRAY_AGE_S,
    "EXPIRED_SLACK_NS": EXPIRED_SLACK_NS / NS_PER_S,
}
SECONDS = {"s": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "day": 86_400}
WORDS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3}
DURATION = re.compile(rf"\b(\d+|{'|'.join(WORDS)})\s+({'|'.join(SECONDS)})s?\b")
PROTOCOL = (ROOT / "docs/protocol.md").read_text("utf-8")
PAGES = ("docs/protocol.md", "docs/architecture.md", "docs/glossary.md")


def durations(text: str) -> dict[str, float]:
    """What the text says in numbers of days, hours, minutes and seconds: the words, and how many seconds they are."""
    return {found[0]: (WORDS.get(found[1]) or int(found[1])) * SECONDS[found[2]] for found in DURATION.finditer(text)}


def others(text: str, numbers: Mapping[str, float]) -> list[str]:
    """The durations in a text that are none of these."""
    return [words for words, seconds in durations(text).items() if seconds not in numbers.values()]


def in_the_table() -> dict[str, float]:
    section = PROTOCOL.partition("## Numbers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", section, re.M)
    return {name: seconds for name, cell in rows for seconds in durations(cell).values()}


def test_each_number_of_the_table_is_that_of_the_code() -> None:
    assert in_the_table() == NUMBERS


@pytest.mark.parametrize("page", PAGES)
def test_its_pages_say_no_other_number(page: str) -> None:
    assert others((ROOT / page).read_text("utf-8"), NUMBERS) == []


def test_the_marks_are_kept_for_as_long_as_the_format_says() -> None:
    (kept,) = re.findall(r"^ff +GC: max age (\d+ days)", (ROOT / "docs/format.md").read_text("utf-8"), re.M)
    assert durations(kept) == {kept: MARK_AGE_MAX_S}


@pytest.mark.parametrize("said", ["three days", "16 min", "an hour", "15\nminutes", "one day", "40 s"])
def test_a_number_that_the_code_has_not_is_found(said: str) -> None:
    assert others(f"It waits {said}, or two days, or 48 h.", {"MARK_AGE_MAX_S": MARK_AGE_MAX_S}) == [said]
