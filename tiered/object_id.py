"""`ObjectId`, an object's logical address, and the names that are made of it.

    storage path   {usecase}/{name.value}/{name.value}/…/objects/{key}      the row key
    blob name      {storage path}/{revision}                                 revision = change id

Nothing is escaped. A path is parsed from the left: the usecase ends at the first `/`; each segment up to
one that equals `objects` is a scope and splits at its first `.`; the rest is the key and may hold `/`.
The order of scopes matters. What is *created* must pass `ObjectId.create`; what is *stored* only needs to
parse, because older software wrote names that we would refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from changelog.change import ChangeId
from changelog.errors import InvalidRequestError

PATH_BYTES_MAX = 1024 - 37
"""So that path, `/` and revision fit into a GCS object name of 1,024 bytes."""

_SCOPE = re.compile(r"[A-Za-z0-9_\-()$!+']+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SCOPE_ALPHABET = "A-Z a-z 0-9 _ - ( ) $ ! + '"


@dataclass(frozen=True, slots=True)
class ObjectId:
    """Logical address of an object. Build one with `create` (validated) or `parse`."""

    usecase: str
    scopes: tuple[tuple[str, str], ...]
    key: str

    def __post_init__(self) -> None:
        if not isinstance(self.usecase, str) or not isinstance(self.key, str):
            raise InvalidRequestError(f"usecase and key are text, not {self.usecase!r} and {self.key!r}")
        try:
            self.path.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{self.path!r} is not valid Unicode: {error.reason}") from None

    @classmethod
    def create(cls, usecase: str, key: str, scopes: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Self:
        """A validated id; scopes keep their order. Raises `InvalidRequestError` naming the part and the limit."""
        if isinstance(scopes, str):
            raise InvalidRequestError(f"scopes are pairs such as {{'org': '17'}}, not the text {scopes!r}")
        pairs = scopes.items() if isinstance(scopes, Mapping) else scopes
        object_id = cls(usecase, tuple((name, value) for name, value in pairs), key)
        object_id.validate()
        return object_id

    @classmethod
    def parse(cls, path: str) -> Self:
        """Reads a storage path as it is printed. Raises `InvalidRequestError` if it is none."""
        usecase, slash, rest = path.partition("/")
        if not usecase or not slash:
            raise InvalidRequestError(f"{path!r} is not an object id: expected USECASE/[NAME.VALUE/…]objects/KEY")
        scopes = []
        while True:
            segment, slash, rest = rest.partition("/")
            if not slash:
                raise InvalidRequestError(f"{path!r} is not an object id: no 'objects/' before the key")
            if segment == "objects":
                break
            name, dot, value = segment.partition(".")
            if not dot:
                raise InvalidRequestError(f"{path!r} is not an object id: scope {segment!r} is not NAME.VALUE")
            scopes.append((name, value))
        if not rest:
            raise InvalidRequestError(f"{path!r} is not an object id: the key is empty")
        return cls(usecase, tuple(scopes), rest)

    @property
    def path(self) -> str:
        """The storage path: row key, and stem of the blob's name."""
        return f"{object_prefix(self.usecase, self.scopes)}{self.key}"

    def __str__(self) -> str:
        return self.path

    def validate(self) -> None:
        """Raises `InvalidRequestError` unless an object of this name may be created."""
        _validate_usecase(self.usecase)
        for name, value in self.scopes:
            _validate_scope(name, value)
        _validate_key(self.key)
        _validate_length(self.path)


def object_prefix(usecase: str, scopes: Iterable[tuple[str, str]]) -> str:
    """What all storage paths of exactly these scopes begin with."""
    return "/".join([usecase, *(f"{name}.{value}" for name, value in scopes), "objects", ""])


def blob_name(path: str, revision: ChangeId) -> str:
    return f"{path}/{revision}"


def revision_of(path: str, blob: str) -> ChangeId | None:
    """The revision of `blob` as one of `path`'s; None where it has none (an unsuffixed legacy blob, or foreign)."""
    stem, _, revision = blob.rpartition("/")
    return ChangeId(revision) if stem == path and ChangeId.matches(revision) else None


def _validate_usecase(usecase: str) -> None:
    if not usecase:
        raise InvalidRequestError("the usecase is empty; give it a name such as 'attachments'")
    if "/" in usecase or usecase.startswith("~"):
        raise InvalidRequestError(f"usecase {usecase!r} must not contain '/' nor start with '~'")
    if usecase in (".", ".."):
        raise InvalidRequestError(f"usecase {usecase!r} is a relative path; give it a name such as 'attachments'")
    _refuse_control_characters("usecase", usecase)


def _validate_scope(name: str, value: str) -> None:
    for part, text in (("name", name), ("value", value)):
        if not isinstance(text, str) or not _SCOPE.fullmatch(text):
            raise InvalidRequestError(f"scope {part} {text!r} must be one or more of {_SCOPE_ALPHABET}")


def _validate_key(key: str) -> None:
    if not key:
        raise InvalidRequestError("the key is empty")
    _refuse_control_characters("key", key)
    if any(segment in (".", "..") for segment in key.split("/")):
        raise InvalidRequestError(f"key {key!r} has a '.' or '..' segment, which storage services read differently")


def _refuse_control_characters(part: str, text: str) -> None:
    if found := _CONTROL.search(text):
        raise InvalidRequestError(f"{part} {text!r} has control character U+{ord(found[0]):04X} at position {found.start()}")


def _validate_length(path: str) -> None:
    size = len(path.encode())
    if size > PATH_BYTES_MAX:
        raise InvalidRequestError(f"the storage path has {size} bytes of UTF-8; at most {PATH_BYTES_MAX} fit: {path[:80]!r}…")
