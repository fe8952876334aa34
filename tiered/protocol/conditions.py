"""The condition of a write: what must be there for it to take effect.

    if_absent      nothing is there; what has expired by the clock of the caller's machine is not there
    if_revision    the object is there, has not expired by that clock, and its last write has this id

A condition is judged on a read of the row, and again by the swap itself, in one step with its effect
(`backends.Vacant`, `backends.Still`). An object may expire between the two: `if_revision` then still finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from changelog.base.errors import InvalidRequestError
from changelog.change import ChangeId
from tiered.errors import ConditionFailedError
from tiered.metadata import is_expired
from tiered.object_id import ObjectId, revision_of
from tiered.services.backends import Inline, Only, RowState, Still, Vacant
from tiered.text import check_flags, quoted


class Revision(Enum):
    """Stands for a revision where the caller names none."""

    ANY = "any revision, or no object at all"


ANY_REVISION: Final = Revision.ANY
"""As `if_revision`: there is no condition. For functions that pass on what their own caller wants."""
IfRevision = ChangeId | Literal[Revision.ANY]
"""What `if_revision` takes: `def save(photo: bytes, if_revision: IfRevision = ANY_REVISION)`."""


@dataclass(frozen=True, slots=True)
class Condition:
    """`revision`: the one that must be there; None: nothing may be there."""

    revision: ChangeId | None

    def holds(self, path: str, state: RowState, now_ns: int) -> bool:
        """Whether it holds in a row with this content. `now_ns`: the time by which expiry is judged (Unix ns)."""
        if state is None or is_expired(state.deadline_ns, now_ns):
            return self.revision is None
        return self.revision is not None and revision_shown(path, state) == self.revision

    def only(self, seen: RowState, judged_ns: int) -> Only:
        """The condition for the swap, after it held at `judged_ns` (Unix ns) for what was `seen`."""
        if self.revision is None:
            return Vacant(judged_ns)
        assert seen is not None, "it has a revision"
        return Still(seen)

    def failure(self, object_id: ObjectId, state: RowState, now_ns: int) -> ConditionFailedError:
        """The error for a caller whose condition does not hold."""
        if state is None or is_expired(state.deadline_ns, now_ns):
            return ConditionFailedError(object_id, None, f"it is not there, and revision {self.revision} was asked for")
        there = revision_shown(object_id.path, state)
        what = "an object without a revision, which older software wrote" if there is None else f"revision {there}"
        wanted = "the condition is that nothing is" if self.revision is None else f"revision {self.revision} was asked for"
        return ConditionFailedError(object_id, there, f"{what} is there, and {wanted}")


def revision_shown(path: str, state: RowState) -> ChangeId | None:
    """The revision that a reader sees. None: there is none, or older software wrote it."""
    if state is None:
        return None
    return state.token if isinstance(state, Inline) else revision_of(path, state.target)


def checked_condition(if_absent: bool, if_revision: object) -> Condition | None:
    """The condition that these arguments of a call mean; None: they mean none. Raises `InvalidRequestError`."""
    check_flags(if_absent=if_absent)
    if if_revision is ANY_REVISION:
        return Condition(None) if if_absent else None
    if if_revision is None:
        raise InvalidRequestError(
            "if_revision is None: older software wrote that object, so it has no revision to compare; leave if_revision out to write anyway"
        )
    if not isinstance(if_revision, ChangeId):
        raise InvalidRequestError(f"if_revision is the revision of a head or of a put, ChangeId(text), not {quoted(if_revision)}")
    if if_absent:
        raise InvalidRequestError("if_absent and if_revision exclude each other: pass one of them")
    return Condition(if_revision)
