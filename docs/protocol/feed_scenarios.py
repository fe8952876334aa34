"""The scenarios of the feed model, and for each guard the scenario that shows what it is for."""

from __future__ import annotations

from typing import NamedTuple

from docs.protocol.feed_state import Scenario

PUT, DELETE = True, False

SCENARIOS: dict[str, Scenario] = {
    # one object, over a blob that is published
    "put": Scenario(changes=((0, PUT),)),
    "put and put": Scenario(),
    "put and delete": Scenario(changes=((0, PUT), (0, DELETE))),
    "from nothing": Scenario(rows=(False,), changes=((0, PUT), (0, DELETE))),
    "single request": Scenario(changes=((0, PUT),), single=True),
    "commit without an answer": Scenario(rows=(False,), changes=((0, PUT), (0, DELETE)), retries=1, lives=1),
    "each commit counts": Scenario(rows=(False,), changes=((0, PUT), (0, DELETE)), counts_each=True),
    "reconciliation": Scenario(changes=((0, PUT),), reconciliations=1),
    # the gap and the snapshot
    "gap": Scenario(gaps=1, lives=1),
    "gap, two objects": Scenario(rows=(True, True), changes=((0, PUT), (1, PUT)), gaps=1, lives=1),
    "snapshot": Scenario(rows=(True, True), indexed=False, changes=((0, PUT),)),
    "snapshot and gaps": Scenario(indexed=False, gaps=2, lives=1),
    # what the sink has
    "sink": Scenario(changes=((0, PUT),), sink=True),
    "sink, staged again": Scenario(sink=True, retries=1, lives=1),
    "batches": Scenario(rows=(True, True), changes=((0, PUT), (1, PUT)), batches=True, lives=1),
    # larger
    "two objects": Scenario(rows=(True, True), changes=((0, PUT), (1, PUT)), small=False),
    "three changes": Scenario(changes=((0, PUT), (0, PUT), (0, DELETE)), lives=1, small=False),
    "three lives": Scenario(lives=3, small=False),
    "gap, two lives": Scenario(gaps=1, small=False),
    "snapshot and gap, two lives": Scenario(rows=(True, True), indexed=False, changes=((0, PUT),), gaps=1, small=False),
    "sink, two changes": Scenario(sink=True, small=False),
    "sink, two changes, staged again": Scenario(changes=((0, PUT), (0, DELETE)), sink=True, retries=1, small=False),
    "two lives, without an answer": Scenario(retries=1, small=False),
    "sink and gap": Scenario(sink=True, gaps=1, lives=1, small=False),
    "sink, snapshot": Scenario(rows=(True, True), indexed=False, changes=((0, PUT),), sink=True, small=False),
}


class KnockOut(NamedTuple):
    scenario: str
    kind: str
    protects: str


KNOCK_OUTS: dict[str, KnockOut] = {
    "compare": KnockOut("put", "TWICE", "one writer at a time: an older life commits what it read long ago"),
    "raise_epoch": KnockOut("from nothing", "EARLY", "fence: hints without a difference change no checkpoint, so they fence nobody"),
    "own_epoch": KnockOut("from nothing", "EARLY", "fence: two lives open with the same value, and both are told that they did"),
    "reopen": KnockOut("commit without an answer", "EARLY", "fence: a commit arrives after its writer has gone on"),
    "compare_unchanged": KnockOut("from nothing", "EARLY", "hints: an older life compares with an index that is behind the checkpoint"),
    "commit_first": KnockOut("sink, staged again", "LEAKED", "readers: updates are out that no transaction has"),
    "bootstrap": KnockOut("sink", "STUCK", "readers: progress has to begin at 0"),
    "versions": KnockOut("put and put", "TWICE", "index: an older life writes its entry late"),
    "redo": KnockOut("put", "TWICE", "index: who committed died before it wrote its entry"),
    "wait": KnockOut("put", "EARLY", "blobs: a blob goes while the feed still shows it"),
    "doomed_by_row": KnockOut("put and put", "EARLY", "blobs: a later change replaces what the feed has just found live"),
    "gap_first": KnockOut("gap", "EARLY", "gap: recovery deletes what the feed shows"),
    "gap_anew": KnockOut("snapshot and gaps", "EARLY", "gap: the pass under way has been at that row before"),
    "settle_before_gap": KnockOut("gap", "EARLY", "gap: a later change replaces what the pass has just found live"),
    "withhold": KnockOut("gap, two objects", "WRONG", "gap and snapshot: rows that the pass has not reached"),
    "settle_before_keep": KnockOut("put", "LOST", "hints: a swap takes effect after its hint is gone"),
    "forward": KnockOut("sink, staged again", "LEAKED", "readers: a time that is complete gets other updates"),
    "new_names": KnockOut("sink, staged again", "LEAKED", "staged bytes: an older copy of them is written late"),
    "journal_removed": KnockOut("sink", "SPOILT", "journal: an older life enters again what was removed with its bytes"),
    "last_bytes": KnockOut("sink", "SPOILT", "staged bytes: a new life needs them to redo the last commit"),
    "grace": KnockOut("single request", "LEAK", "blobs: an upload in a single request lands after the clean-up"),
    "all_hints": KnockOut("two objects", "WRONG", "frontier: it shows all changes that were over when the hints were read"),
}
