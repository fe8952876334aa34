"""Arguments of public calls: good ones, wrong ones, and odd ones.

A `Value` is made when the call is made, because a constructor may already refuse it. The product must take a *good*
value. It must refuse a *wrong* one with the documented error. It may do either with an *odd* one.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from functools import reduce
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import anyio.lowlevel
import google_crc32c

from tiered import ByteRange, ChangeId, Metadata, ObjectId, ObjectPrefix, TimeToIdle, TimeToLive
from tiered.metadata import FIELDS

TEXT_MAX = 60


class Is(Enum):
    GOOD = "good"
    WRONG = "wrong"
    ODD = "odd"

    def __and__(self, other: Is) -> Is:
        """Returns the verdict of a call that is made with both."""
        if Is.WRONG in (self, other):
            return Is.WRONG
        return Is.ODD if Is.ODD in (self, other) else Is.GOOD


def of_all(verdicts: Iterable[Is]) -> Is:
    """Returns the verdict of a call that is made with all of them."""
    return reduce(Is.__and__, verdicts, Is.GOOD)


@dataclass(frozen=True)
class Value:
    """An argument. `words`: how one would write it. `make`: makes a new one."""

    words: str
    make: Callable[[], Any] = field(compare=False)
    verdict: Is = Is.GOOD

    def __str__(self) -> str:
        return self.words


def said(value: object) -> str:
    """Returns `ascii(value)`, shortened to `TEXT_MAX` characters and the length."""
    try:
        text = ascii(value)
    except ValueError:  # Python does not print an integer of so many digits
        text = f"{type(value).__name__} of many digits"
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…({len(text)})"


def exactly(value: object, verdict: Is = Is.GOOD) -> Value:
    return Value(said(value), lambda: value, verdict)


LAST = "the revision that a put of this object was told last"
"""Stands for a revision that is only known when the call is made."""


def any_change(random: Random) -> Value:
    """What changes metadata."""
    kinds: list[tuple[str, object, Is]] = [
        ("a filename is added", lambda metadata: replace(metadata, filename="new.txt"), Is.GOOD),
        ("nothing is changed", lambda metadata: metadata, Is.GOOD),
        ("it expires", lambda metadata: replace(metadata, expiration=TimeToIdle(timedelta(days=2))), Is.GOOD),
        ("it returns nothing", lambda metadata: None, Is.ODD), ("no function", random.choice((None, Metadata(), "x")), Is.WRONG),
    ]  # fmt: skip
    words, value, verdict = random.choice(kinds)
    return Value(words, lambda: value, verdict)


def any_expiry(random: Random) -> Value:
    """The arguments of `set_expiry`, as a mapping."""
    later = datetime(2100, 1, 1, tzinfo=UTC) + timedelta(days=random.randint(400, 40_000))
    return exactly(*random.choice([
        ({}, Is.GOOD), ({"extend_only": True, "from_creation": timedelta(days=90_000)}, Is.GOOD), ({"at": later}, Is.GOOD),
        ({"from_creation": timedelta(days=10**8)}, Is.ODD), ({"at": later.replace(tzinfo=None)}, Is.WRONG),
        ({"at": later, "from_creation": timedelta(days=1)}, Is.WRONG), ({"from_creation": 7}, Is.WRONG),
        ({"extend_only": "yes"}, Is.WRONG), ({"at": _Raises()}, Is.WRONG),
    ]))  # fmt: skip


def any_condition(random: Random, *, absent: bool = True) -> Value:
    """The arguments of a call that are its condition, as a mapping."""
    some = ChangeId.first(random.getrandbits(40))
    kinds: list[tuple[dict[str, object], Is]] = [
        ({"if_revision": LAST}, Is.GOOD), ({"if_revision": LAST}, Is.GOOD), ({"if_revision": some}, Is.GOOD),
        ({"if_revision": random.choice((None, 7, str(some), "", b"x", ..., _Raises(), [some]))}, Is.WRONG),
    ]  # fmt: skip
    if absent:
        kinds += [
            ({"if_absent": True}, Is.GOOD), ({"if_absent": True}, Is.GOOD), ({"if_absent": True, "if_revision": some}, Is.WRONG),
            ({"if_absent": random.choice((None, 1, "yes", [], _Raises()))}, Is.WRONG),
        ]  # fmt: skip
    return exactly(*random.choice(kinds))


class _Text(str):
    __slots__ = ()


class _Raises:
    """An object that raises when it is compared or asked for its truth."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("asked whether it is equal")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "<_Raises>"

    def __bool__(self) -> bool:
        raise RuntimeError("asked for its truth")


JUNK: tuple[object, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**5000, 1.5, -0.0, math.nan, math.inf, 1j,
    "", "x", "\0", "\n", "\ud800", "a/b", "…", "x" * 100_000, _Text("x"),
    b"", b"x", bytearray(b"x"), (), ("a",), ("a", "b"), (("a", "b"), "c"), [], [1], ["a", "b"], {}, {"a": 1}, {1: "a"}, {"a": "b"}, set(),
    {"s"}, object(), object, Exception, ValueError("v"), print, date(2026, 1, 1), timedelta(1), Path("x"), range(3), Ellipsis,
    NotImplemented, MappingProxyType({"a": "b"}), _Raises(),
)
"""Values that no signature asks for, or only some: texts, numbers and containers at their limits."""


def junk(random: Random, *but: type) -> Value:
    """Returns a value of no type in `but`, which is wrong."""
    return exactly(random.choice([each for each in JUNK if not isinstance(each, but)]), Is.WRONG)


# --- ids -----------------------------------------------------------------------------------------

_USECASES = ("photos", "a", "attachments", "µ", "a b", "-", "UPPER", "objects", "x" * 200, "a%2F", "~x"[1:], "a.b")
_KEYS = ("cat", "2026/cat.jpg", "a/", "/a", "//", "ключ", "🐈", "a b", "a%00", ".hidden", "a..b", "objects/x", "x.y/objects/z", "k" * 600, "…/…", "a\\b",
         "CON", "a:b", "*", "'\"", "é", "e\u0301", "%", "#?&=", "a//b", "\u2028", "\ufeff")  # fmt: skip
_SCOPES = ((), (("org", "17"),), (("a", "b"), ("c", "d")), (("a", "b"), ("a", "b")), (("$", "!"),), (("objects", "objects"),))
_BAD_TEXTS = ("", "\0", "a\nb", "\x7f", "\x85", "\ud800", "x" * 2000, "é" * 600)


def good_id(random: Random) -> Value:
    usecase, scopes, key = random.choice(_USECASES), random.choice(_SCOPES), random.choice(_KEYS)
    return Value(f"ObjectId.create({said(usecase)}, {said(key)}, {scopes})", lambda: ObjectId.create(usecase, key, scopes))


def any_id(random: Random) -> Value:
    """Returns an id that is mostly wrong: made by the constructor, by `create` or by `parse`, or not an id at all."""
    match random.randrange(5):
        case 0:
            return junk(random)
        case 1:
            usecase, scopes, key = random.choice((
                ("photos/org.17", (), "cat"), ("photos", (("org/x.y", "17"),), "cat"), ("photos", (("org", "17/objects"),), "cat"),
                ("photos", (("org", "1/a.2"),), "cat"), ("photos", (("o.rg", "17"),), "cat"), ("photos/objects", (), "cat"),
                ("", (), "cat"), ("photos", (), ""), ("photos", [("org", "17")], "cat"), ("photos", {"org": "17"}, "cat"),
                ("photos", None, "cat"), ("photos", "ab", "cat"), ("photos", ("ab", "cd"), "cat"), ("photos", ((1, 2),), "cat"),
                ("photos", (("a", "b", "c"),), "cat"), ("photos", ((),), "cat"), ("photos", 5, "cat"), ("~changelog", (), "00/x"),
                ("photos", (("org", None),), "cat"), ("photos", (("org", "\ud800"),), "cat"), ("photos", (("", ""),), "cat"),
                (None, (), "cat"), ("photos", (), None), (b"photos", (), "cat"), ("photos", (), b"cat"), (".", (), "x"), ("..", (), "x"),
                ("photos", (), "../x"), ("photos", (), "a/../b"), ("photos", (), "./x"), ("photos", (["org", "17"],), "cat"),
            ))  # fmt: skip
            return Value(f"ObjectId({said(usecase)}, {said(scopes)}, {said(key)})", lambda: ObjectId(usecase, scopes, key), Is.ODD)  # type: ignore[arg-type]
        case 2:
            parts: tuple[Any, ...] = tuple(random.choice(JUNK + good + _BAD_TEXTS) for good in (_USECASES, _KEYS, _SCOPES))
            return Value(f"ObjectId.create({', '.join(map(said, parts))})", lambda: ObjectId.create(*parts), Is.ODD)
        case 3:
            path = random.choice((*JUNK, "a/objects/", "/objects/x", "objects/x", "a/b/objects/x", "a/b.c/objects", "a//objects/x", "a/.b/objects/x",
                                  "a/b./objects/x", "a/objects/objects/x", "a/objects/\ud800", "a/objects/x\0", "~a/objects/x"))  # fmt: skip
            return Value(f"ObjectId.parse({said(path)})", lambda: ObjectId.parse(path), Is.ODD)  # type: ignore[arg-type]
        case _:
            usecase, key = random.choice(_BAD_TEXTS), random.choice(_KEYS)
            if random.random() < 0.5:
                usecase, key = random.choice(_USECASES), random.choice(_BAD_TEXTS)
            return Value(f"ObjectId({said(usecase)}, (), {said(key)})", lambda: ObjectId(usecase, (), key), Is.ODD)


# --- metadata ------------------------------------------------------------------------------------

_HOUR = timedelta(hours=1)
_TEXTS = [name for name, row in FIELDS.items() if row.kind is str and name not in ("content_type", "compression")]
_GOOD_FIELDS: dict[str, tuple[object, ...]] = {
    "time_created_ns": (0, 1, 1_700_000_000_123_456_789),
    "content_type": ("text/plain", "image/jpeg; charset=utf-8"),
    **dict.fromkeys(_TEXTS, ("10.0.0.1", "cat.jpg", "a b", "x" * 500)),
    "custom": ({"a": "b"}, {"k": ""}, MappingProxyType({"x-y_z": "1"})),
    "unknown": ({"x": 1}, {"x": None}, {"x": {"y": [1, "z", None, True]}}),
}  # fmt: skip
_ODD_FIELDS: dict[str, tuple[object, ...]] = {
    "expiration": (),
    "time_created_ns": (-1, -(10**30), 2**63, 10**30, 10**400, _Text("1"), 1.5, 1e18, True),
    "time_expires_ns": (0, 1_700_000_000_000_000_000, 10**30),
    "content_type": ("", " ", "é", "a\x07b", "a\tb", " x ", "\x7f", "\x85", "a\nb", "\0", "x" * 9000, "\ud800", "\u2028", "/", "🐈", "text", "a/b;é"),
    "compression": ("zstd", "gzip", ""),
    **dict.fromkeys(_TEXTS, ("", "\r", "a\x1bb", "\ud800", "é", "🐈", "a/b", "x" * 9000, "\x01", " x ")),
    "size": (-1, 2**63, 10**400, 0, 3),
    "custom": (
        {"": "x"}, {"a b": "c"}, {"A": "b"}, {"a": "b", "A": "c"}, {"ключ": "é"}, {"k": "a\x07"}, {"k": "\ud800"}, {"k:": "v"}, {"k": " v "},
        {"k": 1}, {"k": None}, {"k": b"v"}, {1: "v"}, {"k": ["v"]}, [("k", "v")], "kv", None, 5, ["k"], {"k": _Text("v")}, {"k": "x" * 9000},
        {str(number): "v" for number in range(500)}, {None: "v"}, {"a": "b", 1: "c"}, {"expiration": "x"}, {"x-goog-meta-a": "b"}, {"a\tb": "c"},
    ),
    "unknown": (
        {"size": 3}, {"custom": {}}, {1: 2}, {"x": object()}, {"x": math.nan}, {"x": math.inf}, {"x": (1, 2)}, {"x": {1: 2}}, {"x": b"y"}, {"x": {"s"}},
        [("x", 1)], "x", None, 5, {"x": "\ud800"}, {"\ud800": 1}, {"x": 10**5000}, {"x": 10**400}, {"x": 1e400}, {"x": 2**64}, {"x": -0.0}, {"": 1},
        {"x": "x" * 9000}, {None: 1}, {"x": {None: 1}}, {True: 1}, {"x": _Text("y")}, {"is_redirect_tombstone": True}, {"x": 1.0},
    ),
}  # fmt: skip


def _lifetime(random: Random) -> Value:
    kind = random.choice((TimeToLive, TimeToIdle))
    length = random.choice((_HOUR, timedelta(days=30), timedelta(seconds=7200.5)))
    return Value(f"{kind.__name__}({length!r})", lambda: kind(length))


def odd_lifetime(random: Random) -> Value:
    kind = random.choice((TimeToLive, TimeToIdle))
    length = random.choice((timedelta(0), timedelta(-1), timedelta.max, timedelta(microseconds=1), *JUNK))
    if random.random() < 0.5:
        return Value(f"{kind.__name__}({said(length)})", lambda: kind(length), Is.ODD)  # type: ignore[arg-type]
    return Value(f"{kind.__name__}(ns={said(length)})", lambda: kind(ns=length), Is.ODD)  # type: ignore[arg-type]


def _deep(depth: int) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for _ in range(depth):
        nested = {"x": nested}
    return nested


def good_metadata(random: Random) -> Value:
    if random.random() < 0.3:
        return exactly(None)
    names = random.sample(sorted(_GOOD_FIELDS), random.randint(0, 3))
    fields = {name: exactly(random.choice(_GOOD_FIELDS[name])) for name in names}
    if random.random() < 0.3:
        fields["expiration"] = _lifetime(random)
    return _metadata(fields)


def any_metadata(random: Random) -> Value:
    """Returns metadata with one or two odd or wrong fields, or something that is not metadata."""
    if random.random() < 0.08:
        return junk(random, type(None))
    fields: dict[str, Value] = {}
    for name in random.sample(sorted(_ODD_FIELDS), random.choice((1, 1, 2))):
        if name == "expiration":
            fields[name] = odd_lifetime(random) if random.random() < 0.5 else exactly(random.choice(JUNK), Is.ODD)
        elif name == "unknown" and random.random() < 0.1:
            fields[name] = Value("{'x': {'x': …}} 5,000 deep", lambda: _deep(5000), Is.ODD)
        else:
            pool = _ODD_FIELDS[name] if random.random() < 0.7 else JUNK
            fields[name] = exactly(random.choice(pool), Is.ODD)
    return _metadata(fields)


def _metadata(fields: Mapping[str, Value]) -> Value:
    words = ", ".join(f"{name}={value}" for name, value in fields.items())
    verdict = Is.ODD if any(value.verdict is not Is.GOOD for value in fields.values()) else Is.GOOD
    return Value(f"Metadata({words})", lambda: Metadata(**{name: value.make() for name, value in fields.items()}), verdict)


# --- the rest ------------------------------------------------------------------------------------


def any_range(random: Random) -> Value:
    bound = (0, 1, 5, 15, 100, 10**6, -1, -5, -(10**6), 2**63, 2**64, 10**30)
    if random.random() < 0.5:
        start, stop = random.choice(bound), random.choice((None, *bound))
        return Value(f"ByteRange({start}, {stop})", lambda: ByteRange(start, stop), Is.ODD)
    if random.random() < 0.3:
        return junk(random, type(None))
    wrong = random.choice(JUNK), random.choice(JUNK)
    return Value(f"ByteRange({said(wrong[0])}, {said(wrong[1])})", lambda: ByteRange(*wrong), Is.ODD)  # type: ignore[arg-type]


_PREFIXES = ("", "photos", "photos/", "a", "a/objects/", "µ", "\U0010ffff", "\ud7ff", "zz", "\0", "photos/org.17", "photos/org.17/objects/cat", "a/a.b/c.d/")


def good_prefix(random: Random) -> Value:
    text = random.choice(_PREFIXES)
    return Value(f"ObjectPrefix.parse({said(text)})", lambda: ObjectPrefix.parse(text))


def listing(random: Random, ids: tuple[Value, ...], wrong: float) -> dict[str, Value]:
    """Returns the arguments of a listing. Each is left out now and then, and is wrong with the probability `wrong`."""
    good: dict[str, Value] = {
        "prefix": good_prefix(random), "limit": exactly(random.choice((None, 1, 2, 1000))), "metadata": exactly(random.random() < 0.5),
        "delimiter": exactly(random.choice((None, "/"))), "start_after": Value(str(each := random.choice(ids)), each.make, Is.ODD),
    }
    arguments = {name: value for name, value in good.items() if random.random() < (0.25 if name == "start_after" else 0.6)}
    if random.random() < wrong:
        name = random.choice((*good, "page_token"))
        arguments[name] = _odd_prefix(random) if name == "prefix" else exactly(random.choice((*JUNK, "-", "A" * 40, ObjectPrefix())), Is.ODD)
    return arguments


def _odd_prefix(random: Random) -> Value:
    match random.randrange(3):
        case 0:
            return junk(random)
        case 1:
            text = random.choice((*JUNK, "x" * 5000, "~", "/", "photos/org", "a//", "\ud800"))
            return Value(f"ObjectPrefix.parse({said(text)})", lambda: ObjectPrefix.parse(text), Is.ODD)  # type: ignore[arg-type]
        case _:
            parts: tuple[Any, ...] = tuple(random.choice(JUNK + good + _BAD_TEXTS) for good in (_USECASES, _KEYS, _SCOPES))
            return Value(f"ObjectPrefix.create({', '.join(map(said, parts))})", lambda: ObjectPrefix.create(*parts), Is.ODD)


class Heard:
    """A progress callback. `calls`: what it was told. `error`: what it raises from its call number `raises_at` on."""

    def __init__(self, raises_at: int | None = None) -> None:
        self.calls: list[tuple[int, int | None]] = []
        self.error = ProgressError("a caller's own callback raised it")
        self._raises_at = raises_at

    def __call__(self, done: int, total: int | None) -> None:
        self.calls.append((done, total))
        if self.raised:
            raise self.error

    @property
    def raised(self) -> bool:
        return self._raises_at is not None and len(self.calls) >= self._raises_at


class ProgressError(Exception):
    """Raised by a progress callback."""


def any_progress(random: Random, wrong: float) -> Value:
    if random.random() < wrong / 2:
        return exactly(random.choice([each for each in JUNK if each is not None and not callable(each)]), Is.WRONG)
    raises_at = random.choice((None, None, 1, 2, 3))
    return Value("progress" if raises_at is None else f"progress that raises at call {raises_at}", lambda: Heard(raises_at))


class ToldAtEnd:
    """A function that is asked for custom metadata at the end of a payload. It is async if `later`.

    `gives`: what it returns. `error`: what it raises instead, if `raises`.
    """

    def __init__(self, gives: object, *, later: bool, raises: bool) -> None:
        self.gives = gives
        self.raises = raises
        self.error = ProgressError("a caller's own function raised it")
        self._later = later

    def __call__(self) -> Any:
        return self._tell_later() if self._later else self._tell()

    async def _tell_later(self) -> object:
        await anyio.lowlevel.checkpoint()
        return self._tell()

    def _tell(self) -> object:
        if self.raises:
            raise self.error
        return self.gives


def any_told_at_end(random: Random, wrong: float) -> Value:
    if random.random() < wrong / 2:
        return exactly(random.choice([each for each in JUNK if each is not None and not callable(each)]), Is.WRONG)
    gives: object = random.choice(({}, {"told-at-end": "1"}, {"told-at-end": "u " * 20 + "."}))
    verdict = Is.GOOD
    if random.random() < wrong:
        gives, verdict = random.choice(([], "text", None, 5, {"a b": "c"}, {"a": 5}, {"a": "\0"}, {"tiered-packed": "1"}, {"a": "ü"})), Is.WRONG
    raises, later = random.random() < 0.2, random.random() < 0.5
    words = f"{'an async' if later else 'a'} function that {'raises' if raises else f'returns {said(gives)}'}"
    return Value(words, lambda: ToldAtEnd(gives, later=later, raises=raises), verdict)


_DIGESTS: dict[str, Callable[[bytes], bytes]] = {
    "crc32c": lambda content: google_crc32c.value(content).to_bytes(4, "big"),
    "md5": lambda content: hashlib.md5(content).digest(),
    "sha256": lambda content: hashlib.sha256(content).digest(),
}


def any_checksums(random: Random, wrong: float, *, threads: bool) -> Value:
    """Returns a function that makes the argument from the content. `threads`: also what is computed in threads."""
    names = random.sample(list(_DIGESTS) if threads else ["crc32c"], random.choice((1, 2, 3) if threads else (1,)))
    text: Callable[[bytes], str] = random.choice((bytes.hex, lambda digest: base64.b64encode(digest).decode()))
    if random.random() < wrong:
        odd: object = random.choice((
            *[each for each in JUNK if each is not None and not isinstance(each, Mapping)], {"sha1": "00"}, {names[0]: "0"}, {names[0]: None}, {5: "00"},
        ))  # fmt: skip
        return Value(said(odd), lambda: lambda content: odd, Is.WRONG)
    is_another = random.random() < 0.3
    return Value(
        f"{'other ' if is_another else ''}{', '.join(names)}",
        lambda: lambda content: {name: text(_DIGESTS[name](content + b"x" * is_another)) for name in names},
        Is.WRONG if is_another else Is.GOOD,
    )


def any_compress(random: Random, wrong: float) -> Value:
    return exactly(random.choice(("gzip", "Zstd", "", True, 5, b"zstd")), Is.WRONG) if random.random() < wrong else exactly("zstd")


def any_concurrency(random: Random) -> Value:
    return exactly(random.choice((None, 1))) if random.random() < 0.6 else exactly(random.choice((*JUNK, 2, 2, 8, 64, 65, 1000)), Is.ODD)


def any_bytes_max(random: Random) -> Value:
    return exactly(2**23) if random.random() < 0.8 else exactly(random.choice((*JUNK, 0, 10)), Is.ODD)


# --- settings ------------------------------------------------------------------------------------

_YAML = (
    "", "null", "[]", "5", "text", "directory: x\ndirectory: y", "directory: [x]", "{", "a: b: c", "\0", "directory: x\nstore: {concurrency_max: 0}",
    "directory: x\nstore: 5", "directory: x\nlease: {expiry_s: 1e-9}", "directory: x\nrecovery: {concurrency_max: 1e23}", "? [a]\n: b",
    "directory: !!python/object:os.system x", "&a [*a]", "directory: x\ninline_bytes_max: true", "directory: x\ninline_bytes_max: .nan",
    "directory: x\nstore: {queue_wait_s: .inf}", "[" * 5000, "directory: x\nlease: {expiry_s: 99999999999999999999999}", "directory: 2026-01-01", "1: 2",
    "null: x", "directory: x\nunknown: y", "directory: x\ninstance: ''", "directory: ''", "directory: '~/x'", "&a {directory: *a}", "<<: 5", "directory: x\n<<: {a: b}",
    "directory: \"\\uD800\"", "directory: \"a\\0b\"", "store: {concurrency_max: 99999999999999999999}\ndirectory: x", "- directory: x", "---\n---\n", "%YAML 9.9\n---\n",
    "directory: x\nfeed: {poll_s: 0}", "directory: x\nfeed: {poll_s: 1e308}", "bigtable: {}", "gcs: {bucket: b}\nbigtable: {project: p, instance: i}",
)  # fmt: skip
_NAMES = ("directory", "bigtable", "gcs", "changelog", "instance", "inline_bytes_max", "store", "lease", "recovery")
_NESTED = {
    "store": ("concurrency_max", "queue_max", "queue_wait_s", "answer_budget_s", "drain_budget_s"), "lease": ("expiry_s", "expiry"),
    "recovery": ("concurrency_max", "rate_per_s", "idle_s", "attempts_max"),
    "bigtable": ("project", "instance", "table"), "gcs": ("bucket", "endpoint"),
}  # fmt: skip


def any_settings(random: Random) -> Value:
    """Returns an argument for `Settings(**…)`, `load_settings(path)` or `open_storage(source)`.

    It is a dict, YAML as `bytes`, or anything else.
    """
    match random.randrange(4):
        case 0:
            return exactly(random.choice(_YAML).encode("utf-8", "surrogatepass"), Is.ODD)
        case 1:
            return junk(random, Path)
        case _:
            wrong: dict[str, object] = {"directory": "x"}
            for name in random.sample(_NAMES, random.randint(1, 2)):
                if name in _NESTED and random.random() < 0.7:
                    wrong[name] = {inner: random.choice(JUNK) for inner in random.sample(_NESTED[name], random.randint(1, 2))}
                else:
                    wrong[name] = random.choice(JUNK)
            return Value(f"Settings(**{said(wrong)})", lambda: wrong, Is.ODD)
