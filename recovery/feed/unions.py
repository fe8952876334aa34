"""The values of a feed's records, between Avro-JSON and fastavro, and the schemas that cannot be used. Pure.

A value of a union names its type in Avro-JSON, and does not in fastavro:

    Avro-JSON    null, or an object with one key, the name of the type: {"long": 5}
    fastavro     the value; to be written, (name, value), so that fastavro does not guess the type
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from recovery.feed.messages import Json

_ALIKE = ({"int", "long"}, {"float", "double"}, {"string", "enum"}, {"record", "map"})
_BY_VALUE: dict[type, set[str]] = {
    bool: {"boolean"}, int: {"int", "long"}, float: {"float", "double"}, str: {"string", "enum"}, dict: {"record", "map"}, list: {"array"},
}  # fmt: skip

VALUES_MAX = 10_000
"""Of one record, with those of the records in it, but without what is in arrays, maps and unions."""
DEPTH_MAX = 100
"""fastavro recurses in C without a bound, so a deep schema would end the process."""


class Types:
    """The types of a feed's records. `data`: their schema in its canonical form.

    `unions`: whether there are any. `named`: the named types. `refused`: why the schema cannot be used; empty: it can.
    """

    def __init__(self, data: Json) -> None:
        self.unions = False
        self._numbers = False
        """Whether there are floating-point numbers."""
        self.named: dict[str, Json] = {}
        self.refused = ""
        self._data = data
        self._look(data)
        if not self.refused:
            self._weigh(data, {})

    def _look(self, part: Json, within: tuple[str, ...] = ()) -> None:
        if isinstance(part, list):
            self.unions = True
            for alike in _ALIKE:
                names = [_branch(each) for each in part if self._kind(each) in alike]
                if len(names) > 1:
                    self.refused = f"a union has {' and '.join(names)}, which look alike in JSON"
            for each in part:
                self._look(each, within)
        elif isinstance(part, dict):
            if "name" in part:
                self.named[part["name"]] = part
                within = (*within, part["name"])
            for inner in (part.get("items"), part.get("values"), *(field["type"] for field in part.get("fields", ()))):
                self._look(inner, within)
        elif part in within:
            # fastavro recurses in C without a bound, and foreign bytes would end the process.
            self.refused = f"the record {part} holds itself"
        self._numbers = self._numbers or self._kind(part) in ("double", "float")
        if self._kind(part) in ("bytes", "fixed"):
            self.refused = f"the type {self._kind(part)} has no JSON form: use string"

    def _weigh(self, part: Json, known: dict[str, tuple[int, int, int]]) -> tuple[int, int, int]:
        """How many values a part of the schema has at least, how many bytes they take at least, and how deep it is.

        Refuses what lets few bytes become very many values, or very deep ones. `known`: the named types, by name.
        """
        if isinstance(part, str) and part in known:
            return known[part]
        found, kind = self._resolved(part), self._kind(part)
        values, size, depth = 1, 0 if kind == "null" else 1, 0
        if isinstance(found, list):
            depth = 1 + max((self._weigh(each, known)[2] for each in found), default=0)
        elif kind == "record":
            fields = [self._weigh(field["type"], known) for field in found["fields"]]
            values, size = 1 + sum(each[0] for each in fields), sum(each[1] for each in fields)
            depth = 1 + max((each[2] for each in fields), default=0)
        elif kind in ("array", "map"):
            _, inner, depth = self._weigh(found["items" if kind == "array" else "values"], known)
            depth += 1
            if kind == "array" and not inner:
                self.refused = f"an array of {_branch(self._resolved(found['items']))}, which takes no bytes, has any length"
        if values > VALUES_MAX:
            self.refused = f"the record {_branch(found)} has more than {VALUES_MAX} values, with those of its records"
        if depth > DEPTH_MAX:
            self.refused = f"its types are nested more than {DEPTH_MAX} deep"
        weight = min(values, VALUES_MAX + 1), min(size, 1), depth
        if isinstance(found, dict) and "name" in found:
            known[found["name"]] = weight
        return weight

    def to_avro(self, data: Json) -> Any:
        """Returns a record of Avro-JSON as fastavro takes it.

        If the record does not fit, it raises `AttributeError`, `LookupError`, `StopIteration`, `TypeError` or
        `ValueError`, or it returns something that fastavro refuses.
        """
        return self._without_names(data, self._data) if self.unions or self._numbers else data

    def from_avro(self, data: Any) -> Json:
        """Returns a record that fastavro read as Avro-JSON has it."""
        return self._with_names(data, self._data) if self.unions else data

    def _without_names(self, value: Json, part: Json) -> Any:
        part = self._resolved(part)
        if not isinstance(part, list):
            return self._inside(value, part, self._without_names)
        if value is None:
            return None
        ((name, inner),) = value.items()
        chosen = next(each for each in part if _branch(each) == name)
        converted = self._without_names(inner, chosen)
        # fastavro takes these by name only. Of the others, a union has one at most.
        by_name = self._kind(chosen) not in ("array", "map", "enum")
        return (name, converted) if by_name else converted

    def _with_names(self, value: Any, part: Json) -> Json:
        part = self._resolved(part)
        if not isinstance(part, list):
            return self._inside(value, part, self._with_names)
        if value is None:
            return None
        chosen = next(each for each in part if self._kind(each) in _BY_VALUE[type(value)])
        return {_branch(chosen): self._with_names(value, chosen)}

    def _inside(self, value: Any, part: Json, convert: Callable[[Any, Json], Any]) -> Any:
        match self._kind(part):
            case "record":
                types = {field["name"]: field["type"] for field in part["fields"]}
                return {key: convert(each, types[key]) for key, each in value.items()}
            case "array":
                return [convert(each, part["items"]) for each in value]
            case "map":
                return {key: convert(each, part["values"]) for key, each in value.items()}
            case "double" | "float" as kind if type(value) is not float or not _fits(value, kind):
                raise ValueError(f"{kind} would change it")
        return value

    def _resolved(self, part: Json) -> Json:
        return self.named.get(part, part) if isinstance(part, str) else part

    def _kind(self, part: Json) -> Json:
        part = self._resolved(part)
        return part["type"] if isinstance(part, dict) else part


def _fits(value: float, kind: str) -> bool:
    """Whether a number is read back as it is. What is read from a file always is."""
    try:
        return kind == "double" or struct.unpack("<f", struct.pack("<f", value)) == (value,)
    except OverflowError:
        return False


def _branch(part: Json) -> str:
    """The name that Avro-JSON gives to a type of a union."""
    return str(part.get("name", part["type"])) if isinstance(part, dict) else str(part)
