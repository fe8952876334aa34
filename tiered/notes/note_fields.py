"""`NoteFields`: reads a note of the changelog, which is JSON, strictly. Pure.

What is damaged, or was written by newer software, is a `CorruptRecordError`. It names the note and the field, says what
is wrong and what to do. Nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from changelog.base.errors import CorruptRecordError, newer_version
from tiered.text import quoted

NUMBER_MAX = 2**63 - 1
"""The largest time and the largest count. Avro's `long` has no more."""


def canonical(value: Mapping[str, Any]) -> bytes:
    """Returns the value as JSON without spaces, in UTF-8. The order of keys is that of the mapping."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class NewerNoteError(CorruptRecordError):
    """Newer software wrote the note: it is not damaged, and must not be replaced. Update this software."""


class NoteFields:
    """The fields of one JSON object in a note. `note`: its name. `fix`: what to do if it is damaged, as a clause.

    `within`: where in the note the object is, such as `pass`; empty: it is the whole note.
    """

    def __init__(self, value: object, note: str, fix: str, within: str = "") -> None:
        self._note = note
        self._fix = fix
        self._within = within
        if not isinstance(value, dict):
            raise self.wrong(f"{within or 'its value'} is {quoted(value)}, not a JSON object")
        self._value: dict[str, Any] = value

    @classmethod
    def parse(cls, raw: bytes, note: str, fix: str) -> NoteFields:
        """Reads the bytes of a note. `CorruptRecordError`: they are not one JSON object."""
        try:
            value = json.loads(raw)
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair could not be shown
        except (ValueError, RecursionError) as error:
            raise CorruptRecordError(f"the note {note} is damaged: it is not JSON ({error}); {fix}") from None
        return cls(value, note, fix)

    def wrong(self, what: str) -> CorruptRecordError:
        """Returns the error that says what is wrong with the note."""
        return CorruptRecordError(f"the note {self._note} is damaged: {what}; {self._fix}")

    def no(self, name: str, wanted: str) -> CorruptRecordError:
        """Returns the error that a field is not what is wanted."""
        return self.wrong(f"{self._named(name)} is {quoted(self._value.get(name))}, not {wanted}")

    def value(self, name: str) -> Any:
        """Returns what the field holds, of any kind. None: null, or it is not there."""
        return self._value.get(name)

    def only(self, *names: str, optional: str = "") -> None:
        """Raises `CorruptRecordError` unless the object has exactly these keys. `optional`: one that may be missing.

        `NewerNoteError`: it is a note without a version, which is version 1, and has a later one now.
        """
        version = self._value.get("v")
        if "v" not in names and not self._within and type(version) is int and version > 1:
            raise self._newer(version, "version 1")
        if missing := [name for name in names if name not in self._value]:
            raise self.wrong(f"{self._named(missing[0])} is missing")
        if unknown := [name for name in self._value if name not in (*names, optional)]:
            raise self.wrong(f"this software does not know the key {quoted(self._named(unknown[0]))}")

    def version(self, *known: int) -> int:
        """Returns the version of the note, its field `v`.

        `NewerNoteError`: it is above those that are known. `CorruptRecordError`: it is none of them.
        """
        found = self._value.get("v")
        if type(found) is not int or found not in known:
            reads = f"version{'s' if len(known) > 1 else ''} {' and '.join(map(str, known))}"
            if type(found) is int and found > max(known):
                raise self._newer(found, reads)
            raise CorruptRecordError(f"the note {self._note} has version {quoted(found)}; this software reads {reads}")
        return found

    def _newer(self, version: int, reads: str) -> NewerNoteError:
        return NewerNoteError(f"{newer_version(f'the note {self._note}', version, reads)}; it stays as it is")

    def number(self, name: str, *, least: int = 0, most: int = NUMBER_MAX, missing: int | None = None) -> int:
        """Returns a whole number from `least` to `most`. `missing`: what the field is if it is not there."""
        found = self._value.get(name, missing)
        if type(found) is not int or not least <= found <= most:
            raise self.no(name, f"a whole number from {least} to {most}")
        return found

    def optional_number(self, name: str, *, least: int = 0, most: int = NUMBER_MAX) -> int | None:
        """Returns a whole number, or None if the value is null."""
        return None if self._value.get(name) is None else self.number(name, least=least, most=most)

    def truth(self, name: str) -> bool:
        found = self._value.get(name)
        if type(found) is not bool:
            raise self.no(name, "true or false")
        return found

    def text(self, name: str, *, missing: str | None = None) -> str:
        """Returns a text. `missing`: what the field is if it is not there."""
        found = self._value.get(name, missing)
        if not isinstance(found, str):
            raise self.no(name, "text")
        return found

    def optional_text(self, name: str) -> str | None:
        """Returns a text, or None if the value is null."""
        return None if self._value.get(name) is None else self.text(name)

    def hexadecimal(self, name: str) -> bytes:
        found = self.text(name)
        try:
            return bytes.fromhex(found)
        except ValueError:
            raise self.no(name, "bytes in hex") from None

    def items(self, name: str) -> Sequence[Any]:
        found = self._value.get(name)
        if not isinstance(found, list):
            raise self.no(name, "a list")
        return found

    def objects(self, name: str) -> Sequence[NoteFields]:
        """Returns a list of objects."""
        return [self.inside(each, f"an item of {self._named(name)}") for each in self.items(name)]

    def child(self, name: str) -> NoteFields:
        """Returns the keys of an object inside this one."""
        return NoteFields(self._value.get(name), self._note, self._fix, self._named(name))

    def optional_child(self, name: str) -> NoteFields | None:
        """Returns the keys of an object inside this one, or None if the value is null."""
        return None if self._value.get(name) is None else self.child(name)

    def inside(self, value: object, within: str) -> NoteFields:
        """Returns the keys of an object that is an item of a list in this one."""
        return NoteFields(value, self._note, self._fix, within)

    def _named(self, name: str) -> str:
        return f"{self._within}.{name}" if self._within else name
