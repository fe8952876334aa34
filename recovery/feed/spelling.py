"""Messages as JSON values and as short text, both ways. Pure.

    Avro-JSON   {"array":[{"data":…,"time":7,"diff":1}]}
                {"com.materialize.cdc.progress":{"lower":[7],"upper":[8],"counts":[{"time":7,"count":1}]}}
    text        update (record0, time0, +2)
                progress (time0, 3)

The short text is that of the published design. A record is a word, or JSON if it is no word. `progress (time4, 3)` is
about time 4 alone: lower is 4, upper is 5. Any other progress message is written with its bounds, and the counts after
them: `progress (time0 to time9, time4: 3, time7: 1)`, with `end` for an upper that is empty.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from changelog.base.errors import InvalidRequestError
from recovery.feed.errors import FeedError, Rule
from recovery.feed.messages import Json, Message, Progress, Update, Updates, canonical
from tiered.text import quoted

PROGRESS = "com.materialize.cdc.progress"

_UPDATE = frozenset({"data", "time", "diff"})
_PROGRESS = frozenset({"lower", "upper", "counts"})
_COUNT = frozenset({"time", "count"})

_TIME = r"time(-?\d+)"
_TEXT_UPDATE = re.compile(rf"update \((.*), {_TIME}, ([+-]\d+)\)", re.ASCII)
_TEXT_PROGRESS = re.compile(rf"progress \({_TIME}, (-?\d+)\)", re.ASCII)
_TEXT_BOUNDS = re.compile(rf"progress \((?:{_TIME}|end) to (?:{_TIME}|end)((?:, {_TIME}: -?\d+)*)\)", re.ASCII)
_TEXT_COUNT = re.compile(rf", {_TIME}: (-?\d+)", re.ASCII)
_WORD = re.compile(r"(?!(?:true|false|null|NaN|Infinity)\Z)[A-Za-z_][\w.:/~-]*\Z", re.ASCII)


# --- JSON ------------------------------------------------------------------------------------------


def to_json(message: Message) -> dict[str, Json]:
    """Returns the message as the Avro-JSON object that Materialize reads and writes."""
    if isinstance(message, Updates):
        return {"array": [{"data": each.data, "time": each.time, "diff": each.diff} for each in message.updates]}
    counts = [{"time": time, "count": count} for time, count in message.counts]
    return {PROGRESS: {"lower": list(message.lower), "upper": list(message.upper), "counts": counts}}


def from_json(value: Json) -> Message:
    """Returns the message of a decoded Avro-JSON object. Raises `FeedError` if it is none."""
    if type(value) is not dict or len(value) != 1:
        raise FeedError(Rule.FORM, f"{quoted(value)} is no message: it is no object with one key, array or {PROGRESS}")
    ((kind, content),) = value.items()
    try:
        if kind == "array":
            return Updates(tuple([_update(each) for each in _list(kind, content)]))
        if kind == PROGRESS:
            parts = _object("progress", content, _PROGRESS)
            lower, upper = _list("lower", parts["lower"]), _list("upper", parts["upper"])
            counts = [_object("a count", each, _COUNT) for each in _list("counts", parts["counts"])]
            return Progress(tuple(lower), tuple(upper), tuple((each["time"], each["count"]) for each in counts))
    except InvalidRequestError as error:
        raise FeedError(Rule.VALUE, str(error)) from None
    raise FeedError(Rule.FORM, f"{quoted(kind)} is no kind of message: use array or {PROGRESS}")


def _update(value: Json) -> Update:
    if type(value) is not dict or value.keys() != _UPDATE:
        _object("an update", value, _UPDATE)
    return Update(value["data"], value["time"], value["diff"])


def _object(what: str, value: Json, keys: frozenset[str]) -> dict[str, Any]:
    if type(value) is not dict or value.keys() != keys:
        raise FeedError(Rule.FORM, f"{what} is {quoted(value)}, not an object with the keys {', '.join(sorted(keys))}")
    return value


def _list(what: str, value: Json) -> list[Any]:
    if type(value) is not list:
        raise FeedError(Rule.FORM, f"{what} is {quoted(value)}, not a list")
    return value


def to_line(message: Message) -> str:
    """Returns the message as one line of Avro-JSON, without spaces and without the end of the line.

    Equal messages give equal lines: the keys of data are sorted.
    """
    if isinstance(message, Updates):
        # The key of all but text is its canonical JSON.
        each = [
            f'{{"data":{canonical(each.data) if type(each.key) is str else each.key[0]},"time":{each.time},"diff":{each.diff}}}'
            for each in message.updates
        ]
        return f'{{"array":[{",".join(each)}]}}'
    return json.dumps(to_json(message), separators=(",", ":"))


def from_line(line: str) -> Message:
    """Returns the message of a line of Avro-JSON. Raises `FeedError` if it is no such line."""
    return from_json(parsed(line))


def parsed(line: str | bytes) -> Json:
    """Returns the JSON value of a line. Raises `FeedError` if it is not JSON, or has one key twice in an object."""
    try:
        return _DECODER.decode(line if isinstance(line, str) else line.decode())
    except (ValueError, RecursionError) as error:  # what is not valid UTF-8 is a ValueError, too
        raise FeedError(Rule.FORM, f"{quoted(line)} is not JSON: {error}") from None


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("an object has one key twice")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number)


# --- short text ------------------------------------------------------------------------------------


def to_text(message: Message) -> list[str]:
    """Returns the message as lines of short text: one for each update, or one for a progress message."""
    if isinstance(message, Updates):
        return [f"update ({record_to_text(each.data)}, time{each.time}, {each.diff:+d})" for each in message.updates]
    if len(message.lower) == 1 and message.upper == (message.lower[0] + 1,):
        time = message.lower[0]
        if not message.counts:
            return [f"progress (time{time}, 0)"]
        if len(message.counts) == 1 and message.counts[0][0] == time and message.counts[0][1]:
            return [f"progress (time{time}, {message.counts[0][1]})"]
    counts = "".join(f", time{time}: {count}" for time, count in message.counts)
    return [f"progress ({_bound_to_text(message.lower)} to {_bound_to_text(message.upper)}{counts})"]


def from_text(line: str) -> Message:
    """Returns the message of one line of short text. An update is a message of its own.

    Raises `FeedError` if it is no such line.
    """
    text = line.strip()
    try:
        if found := _TEXT_UPDATE.fullmatch(text):
            return Updates((Update(_record_from_text(found[1]), int(found[2]), int(found[3])),))
        if found := _TEXT_PROGRESS.fullmatch(text):
            time, count = int(found[1]), int(found[2])
            return Progress((time,), (time + 1,), ((time, count),) if count else ())
        if found := _TEXT_BOUNDS.fullmatch(text):
            counts = tuple((int(time), int(count)) for time, count in _TEXT_COUNT.findall(found[3]))
            return Progress(_bound_from_text(found[1]), _bound_from_text(found[2]), counts)
    except (InvalidRequestError, ValueError) as error:  # a number of thousands of digits is a ValueError
        raise FeedError(Rule.VALUE, str(error)) from None
    raise FeedError(Rule.FORM, f"{quoted(line)} is neither `update (record0, time0, +1)` nor `progress (time0, 1)`")


def is_text(line: str) -> bool:
    """Returns whether a line begins as short text does."""
    return line.lstrip().startswith(("update (", "progress ("))


def record_to_text(data: Json) -> str:
    """Returns a record as short text shows it: a word as it is, all else as canonical JSON."""
    return data if type(data) is str and _WORD.match(data) else canonical(data)


def _record_from_text(text: str) -> Json:
    return text if _WORD.match(text) else parsed(text)


def _bound_to_text(bound: tuple[int, ...]) -> str:
    return f"time{bound[0]}" if bound else "end"


def _bound_from_text(text: str | None) -> tuple[int, ...]:
    return (int(text),) if text else ()
