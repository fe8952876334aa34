"""The pure decisions after a change, exhaustively.

The order of settling, deleting and forgetting is in tests/store/test_put.py, with crashes in tests/crash/.
"""

from __future__ import annotations

from itertools import product

import pytest

from changelog.base.errors import CorruptRecordError
from changelog.change import Change, ChangeId
from tiered.metadata import Metadata
from tiered.object_id import blob_name
from tiered.protocol.finishing import may_delete_legacy, may_tell_ok, token_of_new, waits_for_late_upload
from tiered.services.backends import Inline, Row, RowState, Tombstone

PATH = "a/objects/k"
ID, OLD, OTHER = (ChangeId(f"018bcfe5-6800-7000-8000-00000000000{n}") for n in (1, 2, 3))
NEW_BLOB, OLD_BLOB, OTHER_BLOB = (blob_name(PATH, token) for token in (ID, OLD, OTHER))
INLINE = Inline(Metadata(), b"")


@pytest.mark.parametrize(("live", "won", "old", "state"), list(product(
    (True, False), (True, False), (None, OLD_BLOB), (None, INLINE, Tombstone(OLD_BLOB), Tombstone(OTHER_BLOB)),
)))
def test_ok_is_told_iff_it_took_effect_or_another_tombstone_than_old_is_present(
    live: bool, won: bool, old: str | None, state: RowState
) -> None:
    change = Change(ID, PATH, NEW_BLOB, old)
    row = Row(state, won=frozenset({ID} if won else ()), refused=frozenset({OTHER}))
    superseded = isinstance(state, Tombstone) and state.target != old
    assert may_tell_ok(change, live, row) == (live or won or superseded)


def test_marks_of_other_changes_tell_nothing() -> None:
    assert not may_tell_ok(Change(ID, PATH, NEW_BLOB, OLD_BLOB), False, Row(None, won=frozenset({OTHER, OLD}), refused=frozenset({ID})))


@pytest.mark.parametrize(("state", "won", "deleted"), [
    (Tombstone(PATH), False, False), (Tombstone(PATH), True, False),
    (None, False, False), (None, True, True),
    (INLINE, False, True), (INLINE, True, True),
    (Tombstone(OTHER_BLOB), False, True), (Tombstone(OTHER_BLOB), True, True),
])
def test_legacy_blob_is_garbage_iff_the_row_proves_that_it_was_replaced(state: RowState, won: bool, deleted: bool) -> None:
    change = Change(ID, PATH, None, PATH)
    assert may_delete_legacy(change, Row(state, won=frozenset({ID} if won else ()))) is deleted


def test_token_of_a_put_is_its_revision_and_of_a_deletion_its_id() -> None:
    assert token_of_new(Change(ID, PATH, NEW_BLOB)) == ID
    assert token_of_new(Change(ID, PATH, None, OLD_BLOB)) == ID
    assert token_of_new(Change(ID, PATH, OTHER_BLOB)) == OTHER, "older software: what is settled is what may be deleted"


@pytest.mark.parametrize("new", ["b/objects/k/" + OTHER, PATH, PATH + "/", PATH + "/x/" + OTHER, OTHER])
def test_new_blob_that_is_no_revision_of_the_object_is_corrupt(new: str) -> None:
    with pytest.raises(CorruptRecordError, match="no revision"):
        token_of_new(Change(ID, PATH, new))


@pytest.mark.parametrize(("live", "new", "upload", "waits"), [
    (False, NEW_BLOB, None, True), (False, NEW_BLOB, "session", False), (True, NEW_BLOB, None, False), (False, None, None, False),
])
def test_only_an_aborted_single_request_upload_is_waited_for(live: bool, new: str | None, upload: str | None, waits: bool) -> None:
    assert waits_for_late_upload(Change(ID, PATH, new, None, upload), live) is waits
