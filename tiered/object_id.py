"""`ObjectId`, the logical address of an object, `ObjectPrefix`, and the names that are made from them.

    storage path   {usecase}/{name.value}/{name.value}/…/objects/{key}      the row key
    blob name      {storage path}/{revision}                                 revision = change id

Nothing is escaped here: a caller spells what is outside of the alphabet of scopes (`escape_scope`), and a path has the
spelling. A path is parsed from the left. The usecase ends at the first `/`. Each segment up to the first one
that equals `objects` is a scope and splits at its first `.`. The rest is the key and may hold `/`. The order of scopes
matters.

A new object's id must pass `ObjectId.create`. A stored path only needs to parse, because older software wrote names
that we would refuse. Every id, however it is made, equals what its path parses to. If two ids had the same path, one
tenant could reach the object of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeAlias
from uuid import UUID

from changelog.base.errors import InvalidRequestError
from changelog.change import OWN_PREFIXES, ChangeId
from tiered.text import plain, quoted, refuse_control_characters

Scopes: TypeAlias = Mapping[str, str | int | UUID] | Iterable[tuple[str, str | int | UUID]]

PATH_BYTES_MAX = 1024 - 37
"""37 bytes are left for `/` and the revision, so that a blob's name fits into the 1,024 bytes of a GCS object name."""
ROW_KEY_BYTES_MAX = 4096
"""Bigtable's limit for a row key. No stored path is longer."""

_SCOPE = re.compile(r"[A-Za-z0-9_\-()$!+']+")
_DOTS = re.compile(r"(?:^|/)\.\.?(?:/|\Z)")
"""Finds a segment that is `.` or `..`."""
_SCOPE_ALPHABET = "A-Z a-z 0-9 _ - ( ) $ ! + '"
_SPELT = re.compile(rb"[^A-Za-z0-9_\-()$!']")
"""The bytes of UTF-8 that a spelling has as `+` and two digits."""
_BYTE = re.compile(rb"\+([0-9A-F]{2})")
_NOTHING_SPELT = "+"


@dataclass(frozen=True, slots=True)
class ObjectId:
    """Logical address of an object. Make one with `create`, which validates, or with `parse`.

    `usecase` and `key` are text; `scopes` are pairs (name, value), in order. `path`: the storage path, which is the key
    of the row and the beginning of a blob's name. The constructor raises `InvalidRequestError` unless
    `parse(id.path) == id`.
    """

    usecase: str
    scopes: tuple[tuple[str, str], ...]
    key: str
    path: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (type(self.usecase) is str is type(self.key) and type(self.scopes) is tuple and all(map(_is_plain_pair, self.scopes))):
            object.__setattr__(self, "usecase", plain("usecase", self.usecase))
            object.__setattr__(self, "scopes", _plain_scopes(self.scopes))
            object.__setattr__(self, "key", plain("key", self.key))
        if not self.usecase:
            raise InvalidRequestError("the usecase is empty; give it a name such as 'attachments'")
        if "/" in self.usecase:
            raise InvalidRequestError(f"usecase {quoted(self.usecase)} must not contain '/'")
        for name, value in self.scopes:
            if "/" in name or "." in name:
                raise InvalidRequestError(f"scope name {quoted(name)} must not contain '/' nor '.'")
            if "/" in value:
                raise InvalidRequestError(f"scope value {quoted(value)} must not contain '/'{_spelt_so(value)}")
        if not self.key:
            raise InvalidRequestError("the key is empty")
        object.__setattr__(self, "path", f"{object_prefix(self.usecase, self.scopes)}{self.key}")
        _check_row_key(self.path)

    @classmethod
    def create(cls, usecase: str, key: str, scopes: Scopes = ()) -> Self:
        """Makes a validated id. Scopes keep their order. Values that are integers or UUIDs become text.

        `InvalidRequestError` names the part that is wrong, and the rule or limit.
        """
        object_id = cls(usecase, _pairs(scopes), key)
        object_id.validate()
        return object_id

    @classmethod
    def parse(cls, path: str) -> Self:
        """Reads a storage path. `InvalidRequestError`: the text is no storage path."""
        path = plain("an object id", path)
        usecase, slash, rest = path.partition("/")
        if not usecase or not slash:
            raise _no_path(path)
        scopes = []
        while True:
            segment, slash, rest = rest.partition("/")
            if not slash:
                raise _no_path(path, "no 'objects/' before the key")
            if segment == "objects":
                break
            name, dot, value = segment.partition(".")
            if not dot:
                raise _no_path(path, f"scope {quoted(segment)} is not NAME.VALUE")
            scopes.append((name, value))
        if not rest:
            raise _no_path(path, "the key is empty")
        return cls._of_path(usecase, tuple(scopes), rest, path)

    @classmethod
    def _of_path(cls, usecase: str, scopes: tuple[tuple[str, str], ...], key: str, path: str) -> Self:
        """The id whose parts were cut out of this path, so they keep the rules of the constructor by themselves."""
        _check_row_key(path)
        made = object.__new__(cls)
        for assign, value in zip(_SETTERS, (usecase, scopes, key, path), strict=True):
            assign(made, value)
        return made

    def __str__(self) -> str:
        return self.path

    def validate(self) -> None:
        """Raises `InvalidRequestError` unless a new object may have this id."""
        if self.usecase in (".", ".."):
            raise InvalidRequestError(f"usecase {self.usecase!r} is a relative path; give it a name such as 'attachments'")
        if self.usecase.startswith("~"):
            raise InvalidRequestError(f"usecase {quoted(self.usecase)} must not start with '~': names of the store's own do")
        refuse_control_characters("usecase", self.usecase)
        for name, value in self.scopes:
            _validate_scope(name, value)
        refuse_control_characters("key", self.key)
        if _DOTS.search(self.key):
            raise InvalidRequestError(f"key {quoted(self.key)} has a '.' or '..' segment, which storage services read differently")
        if (size := len(self.path.encode())) > PATH_BYTES_MAX:
            raise InvalidRequestError(f"the storage path has {size} bytes of UTF-8; at most {PATH_BYTES_MAX} fit: {self.path[:80]!r}…")


_SETTERS = tuple(ObjectId.__dict__[each.name].__set__ for each in fields(ObjectId))


@dataclass(frozen=True, slots=True)
class ObjectPrefix:
    """Which objects a listing is about. Make one with `create` or with `parse`.

        ObjectPrefix()                                                  all objects
        ObjectPrefix.create("photos")                                   all of this usecase
        ObjectPrefix.create("photos", scopes={"org": "17"})             whose scopes begin with org = 17
        ObjectPrefix.create("photos", "2026/", scopes={"org": "17"})    with just these scopes, and keys that begin so

    Only the key is compared character by character. Usecase and scopes are compared as a whole, so org = 1 never finds
    org = 17. `object_id in prefix` tells whether an object belongs to it. `usecase` None: all objects. `key` None: any
    scopes may follow.
    """

    usecase: str | None = None
    scopes: tuple[tuple[str, str], ...] = ()
    key: str | None = None

    def __post_init__(self) -> None:
        if self.usecase is None:
            if self.scopes != () or self.key is not None:
                raise InvalidRequestError("a prefix with scopes or a key needs a usecase: ObjectPrefix.create('attachments', …)")
            return
        if self.key is not None:
            object.__setattr__(self, "key", plain("key", self.key))
        shortest = ObjectId(self.usecase, self.scopes, self.key or "k")  # the same rules hold
        refuse_reserved(shortest.usecase)
        object.__setattr__(self, "usecase", shortest.usecase)
        object.__setattr__(self, "scopes", shortest.scopes)

    @classmethod
    def create(cls, usecase: str, key: str | None = None, scopes: Scopes = ()) -> Self:
        """Makes a prefix from the parts of an `ObjectId`. `InvalidRequestError` names the part that is wrong."""
        return cls(plain("usecase", usecase), _pairs(scopes), key)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads the beginning of a storage path: nothing, `USECASE`, `USECASE/NAME.VALUE`, or `USECASE/objects/KEY`.

        The last `/` before `objects/` may be left out. Raises `InvalidRequestError`.
        """
        text = plain("a prefix", text)
        if not text:
            return cls()
        usecase, _, rest = text.partition("/")
        if not usecase:
            raise _no_prefix(text, "the usecase is empty")
        scopes: list[tuple[str, str]] = []
        while rest:
            segment, _, rest = rest.partition("/")
            if segment == "objects":
                return cls(usecase, tuple(scopes), rest)
            name, dot, value = segment.partition(".")
            if not dot:
                raise _no_prefix(text, f"{quoted(segment)} is neither NAME.VALUE nor 'objects'")
            scopes.append((name, value))
        return cls(usecase, tuple(scopes))

    @property
    def path(self) -> str:
        """What the storage paths of these objects begin with. `parse` reads it."""
        if self.usecase is None:
            return ""
        if self.key is not None:
            return f"{object_prefix(self.usecase, self.scopes)}{self.key}"
        return "/".join([self.usecase, *(f"{name}.{value}" for name, value in self.scopes), ""])

    def __str__(self) -> str:
        return self.path

    def __contains__(self, object_id: object) -> bool:
        return isinstance(object_id, ObjectId) and object_id.path.startswith(self.path)


ALL = ObjectPrefix()


def object_prefix(usecase: str, scopes: Iterable[tuple[str, str]]) -> str:
    """The beginning of every storage path that has exactly these scopes."""
    return "/".join([usecase, *(f"{name}.{value}" for name, value in scopes), "objects", ""])


def escape_scope(value: str) -> str:
    """Returns the spelling of any text as the value of a scope: `anna@example.com` is `anna+40example+2Ecom`.

    It is as in a URL, with `+` for `%`: each byte of UTF-8 that is no letter or digit of ASCII and none of `_-()$!'` is
    `+` and two digits of `0-9A-F`. The empty text is `+`. Two texts never have one spelling, and no text has two. So
    spell all values of a scope, or none: a value with `+` has another spelling, too. A spelling has up to three times
    the bytes, and they count for the storage path, of which 987 fit.

    Raises:
        InvalidRequestError: it is no text, or no valid Unicode.
    """
    text = plain("scope value", value)
    return _SPELT.sub(lambda found: b"+%02X" % ord(found[0]), text.encode()).decode() or _NOTHING_SPELT


def unescape_scope(spelling: str) -> str:
    """Returns the text that `escape_scope` has spelt so.

    Raises:
        InvalidRequestError: it spells nothing so, such as a value of a scope that was never spelt.
    """
    text = plain("the spelling of a scope value", spelling)
    spelt = b"" if text == _NOTHING_SPELT else _BYTE.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode())
    with suppress(UnicodeDecodeError):
        if escape_scope(value := spelt.decode()) == text:
            return value
    raise InvalidRequestError(f"{quoted(text)} is no spelling of a scope value: escape_scope makes no such text")


def blob_name(path: str, revision: ChangeId) -> str:
    return f"{path}/{revision}"


def revision_of(path: str, blob: str) -> ChangeId | None:
    """The revision in the name of a blob of `path`.

    None if it has none: a legacy blob without revision, or a foreign name.
    """
    stem, _, revision = blob.rpartition("/")
    return ChangeId(revision) if stem == path and ChangeId.matches(revision) else None


def refuse_reserved(usecase: str) -> None:
    """Raises `InvalidRequestError` for a usecase whose rows would be among the changelog's, which no scan shows."""
    if is_own(f"{usecase}/"):
        raise InvalidRequestError(f"usecase {quoted(usecase)} is the store's own: it keeps its changelog there, and reads no object")


def is_own(path: str) -> bool:
    """Whether a row of this key is one of the store's own, and no object's."""
    return path.startswith(OWN_PREFIXES)


def _no_path(path: str, why: str | None = None) -> InvalidRequestError:
    reason = "" if why is None else f": {why}"
    return InvalidRequestError(f"{quoted(path)} is not an object id{reason}: write USECASE/[NAME.VALUE/…]objects/KEY")


def _no_prefix(text: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{quoted(text)} is no prefix: {why}: write USECASE/[NAME.VALUE/…][objects/KEY]")


def _check_row_key(path: str) -> None:
    """Raises `InvalidRequestError` unless a row can have this key."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{quoted(path)} is not valid Unicode: {error.reason}") from None
    if size > ROW_KEY_BYTES_MAX:
        raise InvalidRequestError(f"the storage path has {size} bytes of UTF-8; no stored one has more than {ROW_KEY_BYTES_MAX}")


def _is_plain_pair(scope: object) -> bool:
    return type(scope) is tuple and len(scope) == 2 and type(scope[0]) is str is type(scope[1])


def _plain_scopes(scopes: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(scopes, tuple) or not all(isinstance(scope, tuple) and len(scope) == 2 for scope in scopes):
        raise _no_scopes(scopes)
    return tuple((plain("scope name", name), plain("scope value", value)) for name, value in scopes)


def _pairs(scopes: Scopes) -> tuple[tuple[str, str], ...]:
    pairs: object = scopes.items() if isinstance(scopes, Mapping) else scopes
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
        raise _no_scopes(scopes)
    return tuple(map(_pair, pairs))


def _pair(pair: Any) -> Any:
    """The pair as a tuple, and its value as text if it is an integer or a UUID. Anything else is refused later."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return pair
    name, value = pair
    try:
        return name, str(value) if type(value) in (int, UUID) else value
    except ValueError:  # a number of more digits than Python writes
        return name, value


def _no_scopes(scopes: object) -> InvalidRequestError:
    return InvalidRequestError(f"scopes are pairs of name and value, ObjectId.create(…, scopes={{'org': '17'}}), not {quoted(scopes)}")


def _validate_scope(name: str, value: str) -> None:
    for part, text in (("name", name), ("value", value)):
        if not _SCOPE.fullmatch(text):
            spelt = _spelt_so(text) if part == "value" else ""
            raise InvalidRequestError(f"scope {part} {quoted(text)} must be one or more of {_SCOPE_ALPHABET}{spelt}")


def _spelt_so(value: str) -> str:
    """What to do about a value that has other characters. Nobody means the empty one."""
    return f"; escape_scope spells it {quoted(escape_scope(value))}" if value else ""
