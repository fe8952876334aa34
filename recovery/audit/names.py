"""How the audit reads names: the name of a blob, and the keys of the rows that may name a blob of a range.

    {path}/{revision}      a blob of this software, or the unsuffixed blob of an object whose key ends in a revision;
                           both are tried, because a tombstone is looked up by the blob's whole name
    {path}                 an unsuffixed blob of older software
    …/uploads/…            a resumable upload of older software
    ~quarantine/…          a copy of what a deletion took (`recovery.audit.deleting.quarantine`)

There is a trap in the order of names. Names and row keys are both read in byte order, and a blob's name begins with its
row's key. Still, the same bounds do not fit both. `foo` sorts before `foo-bar`, but `foo-bar/r` sorts before `foo/r`.
So the row of a name may sort before the range that holds the name.

This happens if and only if the row's key is a proper prefix of the start of the range, and the next byte of the start
is not above `/`. So for the names [start, end) the rows are those with the keys [start, end) *and*
`rows_before(start)`. These are a few dozen point reads. In a test with adversarial ranges, cuts without them lost the
row of a name in 43 % of the ranges, and in none with them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from changelog.base.errors import InvalidRequestError
from changelog.change import ChangeId
from recovery.audit.finding import NO_USECASE
from recovery.audit.finding_classes import NameForm
from tiered.object_id import ROW_KEY_BYTES_MAX, ObjectId, is_own
from tiered.services.scans import QUARANTINE

_SLASH = ord("/")
_SUFFIX = 37
"""How many characters `/{revision}` has."""


class ParsedName(NamedTuple):
    """A blob's name, read. `object`: the storage path, if the name has one. `revision`: only for the form `REVISION`.
    """

    form: NameForm
    object: str | None = None
    revision: ChangeId | None = None


def read_name(name: str) -> ParsedName:
    """Reads a blob's name. It never fails: every name in a bucket has a form."""
    if name.startswith(QUARANTINE):
        return ParsedName(NameForm.QUARANTINE)
    stem, _, last = name.rpartition("/")
    if ChangeId.matches(last) and _is_path(stem):
        return ParsedName(NameForm.REVISION, stem, str.__new__(ChangeId, last))  # it matches, so it need not be checked again
    if _is_path(name):
        return ParsedName(NameForm.UNSUFFIXED, name)
    kind = next((segment for segment in name.split("/")[1:] if segment in ("objects", "uploads")), None)
    return ParsedName({"uploads": NameForm.UPLOAD, "objects": NameForm.UNPARSEABLE, None: NameForm.FOREIGN}[kind])


def usecase_of(name: str) -> str:
    """Returns the usecase of a blob's name or a row's key, or `NO_USECASE` if it has none."""
    usecase, slash, _ = name.partition("/")
    return usecase if usecase and slash else NO_USECASE


def is_of(path: str, target: str) -> bool:
    """Tells whether the row of the key `path` may name the blob `target`.

    It may name only its own blobs, with a revision or without.
    """
    return target.startswith(f"{path}/") or target == path


def own_rows(name: str) -> list[str]:
    """Returns the keys of the rows that may rightly name the blob `name`: its object's, and that of the whole name."""
    stem, _, last = name.rpartition("/")
    keys = [name, stem] if stem and ChangeId.matches(last) else [name]
    return [key for key in keys if not is_own(key)]


def is_plain(path: str, target: str) -> bool:
    """Tells whether `target` has one of the two usual names of a blob of the row `path`: `{path}/{revision}`, `{path}`.
    """
    if not target.startswith(path):
        return False
    return len(target) == len(path) or (len(target) == len(path) + _SUFFIX and target[len(path)] == "/")


def rows_before(start: str) -> list[bytes]:
    """Returns the keys, all before `start`, of rows that may name a blob whose name is `start` or comes after it."""
    name = start.encode()
    return [name[:length] for length in range(1, len(name)) if name[length] <= _SLASH]


def after(name: str) -> str:
    """Returns the first possible name after this one."""
    return name + "\0"


def _is_path(text: str) -> bool:
    if is_own(text):
        return False  # rows with such keys are the changelog's and no objects, so no scan of rows could clear such a blob
    before, _, key = text.partition("/objects/")
    if not key:
        return False
    try:
        return (len(text) if text.isascii() else len(text.encode())) <= ROW_KEY_BYTES_MAX and _begins_path(before)
    except UnicodeEncodeError:
        return False


@lru_cache(1024)
def _begins_path(before: str) -> bool:
    """Tells whether this may stand before `/objects/KEY`. Names are read in order, and many begin with the same text.
    """
    try:
        ObjectId.parse(f"{before}/objects/k")
    except InvalidRequestError:
        return False
    return True
