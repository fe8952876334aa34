"""The order in which the audit reads (docs/protocol/readings.py): only this one is right, and each look is needed."""

from __future__ import annotations

import pytest

from docs.protocol.readings import Readings
from docs.protocol.search import check
from tests.suites import share

LIVE, CLEANED, LOST = "LIVE", "CLEANED", "LOST"


def broken(order: str, against: str) -> bool:
    return bool(check(Readings(order, against), until=against).found)


@pytest.mark.night
@pytest.mark.parametrize("row", ["x", ""])
def test_the_audit_accuses_nothing_that_is_in_use_or_being_cleaned_up_in_any_schedule(row: str) -> None:
    result = check(Readings("LCRchr", row=row))
    assert str(result) == "holds", result.found


@pytest.mark.night
def test_one_look_in_the_right_order_never_accuses_what_is_live() -> None:
    result = check(Readings("LCR", LIVE))
    assert str(result) == "holds", result.found


@pytest.mark.parametrize("order", ["LRC", "CLR", "CRL", "RLC", "RCL"])
def test_one_look_in_any_other_order_accuses_what_is_live(order: str) -> None:
    assert broken(order, LIVE)


@pytest.mark.parametrize(
    ("order", "violation"),
    [
        *share([
            ("LCR", CLEANED), ("LCR", LOST),
            ("LCRhr", CLEANED),  # without the log
            ("LCRhcr", CLEANED),  # a blob that goes between the two, with its entry
            ("LCRcrh", LOST),  # a row that is looked at before the blob
        ], 5),
        *(pytest.param(order, CLEANED, marks=pytest.mark.night) for order in ("LRCchr", "CLRchr", "CRLchr", "RLCchr", "RCLchr")),
    ],
)  # fmt: skip
def test_every_other_pair_of_looks_accuses_somebody_falsely(order: str, violation: str) -> None:
    assert broken(order, violation)
