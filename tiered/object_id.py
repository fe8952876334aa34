"""`ObjectId`, an object's logical address, and the names that are made of it.

    storage path   {usecase}/{name.value}/{name.value}/…/objects/{key}      the row key
    blob name      {storage path}/{revision}                                 revision = change id

Nothing is escaped. A path is parsed from the left: the usecase ends at the first `/`; each segment up to
one that equals `objects` is a scope and splits at its first `.`; the rest is the key and may hold `/`.
The order of scopes matters. What is *created* must pass `ObjectId.create`; what is *stored* only needs to
parse, because older software wrote names that we would refuse. However an id is made, its path parses to itself:
an id whose path is another id's would be another tenant's object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from changelog.base.errors import InvalidRequestError
from changelog.change import ChangeId
from tiered.text import plain, refuse_control_characters, shown

PATH_BYTES_MAX = 1024 - 37
"""So that path, `/` and revision fit into a GCS object name of 1,024 bytes."""
ROW_KEY_BYTES_MAX = 4096
"""Of Bigtable: no stored path is longer, whoever wrote it."""

_SCOPE = re.compile(r"[A-Za-z0-9_\-()$!+']+")
_SCOPE_ALPHABET = "A-Z a-z 0-9 _ - ( ) $ ! + '"


@dataclass(frozen=True, slots=True)
class ObjectId:
    """Logical address of an object. Build one with `create` (validated) or `parse`.

    Built directly, it is an `InvalidRequestError` unless `parse(id.path) == id`.
    """

    usecase: str
    scopes: tuple[tuple[str, str], ...]
    key: str

    def __post_init__(self) -> None:
        if not (type(self.usecase) is str is type(self.key) and type(self.scopes) is tuple and all(map(_is_plain_pair, self.scopes))):
            object.__setattr__(self, "usecase", plain("usecase", self.usecase))
            object.__setattr__(self, "scopes", _plain_scopes(self.scopes))
            object.__setattr__(self, "key", plain("key", self.key))
        if not self.usecase:
            raise InvalidRequestError("the usecase is empty; give it a name such as 'attachments'")
        if "/" in self.usecase:
            raise InvalidRequestError(f"usecase {shown(self.usecase)} must not contain '/'")
        for name, value in self.scopes:
            if "/" in name or "." in name:
                raise InvalidRequestError(f"scope name {shown(name)} must not contain '/' nor '.'")
            if "/" in value:
                raise InvalidRequestError(f"scope value {shown(value)} must not contain '/'")
        if not self.key:
            raise InvalidRequestError("the key is empty")
        try:
            size = len(self.path.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"{shown(self.path)} is not valid Unicode: {error.reason}") from None
        if size > ROW_KEY_BYTES_MAX:
            raise InvalidRequestError(f"the storage path has {size} bytes of UTF-8; no stored one has more than {ROW_KEY_BYTES_MAX}")

    @classmethod
    def create(cls, usecase: str, key: str, scopes: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Self:
        """A validated id; scopes keep their order. Raises `InvalidRequestError` naming the part and the limit."""
        pairs: object = scopes.items() if isinstance(scopes, Mapping) else scopes
        if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
            raise _no_scopes(scopes)
        object_id = cls(usecase, tuple(tuple(pair) if isinstance(pair, list) else pair for pair in pairs), key)
        object_id.validate()
        return object_id

    @classmethod
    def parse(cls, path: str) -> Self:
        """Reads a storage path as it is printed. Raises `InvalidRequestError` if it is none."""
        path = plain("an object id", path)
        usecase, slash, rest = path.partition("/")
        if not usecase or not slash:
            raise InvalidRequestError(f"{shown(path)} is not an object id: expected USECASE/[NAME.VALUE/…]objects/KEY")
        scopes = []
        while True:
            segment, slash, rest = rest.partition("/")
            if not slash:
                raise InvalidRequestError(f"{shown(path)} is not an object id: no 'objects/' before the key")
            if segment == "objects":
                break
            name, dot, value = segment.partition(".")
            if not dot:
                raise InvalidRequestError(f"{shown(path)} is not an object id: scope {shown(segment)} is not NAME.VALUE")
            scopes.append((name, value))
        if not rest:
            raise InvalidRequestError(f"{shown(path)} is not an object id: the key is empty")
        return cls(usecase, tuple(scopes), rest)

    @property
    def path(self) -> str:
        """The storage path: row key, and stem of the blob's name."""
        return f"{object_prefix(self.usecase, self.scopes)}{self.key}"

    def __str__(self) -> str:
        return self.path

    def validate(self) -> None:
        """Raises `InvalidRequestError` unless an object of this name may be created."""
        refuse_reserved(self.usecase)
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


def refuse_reserved(usecase: str) -> None:
    """What begins with `~` is the store's own: the changelog may be in the same table."""
    if usecase.startswith("~"):
        raise InvalidRequestError(f"usecase {shown(usecase)} must not start with '~': such names are the store's own")


def _is_plain_pair(scope: object) -> bool:
    return type(scope) is tuple and len(scope) == 2 and type(scope[0]) is str is type(scope[1])


def _plain_scopes(scopes: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(scopes, tuple) or not all(isinstance(scope, tuple) and len(scope) == 2 for scope in scopes):
        raise _no_scopes(scopes)
    return tuple((plain("scope name", name), plain("scope value", value)) for name, value in scopes)


def _no_scopes(scopes: object) -> InvalidRequestError:
    return InvalidRequestError(f"scopes are pairs of name and value, ObjectId.create(…, scopes={{'org': '17'}}), not {shown(scopes)}")


def _validate_usecase(usecase: str) -> None:
    if usecase in (".", ".."):
        raise InvalidRequestError(f"usecase {usecase!r} is a relative path; give it a name such as 'attachments'")
    refuse_control_characters("usecase", usecase)


def _validate_scope(name: str, value: str) -> None:
    for part, text in (("name", name), ("value", value)):
        if not _SCOPE.fullmatch(text):
            raise InvalidRequestError(f"scope {part} {shown(text)} must be one or more of {_SCOPE_ALPHABET}")


def _validate_key(key: str) -> None:
    refuse_control_characters("key", key)
    if any(segment in (".", "..") for segment in key.split("/")):
        raise InvalidRequestError(f"key {shown(key)} has a '.' or '..' segment, which storage services read differently")


def _validate_length(path: str) -> None:
    size = len(path.encode())
    if size > PATH_BYTES_MAX:
        raise InvalidRequestError(f"the storage path has {size} bytes of UTF-8; at most {PATH_BYTES_MAX} fit: {path[:80]!r}…")
