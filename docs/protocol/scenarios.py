"""The scenarios, and for each guard the scenario that shows what the guard is for.

The object that is there first, `old`, was made by a swap. That swap's request may still be under way a second time
(`LATE`).
"""

from __future__ import annotations

from dataclasses import dataclass

from docs.protocol.appends import Appends, AppendScenario
from docs.protocol.leases import Claims, ClaimScenario
from docs.protocol.search import Checked, World
from docs.protocol.state import NOBODY, UPLOAD, Entry, Guards, Proc, Request, Scenario


def _procs(words: str) -> tuple[Proc, ...]:
    """Reads `large:A recover:R` as processes, each with its kind and name. `ask:Q:A` asks about A.

    `small-if-old:A` writes only over `old`, `small-if-absent:A` only over nothing.
    """
    return tuple(map(_proc, words.split()))


def _proc(word: str) -> Proc:
    what, name, *about = word.split(":")
    kind, _, wants = what.partition("-if-")
    only = "absent" if wants == "absent" else "revision" if wants else ""
    return Proc(kind, name, old="".join(about), only=only, wants=wants if only == "revision" else "")


LATE = (Request("swap", "old", "old", "blob"),)
BEGUN = Entry(UPLOAD, "session", NOBODY, assembling=True)
WON = BEGUN._replace(claimed=True)

SCENARIOS: dict[str, Scenario | ClaimScenario | AppendScenario] = {
    # one writer
    "large": Scenario("nothing", _procs("large:A recover:R")),
    "large over blob": Scenario("blob", _procs("large:A recover:R"), LATE),
    "single": Scenario("blob", _procs("single:A recover:R"), LATE),
    "small": Scenario("inline", _procs("small:A read:X")),
    "small over blob": Scenario("blob", _procs("small:A recover:R"), LATE),
    "delete": Scenario("blob", _procs("delete:D recover:R"), LATE),
    "delete inline": Scenario("inline", _procs("delete:D read:X")),
    # who else is there
    "reader": Scenario("blob", _procs("large:A read:X recover:R")),
    "two recoveries": Scenario("blob", _procs("single:A recover:R recover:S")),
    "late record": Scenario("blob", _procs("single:A recover:R recover:S"), echoes=True),
    "audit": Scenario("blob", _procs("large:A audit:X recover:R"), LATE),
    "claims": ClaimScenario(("R1", "R2", "S")),
    # two writers
    "small and small": Scenario("nothing", _procs("small:A small:B read:X")),
    "superseded": Scenario("blob", _procs("large:A large:B"), drains=False),
    "put and delete": Scenario("nothing", _procs("large:A delete:D recover:R")),
    "large and small": Scenario("nothing", _procs("large:A small:B recover:R")),
    "delete and small": Scenario("blob", _procs("delete:D small:B recover:R"), small=False),
    "large and large": Scenario("blob", _procs("large:A large:B recover:R"), small=False),
    "single and delete": Scenario("blob", _procs("single:A delete:D recover:R"), small=False),
    "two writers, reader": Scenario("blob", _procs("large:A delete:D read:X recover:R"), small=False),
    "two writers, two recoveries": Scenario("nothing", _procs("large:A delete:D recover:R recover:S"), small=False),
    # conditions
    "if revision": Scenario("inline", _procs("small-if-old:A small-if-old:B")),
    "delete if revision": Scenario("inline", _procs("delete-if-old:D small:B read:X")),
    "delete twice if revision": Scenario("blob", _procs("delete-if-old:D delete-if-old:E"), drains=False),
    "large if revision": Scenario("blob", _procs("large-if-old:A recover:R"), LATE),
    "large if revision, deleted": Scenario("inline", _procs("large-if-old:A delete:D recover:R")),
    "two if revision": Scenario("blob", _procs("large-if-old:A large-if-old:B"), drains=False),
    "put and put if revision": Scenario("blob", _procs("large:A large-if-old:B"), drains=False),
    "if absent": Scenario("nothing", _procs("small-if-absent:A small-if-absent:B delete:D")),
    "large if absent": Scenario("nothing", _procs("large-if-absent:A small:B recover:R")),
    "if absent, expiry": Scenario("blob", _procs("small-if-absent:A touch:U recover:R"), mortal=True),
    "if absent and if A": Scenario("nothing", _procs("small-if-absent:A delete-if-A:D small-if-absent:B")),
    "large if revision and put": Scenario("blob", _procs("large-if-old:A large:B recover:R"), small=False),
    "large if revision and delete": Scenario("blob", _procs("large-if-old:A delete:D recover:R"), small=False),
    # a multipart upload
    "multipart": Scenario("nothing", _procs("complete:C complete:D recover:R"), begun=BEGUN),
    "multipart over blob": Scenario("blob", _procs("complete:C complete:D recover:R"), LATE, begun=BEGUN),
    "multipart and put": Scenario("blob", _procs("complete:C large:A recover:R"), begun=BEGUN, small=False),
    "multipart and delete": Scenario("blob", _procs("complete:C delete:E recover:R"), begun=BEGUN, small=False),
    "multipart, two days": Scenario("nothing", _procs("complete:C recover:R"), begun=BEGUN, ages=True),
    "multipart, two days, delete": Scenario("nothing", _procs("complete:C delete:E recover:R"), begun=BEGUN, ages=True, small=False),
    "multipart and audit": Scenario("nothing", _procs("complete:C complete:D audit:X"), begun=BEGUN, ages=True, drains=False),
    "multipart, replaced long ago": Scenario("blob", _procs("complete:D delete:E"), begun=WON, ages=True, drains=False),
    "appends": AppendScenario(("A", "B")),
    "appends, a part changed": AppendScenario(("A",), stray=True),
    "three append": AppendScenario(("A", "B", "C"), small=False),
    # deadlines
    "expiry": Scenario("blob", _procs("large:A recover:R"), LATE, mortal=True),
    "touch": Scenario("blob", _procs("delete:D touch:U recover:R"), mortal=True),
    "touch and read": Scenario("blob", _procs("touch:U read:X"), mortal=True),
    "upload twice": Scenario("nothing", _procs("single:A touch:U recover:R"), mortal=True, twice=True),
    "touch, read and put": Scenario("blob", _procs("single:A touch:U read:X recover:R"), mortal=True, small=False),
    # days
    "two days": Scenario("blob", _procs("large:A recover:R"), LATE, ages=True),
    "answered late": Scenario("nothing", _procs("large:A delete:D"), ages=True, drains=False),
    "asked": Scenario("nothing", _procs("large:A delete:D ask:Q:A recover:R")),
    "asked late": Scenario("nothing", _procs("large:A delete:D ask:Q:A"), ages=True, drains=False),
}


@dataclass(frozen=True, slots=True)
class KnockOut:
    """Without its guard, this scenario has a violation of this kind."""

    scenario: str
    kind: str
    protects: str


KNOCK_OUTS = {
    "refused_in_swap": KnockOut("large", "DANGLING", "I1, I4: a swap that lands after its blob was deleted"),
    "won_in_swap": KnockOut("put and delete", "LATE", "I4: a repeated swap that brings back what somebody deleted"),
    "settle_before_delete": KnockOut("large", "DANGLING", "I1, I2: a swap that lands between the look and the deletion"),
    "presence": KnockOut("touch", "DANGLING", "I1: an expired tombstone loses its blob, and a touch under way may revive it"),
    "settle_before_answer": KnockOut("large", "LATE", "I4: a swap that lands after its caller was told no"),
    "row_before_answer": KnockOut("delete", "FALSE-NO", "I4: a swap that won, and was replaced before it was settled"),
    "young_marks_answer": KnockOut("answered late", "FALSE-NO", "I4: a won mark that was collected before the answer"),
    "young_marks_outcome": KnockOut("asked late", "FALSE-NO", "I4: a won mark that was collected before somebody asked"),
    "age_bound": KnockOut("two days", "DANGLING", "I1: a swap that is sent after its refused mark was collected"),
    "touch_if_shown": KnockOut("touch", "DANGLING", "I1, I4: a touch that brings back what was replaced"),
    "touch_blob_first": KnockOut("touch and read", "DANGLING", "I1: a row that outlives its blob"),
    "create_only": KnockOut("upload twice", "DANGLING", "I1: a second arrival that takes a touch back"),
    "record_before_finalise": KnockOut("large", "LEAK", "I3: a blob that no entry names"),
    "held_before_finalise": KnockOut("single", "LEAK", "I3: a single request that is sent when recovery is done with it"),
    "cancel_session": KnockOut("large", "LEAK", "I3: a session that is finalised after its blob was deleted"),
    "late_cleanup": KnockOut("single", "LEAK", "I3: a single request that lands after its blob was deleted"),
    "settle_unknown_inline": KnockOut("small", "LATE", "I4: an inline write that lands after its caller was answered"),
    "inline_once": KnockOut("small and small", "LATE", "I4: its second copy, which no mark keeps from landing over a later write"),
    "absent_in_swap": KnockOut("if absent", "BLIND", "I4: a put `if_absent` over an object that came after its read"),
    "reserved_in_swap": KnockOut("if revision", "BLIND", "I4: a write `if_revision` over what replaced that revision after its read"),
    "write_ends_reservation": KnockOut("if revision", "BLIND", "I4: the same, though the revision was there a moment before"),
    "condition_in_answer": KnockOut("put and put if revision", "FALSE-OK", "I4: a conditional write that had no effect, and is told ok"),
    "condition_shown": KnockOut("put and put if revision", "FALSE-OK", "I4: ok for a put that would break the condition after it"),
    "false_after_refusal": KnockOut("if absent", "LATE", "I4: a put that lands after its caller was told that it may not"),
    "reread": KnockOut("reader", "FALSE-LOSS", "I4: a read during an overwrite"),
    "seal_before_refusal": KnockOut("multipart, two days", "DANGLING", "I1: an upload that is completed when its refused mark is gone"),
    "count_in_claim": KnockOut("multipart over blob", "LEAK", "I3: a claim given back late, which undoes another one"),
    "first_claim_young": KnockOut("multipart, replaced long ago", "LATE", "I1, I4: an upload that won, was replaced, and lost its marks"),
    "token_in_acknowledgement": KnockOut("appends", "TWICE", "I7: two appends at one offset that are both told ok"),
    "number_left_out": KnockOut("appends", "OVERWRITTEN", "I7: a process that stood still, and overwrites what others have appended"),
    "chain_in_completion": KnockOut("appends, a part changed", "MIXED", "I7: an object of parts that nobody acknowledged"),
    "heartbeat_if_same": KnockOut("claims", "SHARED", "no invariant: work is done twice, and forgotten entries come back"),
    "attempt_in_claim": KnockOut("claims", "SHARED", "no invariant: work is done twice"),
}


def world(name: str, guards: Guards) -> Checked:
    scenario = SCENARIOS[name]
    if isinstance(scenario, AppendScenario):
        return Appends(scenario, guards)
    return Claims(scenario, guards) if isinstance(scenario, ClaimScenario) else World(scenario, guards)
