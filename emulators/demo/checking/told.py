"""What callers of a run were told, and what is stored after it, as a history that others can judge.

What is stored is read by a last caller, `check`, when all processes have ended. An object that is lost or broken is
left out there: the check has counted it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from emulators.histories.written import NOTHING, HistoryAnswer, HistoryCall
from recovery.prove.judge import ABSENT, CallAnswer, Content, JournaledCall, JournaledKind

ANSWERS = {CallAnswer.OK: HistoryAnswer.OK, CallAnswer.NO: HistoryAnswer.NO, CallAnswer.FAILED: HistoryAnswer.FAILED}
"""All others know nothing of what became of it."""
WRITTEN_BY_NOBODY = "written by nobody"


def history(calls: Collection[JournaledCall], contents: Mapping[str, Content | None], looked: float) -> Iterator[HistoryCall]:
    """`contents`: what was stored at the moment `looked`, in seconds."""
    objects, digests = set[str](), {each.id: each.digest for each in calls}
    for each in calls:
        objects.add(each.object)
        process, answer = each.id.partition("-")[0], ANSWERS.get(each.answer, HistoryAnswer.UNKNOWN)
        over = _over(each, digests)
        yield HistoryCall(process, each.object, each.kind, each.digest or NOTHING, each.began, each.ended, answer, over)
    for path in sorted(objects | contents.keys()):
        content = contents.get(path)
        if content is not None or path not in contents:
            found = NOTHING if content is None else content.digest
            yield HistoryCall("check", path, JournaledKind.GET, found, looked, looked, HistoryAnswer.OK)


def _over(call: JournaledCall, digests: Mapping[str, str | None]) -> str | None:
    """Returns the value that its condition wants, or None if it has no condition."""
    if call.condition is None or call.condition == ABSENT:
        return None if call.condition is None else NOTHING
    return digests.get(call.wanted or "") or WRITTEN_BY_NOBODY
