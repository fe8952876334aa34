"""`tiered audit delete` and `restore`, as they are typed."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import anyio
import pytest

from recovery.audit.deleting.losses import Loss, RestoreOutcome
from recovery.audit.deleting.quarantine import CopyOutcome
from recovery.audit.deleting.restoring import RestoredLosses
from recovery.cli.audit.delete import LOSSES_PRINTED, _show_restored_losses
from tests.given.command_line import Command
from tests.given.deleted_store import OBJECTS, ORPHANS, blobs, embedded_with_orphans
from tests.given.deletion_process import settings_of

pytestmark = pytest.mark.slow

AT_MOST = ("--class", "orphan", "--at-most", "25")


@pytest.fixture
def tiered(tmp_path: Path) -> Command:
    anyio.run(embedded_with_orphans, tmp_path)
    return Command(tmp_path)


def count(tiered: Command) -> int:
    return len(anyio.run(blobs, settings_of(tiered.store)))


def test_without_yes_nothing_is_deleted_and_it_says_what_would_be(tiered: Command) -> None:
    out = tiered("audit", "delete", "run", *AT_MOST)
    assert out.startswith("orphans    25 blobs, 250 B, less than $0.01 a month\n")
    assert "nothing was deleted: give --yes to delete" in tiered.errors
    assert count(tiered) == OBJECTS + ORPHANS


def test_what_is_refused_is_told_one_sentence_a_line_and_ends_with_2(tiered: Command) -> None:
    for more in ((), ("--yes",)):
        tiered("audit", "delete", "run", "--class", "orphan", *more, code=2)
        assert tiered.errors.splitlines() == [
            "tiered: nothing would be deleted: the run found 25 orphans among 37 blobs, more than 1%:"
            " say that it is meant with --at-most 25"
        ]
    assert count(tiered) == OBJECTS + ORPHANS


def test_orphans_are_deleted_set_aside_and_restored(tiered: Command) -> None:
    out = tiered("audit", "delete", "run", *AT_MOST, "--yes", "--quarantine", "november")
    assert out == "deleted    25 blobs, 250 B: it was an orphan, and is deleted\n"
    tiered("audit", "delete", "run", *AT_MOST, "--yes", "--quarantine", "november")
    assert "nothing was deleted now: an earlier call has looked at every candidate of this run" in tiered.errors
    noted = r"copies     25 blobs, 250 B, noted below ~quarantine/november/[0-9a-f-]{36}/\n"
    there = "there      25 blobs, 250 B: the copy is there now\n"
    assert re.fullmatch(noted + there, tiered("audit", "restore", "run"))
    assert "nothing was restored: give --yes to restore" in tiered.errors
    assert "restored   25 blobs" in tiered("audit", "restore", "run", "--yes")
    assert count(tiered) == OBJECTS + ORPHANS
    tiered("audit", "delete", "run", *AT_MOST, "--yes", "--quarantine", "november")
    assert "did then what is shown; what is there now takes a new audit" in tiered.errors, "the blobs are back"
    for code, told in ((0, CopyOutcome.BACK), (2, CopyOutcome.LOST)):
        for blob in (tiered.store / "blobs").iterdir() if told is CopyOutcome.LOST else ():
            blob.unlink()
        gone = re.escape(f"{told.value:<11}25 blobs: {told.meaning}\n")
        assert re.fullmatch(noted + gone, tiered("audit", "restore", "run", code=code)), "it promised copies that were gone"
        assert "nothing was restored, and no copy is there to restore" in tiered.errors and "--yes" not in tiered.errors
    assert re.fullmatch(noted + gone, tiered("audit", "restore", "run", "--yes", code=2)), "it ended with 0 although nothing came back"


@pytest.mark.usefixtures("without_workers")
def test_a_run_without_orphans_was_told_that_an_earlier_call_had_deleted_them(tiered: Command) -> None:
    tiered("audit", "run", "--engine", "local", "--parallel", "1", "--to", "clean", "--grace", "24h", code=0)
    for more in ((), ("--yes",)):
        assert tiered("audit", "delete", "clean", "--class", "orphan", *more).count("deleted") == 0
        assert "nothing was deleted: the run names no orphan that may be deleted" in tiered.errors


def test_json_tells_the_same(tiered: Command) -> None:
    told = json.loads(tiered("audit", "delete", "run", *AT_MOST, "--yes", "--json"))
    assert told["fates"] == {"deleted": {"number": 25, "size": 250}} and (told["left"], told["deleted"]) == (0, True)


@pytest.mark.parametrize(("arguments", "sentence"), [
    (("--class", "legacy_orphan"), "findings of the class legacy_orphan are never deleted, because it has no revision"),
    (("--class", "dangling"), "findings of the class dangling are never deleted, because its blob is gone already"),
    ((*AT_MOST, "--quarantine", "/"), "--quarantine '/' is no label"),
    ((*AT_MOST, "--master", "local", "--yes"), "--master local is Spark's"),
    (("--class", "orphan", "--at-most", "24"), "the run found 25 orphans, and --at-most says 24"),
])  # fmt: skip
def test_a_wrong_call_is_refused_in_one_sentence(tiered: Command, arguments: tuple[str, ...], sentence: str) -> None:
    tiered("audit", "delete", "run", *arguments, code=2)
    assert sentence in tiered.errors
    assert count(tiered) == OBJECTS + ORPHANS


def test_a_directory_without_a_run_is_refused(tiered: Command) -> None:
    tiered("audit", "delete", "nowhere", "--class", "orphan", code=2)
    assert "holds no run of an audit" in tiered.errors
    tiered("audit", "restore", "run", code=2)
    assert "nothing was deleted because of it" in tiered.errors
    tiered("audit", "restore", "run", "--class", "dangling", code=2)
    assert "nobody can ask this tier whether it keeps what was deleted" in tiered.errors
    tiered("audit", "restore", "run", "--class", "orphan", code=2)
    assert "--class 'orphan' cannot be restored: give --class dangling, or leave it out" in tiered.errors


def test_what_became_of_lost_blobs_is_told_blob_by_blob(capsys: pytest.CaptureFixture[str]) -> None:
    found = RestoredLosses(("a file is not there",), 0, Counter(), Counter(), [])
    found.add(Loss("media/objects/a", RestoreOutcome.RESTORABLE, "7", 2048, 0, 86_400_000_000_000))
    for number in range(LOSSES_PRINTED):
        found.add(Loss(f"media/objects/{number}", RestoreOutcome.NOT_KEPT))
    found.add(Loss("media/objects/empty", RestoreOutcome.RESTORED, "8", 0, 0, None))
    _show_restored_losses(found, done=False, as_json=False)
    out, errors = capsys.readouterr()
    assert "restored   1 blob, 0 B: its row names it, and it is there again" in out.splitlines()
    assert out.splitlines()[:3] + out.splitlines()[4:5] == [
        "dangling   102 blobs: what the run calls so",
        "not_kept   100 blobs: the bucket keeps no deleted generation of it, neither soft-deleted nor noncurrent: it is lost, unless a"
        " backup has it",
        "restorable 1 blob, 2.0 KiB: the bucket keeps it, and a tombstone names it",
        "  restorable media/objects/a: generation 7, 2.0 KiB, deleted 1970-01-01 00:00:00 UTC, kept until 1970-01-02 00:00:00 UTC",
    ]
    assert "the run may not name all that is lost: a file is not there" in errors
    assert "2 blobs more: --json shows the first 102" in errors and "nothing was restored: give --yes to restore" in errors
    for end in (RestoreOutcome.THERE, RestoreOutcome.NOT_NAMED, RestoreOutcome.NOT_KEPT, RestoreOutcome.LOGGED):
        vain = RestoredLosses((), 0, Counter(), Counter(), [])
        vain.add(Loss("media/objects/a", end, "7", 5, 0, None))
        _show_restored_losses(vain, done=False, as_json=False)
        out, errors = capsys.readouterr()
        assert "nothing was restored, and nothing of this run is to be restored" in errors and "--yes" not in errors
        assert out.endswith("kept as long as the bucket keeps noncurrent generations\n")
    _show_restored_losses(found, done=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["lost"], told["left_out"], told["ends"]["restorable"]) == (102, 0, {"number": 1, "size": 2048})
    assert [each["end"] for each in told["blobs"][:2]] == ["restorable", "not_kept"]
