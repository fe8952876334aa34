"""A world with everything in it that an audit may find, and what must be found of each name: that, and nothing else.

    plant(ground) -> Planted       `expected`: (kind, name) of each blob and of each wrong row; `sizes`: of the blobs

Blobs are three days old, older than the grace of a day, unless they are planted to be young. What older software wrote,
and what is corrupt, is planted by raw writes past the backends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from changelog.change import LOG_PREFIX, Change, ChangeId
from recovery.audit.finding import NO_USECASE
from recovery.audit.finding_classes import FINDINGS, FindingClass
from recovery.audit.manifest import Cutoff
from tests.given.audit_grounds import BEGINS_NS, DAY_NS, OLD_NS, AuditGround
from tiered.metadata import NS_PER_MS

GRACE_S = 86_400.0
CUTOFF = Cutoff(as_of_ns=BEGINS_NS, grace_s=GRACE_S)
HOUR_NS = 3600 * 10**9
YOUNG_NS = BEGINS_NS - HOUR_NS
AHEAD_NS = BEGINS_NS + 2 * DAY_NS
PAST_NS, LATER_NS = BEGINS_NS - HOUR_NS, BEGINS_NS + DAY_NS
LONG_PAST_NS = BEGINS_NS - 8 * DAY_NS
"""Deadlines."""
LONG_AGO_NS = BEGINS_NS - 9 * DAY_NS

FAMILY = (
    "foo", "foo!", "foo-", "foo-bar", "foo-bar/baz", "foo.", "foo/", "foo/bar", "foo/bar-", "foo/objects/x", "foo0", "fooa", "foo foo",
)  # fmt: skip
"""Keys one of which begins with the other: the byte that follows is below a slash, a slash, or above it."""
UNICODE = (
    "é", "e\u0301", "\ue000", "\uffee", "\U00010000", "\U0010fffd", "日本", "日本-", "日本/語", "😀", "😀-😀", "a\u200db",
    "\u0301", "ß", "SS", "ss",
)  # fmt: skip
"""Astral characters come after all others in UTF-8, and before some in UTF-16."""
PATH_MAX = 1024 - 37
UNREADABLE = 3
"""Entries of the changelog that nobody can read."""


@dataclass
class Planted:
    """`undecided`: blobs that a row of another object names; whether they seem to be orphans depends on the cut."""

    ground: AuditGround
    expected: Counter[tuple[FindingClass, str]] = field(default_factory=Counter)
    sizes: dict[str, int] = field(default_factory=dict)
    undecided: set[str] = field(default_factory=set)
    dated_ahead: int = 0
    count: int = 0

    def expect(self, kind: FindingClass, name: str, size: int | None = None) -> None:
        """`size`: of a blob that is listed."""
        self.expected[kind, name] += 1
        if size is not None:
            self.sizes[name] = size

    @property
    def findings(self) -> Counter[tuple[FindingClass, str]]:
        return Counter({(kind, name): number for (kind, name), number in self.expected.items() if kind in FINDINGS})

    def totals(self) -> dict[tuple[str, FindingClass], tuple[int, int]]:
        """Number and bytes by usecase and kind."""
        found: dict[tuple[str, FindingClass], tuple[int, int]] = {}
        for (kind, name), number in self.expected.items():
            usecase, slash, _ = name.partition("/")
            key = usecase if usecase and slash else NO_USECASE, kind
            before, size = found.get(key, (0, 0))
            found[key] = before + number, size + self.sizes.get(name, 0)
        return found

    def id(self, at_ns: int = OLD_NS) -> ChangeId:
        return self.ground.clock.at(at_ns)

    async def blob(self, kind: FindingClass, name: str, at_ns: int = OLD_NS, deadline_ns: int | None = None) -> str:
        self.count += 1
        size = 1 + self.count % 97
        await self.ground.blob(name, size, at_ns, deadline_ns)
        self.expect(kind, name, size)
        return name

    async def revision(self, kind: FindingClass, path: str, at_ns: int = OLD_NS, deadline_ns: int | None = None) -> str:
        """A blob of this object, named by no row."""
        return await self.blob(kind, f"{path}/{self.id(at_ns)}", at_ns, deadline_ns)

    async def object(self, path: str, at_ns: int = OLD_NS) -> str:
        """A whole object of this software."""
        name = await self.revision(FindingClass.REFERENCED, path, at_ns)
        await self.ground.row(path, name, None)
        return name

    async def dangling(self, path: str, deadline_ns: int | None = None) -> None:
        name = f"{path}/{self.id()}"
        await self.ground.row(path, name, deadline_ns)
        self.expect(FindingClass.DANGLING, name)


async def plant(ground: AuditGround) -> Planted:
    world = Planted(ground)
    for part in (
        _references, _both_readings, _prefixes, _unicode, _lengths, _expired, _in_flight, _young, _uploads, _odd_names, _orphans,
        _tildes, _misdirected,
    ):  # fmt: skip
        await part(world)
    await ground.oddities(world.expect)
    ground.clock.now_ns = BEGINS_NS
    return world


async def _references(world: Planted) -> None:
    for number in range(12):
        await world.object(f"refs/org.{number % 3}/objects/{number:02}")
    await world.object("refs/objects/young", YOUNG_NS)
    for empty in (False, True):
        path = f"refs/objects/legacy/{empty}"
        await world.blob(FindingClass.REFERENCED, path)
        await world.ground.legacy_row(path, None, empty=empty)
    name = await world.revision(FindingClass.REFERENCED, "refs/objects/mortal", OLD_NS, LATER_NS)
    await world.ground.row("refs/objects/mortal", name, LATER_NS)
    for number in range(3):  # rows without a blob
        await world.ground.inline(f"refs/org.{number}/objects/inline")
        await world.ground.refuse(f"refs/objects/marks/{number}", world.id())


async def _both_readings(world: Planted) -> None:
    ground = world.ground
    by_revision = await world.revision(FindingClass.REFERENCED, "both/objects/k")
    await ground.row("both/objects/k", by_revision, None)
    for empty in (False, True):
        unsuffixed = await world.revision(FindingClass.REFERENCED, f"both/objects/legacy-{empty}")
        await ground.legacy_row(unsuffixed, None, empty=empty)  # the whole name is the key of an object of older software
    for expired, live in ((0, 1), (1, 0)):
        path = f"both/objects/rows-{live}"
        name = await world.revision(FindingClass.REFERENCED, path)
        deadlines = {expired: PAST_NS, live: None}
        await ground.row(path, name, deadlines[0])
        await ground.legacy_row(name, deadlines[1], empty=True)
    key = f"both/objects/keyed/{world.id()}"
    await world.object(key)
    await world.revision(FindingClass.ORPHAN, key)
    await world.revision(FindingClass.ORPHAN, "both/objects/keyed")
    # Not of version 7, not of lower case: parts of a key.
    await world.blob(FindingClass.LEGACY_ORPHAN, f"both/objects/four/{UUID(int=7, version=4)}")
    await world.blob(FindingClass.LEGACY_ORPHAN, f"both/objects/upper/{world.id().upper()}")
    await world.blob(FindingClass.LEGACY_ORPHAN, f"both/objects/{world.id()}")  # a revision of nothing
    name = f"both/objects/gone/{world.id()}"
    await ground.legacy_row(name, None, empty=True)
    world.expect(FindingClass.DANGLING, name)


async def _prefixes(world: Planted) -> None:
    for key in FAMILY:
        await world.object(f"prefix/objects/{key}")
        await world.revision(FindingClass.ORPHAN, f"prefix/objects/{key}")
        await world.dangling(f"prefix-gone/objects/{key}")
        for usecase in ("prefix-old", "prefix-old!"):
            await world.blob(FindingClass.REFERENCED, f"{usecase}/objects/{key}")
            await world.ground.legacy_row(f"{usecase}/objects/{key}", None, empty=len(key) % 2 == 0)
        await world.blob(FindingClass.LEGACY_ORPHAN, f"prefix-lost/objects/{key}")
    for scope in ("a.1", "a.1-", "a.1!", "a.10", "a.1/b.2"):  # where the path before the key is one, too
        await world.object(f"prefix/{scope}/objects/k")
        await world.dangling(f"prefix/{scope}/objects/gone")
    for _ in range(12):  # more than a window holds, of one row
        await world.revision(FindingClass.ORPHAN, "prefix/objects/foo-bar")
        await world.revision(FindingClass.ORPHAN, "prefix/objects/foo")


async def _unicode(world: Planted) -> None:
    for key in UNICODE:
        await world.object(f"unicode/objects/{key}")
        await world.revision(FindingClass.ORPHAN, f"unicode/objects/{key}")
        await world.dangling(f"unicode/objects/gone/{key}")
        await world.blob(FindingClass.LEGACY_ORPHAN, f"ünïcode/objects/{key}")


async def _lengths(world: Planted) -> None:
    for character in ("x", "é", "😀", "-"):
        stem = f"long/objects/{character}/"
        whole = stem + character * ((PATH_MAX - len(stem.encode())) // len(character.encode()))
        await world.object(whole)
        await world.revision(FindingClass.ORPHAN, whole)
        await world.dangling(whole[:-1])
        legacy = stem + character * ((1024 - len(stem.encode())) // len(character.encode()))
        await world.blob(FindingClass.LEGACY_ORPHAN, legacy)
        await world.blob(FindingClass.REFERENCED, legacy[:-1])
        await world.ground.legacy_row(legacy[:-1], None, empty=True)
    await world.object("s/objects/k")


async def _expired(world: Planted) -> None:
    ground = world.ground
    name = await world.revision(FindingClass.EXPIRED, "expired/objects/both", OLD_NS, PAST_NS)
    await ground.row("expired/objects/both", name, PAST_NS)
    name = await world.revision(FindingClass.EXPIRED, "expired/objects/row")  # the blob was touched, and the row was not
    await ground.row("expired/objects/row", name, PAST_NS)
    await ground.row("expired/objects/lost", f"expired/objects/lost/{world.id()}", PAST_NS)
    world.expect(FindingClass.EXPIRED, "expired/objects/lost")
    for empty in (False, True):
        await ground.legacy_row(f"expired/objects/legacy-lost-{empty}", PAST_NS, empty=empty)
        world.expect(FindingClass.EXPIRED, f"expired/objects/legacy-lost-{empty}")
        await world.blob(FindingClass.EXPIRED, f"expired/objects/legacy-{empty}", OLD_NS, PAST_NS)
        await ground.legacy_row(f"expired/objects/legacy-{empty}", PAST_NS, empty=empty)
    name = await world.revision(FindingClass.REFERENCED, "expired/objects/blob", OLD_NS, PAST_NS)
    await ground.row("expired/objects/blob", name, None)  # a live row is never in doubt
    await world.revision(FindingClass.EXPIRED, "expired/objects/alone", OLD_NS, PAST_NS)
    await world.revision(FindingClass.OVERDUE, "expired/objects/overdue", LONG_AGO_NS, LONG_PAST_NS)
    name = await world.revision(FindingClass.OVERDUE, "expired/objects/overdue-row", LONG_AGO_NS, LONG_PAST_NS)
    await ground.row("expired/objects/overdue-row", name, LONG_PAST_NS)
    await world.blob(FindingClass.EXPIRED, "expired/objects/legacy-alone", OLD_NS, PAST_NS)
    await world.revision(FindingClass.ORPHAN, "expired/objects/mortal", OLD_NS, LATER_NS)
    await world.revision(FindingClass.TOO_YOUNG, "expired/objects/young", YOUNG_NS - HOUR_NS, PAST_NS)
    await world.dangling("expired/objects/dangling", LATER_NS)


async def _in_flight(world: Planted) -> None:
    ground = world.ground

    async def entry(path: str, *, new: str | None = None, old: str | None = None, stuck: bool = False) -> None:
        await ground.entry(Change(world.id(), path, new, old), stuck=stuck)

    for stuck in (False, True):
        path = f"flight/objects/{'stuck' if stuck else 'open'}"
        new, old = await world.revision(FindingClass.IN_FLIGHT, path), await world.revision(FindingClass.SUPERSEDED, path)
        await entry(path, new=new, old=old, stuck=stuck)
        await world.revision(FindingClass.ORPHAN, path)  # which no entry names
    name = await world.object("flight/objects/done")
    await entry("flight/objects/done", new=name, old=f"flight/objects/done/{world.id()}")
    name = await world.revision(FindingClass.IN_FLIGHT, "flight/objects/twice")
    await entry("flight/objects/twice", old=name)
    await entry("flight/objects/twice", new=name)
    await entry("flight/objects/legacy", old=await world.blob(FindingClass.SUPERSEDED, "flight/objects/legacy"))
    await entry("flight/objects/young", new=await world.revision(FindingClass.IN_FLIGHT, "flight/objects/young", YOUNG_NS))
    name = await world.revision(FindingClass.EXPIRED, "flight/objects/expired", OLD_NS, PAST_NS)
    await ground.row("flight/objects/expired", name, PAST_NS)
    await entry("flight/objects/expired", old=name)
    await entry("flight/objects/delete")  # names nothing
    for number, (value, shard) in enumerate(((b'{"v":1,"id":', "07/"), (b"\xff", ""), (b'{"v":9}', "ff/"))):
        path, token = f"flight/objects/unreadable-{number}", world.id()
        await world.blob(FindingClass.IN_FLIGHT, f"{path}/{token}")
        await ground.raw_entry(f"{LOG_PREFIX}{shard}{token}", value)
    token, path = world.id(), "flight/objects/older"
    new, old = await world.blob(FindingClass.IN_FLIGHT, f"{path}/{token}"), await world.revision(FindingClass.SUPERSEDED, path)
    await ground.raw_entry(f"{LOG_PREFIX}{token}", f'{{"id":"{path}","new":"{new}","old":"{old}"}}'.encode())


async def _young(world: Planted) -> None:
    edge_ns = CUTOFF.created_before_ns
    await world.revision(FindingClass.TOO_YOUNG, "young/objects/both", YOUNG_NS)
    await world.blob(FindingClass.TOO_YOUNG, f"young/objects/landed-late/{world.id()}", YOUNG_NS)
    await world.blob(FindingClass.TOO_YOUNG, f"young/objects/clock-ahead/{world.id(YOUNG_NS)}", OLD_NS)
    await world.blob(FindingClass.TOO_YOUNG, "young/objects/legacy", YOUNG_NS)
    await world.revision(FindingClass.TOO_YOUNG, "young/objects/edge", edge_ns)
    await world.revision(FindingClass.ORPHAN, "young/objects/edge", edge_ns - NS_PER_MS)
    await world.blob(FindingClass.TOO_YOUNG, "young/objects/legacy-edge", edge_ns)
    await world.blob(FindingClass.LEGACY_ORPHAN, "young/objects/legacy-over-the-edge", edge_ns - NS_PER_MS)
    await world.blob(FindingClass.TOO_YOUNG, f"young/objects/dated-ahead/{world.id(AHEAD_NS)}", OLD_NS)
    await world.revision(FindingClass.TOO_YOUNG, "young/objects/created-ahead", AHEAD_NS)
    world.dated_ahead += 2


async def _uploads(world: Planted) -> None:
    await world.blob(FindingClass.UPLOAD, "up/org.1/uploads/k/part-1")
    await world.revision(FindingClass.UPLOAD, "up/uploads/k")
    await world.blob(FindingClass.UPLOAD, "up/org.1/uploads/objects/k", YOUNG_NS)
    await world.blob(FindingClass.STALE_UPLOAD, "up/org.1/uploads/stale/part-1", LONG_AGO_NS)
    name = await world.revision(FindingClass.REFERENCED, "up/org.1/uploads/marked")
    await world.ground.row("up/org.1/uploads/marked", name, None)
    await world.revision(FindingClass.ORPHAN, "up/objects/uploads/k")  # an object whose key is called so
    await world.blob(FindingClass.QUARANTINED, f"~quarantine/november/set/objects/aside/{world.id(OLD_NS)}", OLD_NS)


async def _odd_names(world: Planted) -> None:
    for name in ("odd/noscope/objects/k", "odd/org.1/objects/", "odd/a.1//objects/k", "odd//objects/x"):
        await world.blob(FindingClass.UNPARSEABLE, name)
    await world.revision(FindingClass.UNPARSEABLE, "odd/noscope/objects/k")
    # Some of them side by side with a usecase, before and between its names.
    for name in ("backup.tar", "notes", "refs", "refs-old", "refs.tar/part", "s", "dir/file.txt", "object/objectss/k", "日本", "zzz"):
        await world.blob(FindingClass.FOREIGN, name)
    await world.revision(FindingClass.FOREIGN, "logs/2026")
    name = await world.blob(FindingClass.REFERENCED, "odd/name/that/a/row/names")
    await world.ground.row(name, name, None)


async def _orphans(world: Planted) -> None:
    ground = world.ground
    for number in range(10):
        await world.revision(FindingClass.ORPHAN, f"orphans/org.{number % 3}/objects/{number}")
    await world.blob(FindingClass.LEGACY_ORPHAN, "orphans/objects/legacy")
    await world.object("orphans/objects/beside")
    for _ in range(3):
        await world.revision(FindingClass.ORPHAN, "orphans/objects/beside")
    await world.blob(FindingClass.LEGACY_ORPHAN, "orphans/objects/beside")
    await ground.inline("orphans/objects/inline")
    await world.revision(FindingClass.ORPHAN, "orphans/objects/inline")
    await ground.inline("orphans/objects/inline-legacy")
    await world.blob(FindingClass.LEGACY_ORPHAN, "orphans/objects/inline-legacy")
    name = await world.revision(FindingClass.ORPHAN, "orphans/objects/refused")
    await ground.refuse("orphans/objects/refused", ChangeId(name.rpartition("/")[2]))
    for number in range(5):
        await world.dangling(f"dangling/org.{number % 3}/objects/{number}")
    await ground.legacy_row("dangling/objects/legacy-r", None, empty=True)
    await ground.legacy_row("dangling/objects/legacy-m", None, empty=False)
    world.expect(FindingClass.DANGLING, "dangling/objects/legacy-r")
    world.expect(FindingClass.DANGLING, "dangling/objects/legacy-m")
    await world.dangling("dangling/objects/beside")
    await world.revision(FindingClass.ORPHAN, "dangling/objects/beside")


async def _tildes(world: Planted) -> None:
    """Usecases of other software may begin with a tilde. What would be among the changelog's rows is no object."""
    for path in ("~/objects/k", "~change/org.1/objects/k", "~theirs/objects/k", "~theirs/org.1/objects/foo", "~~/objects/k"):
        await world.object(path)
        await world.revision(FindingClass.ORPHAN, path)
        await world.dangling(f"{path}-gone")
    await world.blob(FindingClass.LEGACY_ORPHAN, "~theirs/objects/legacy")
    await world.blob(FindingClass.REFERENCED, "~theirs/objects/legacy-named")
    await world.ground.legacy_row("~theirs/objects/legacy-named", None, empty=True)
    await world.blob(FindingClass.FOREIGN, "~theirs/logs")
    await world.revision(FindingClass.UPLOAD, "~theirs/uploads/k")
    await world.revision(FindingClass.UNPARSEABLE, "~changelog/objects/k")
    await world.blob(FindingClass.QUARANTINED, f"~quarantine/objects/k/{world.id(OLD_NS)}", OLD_NS)


async def _misdirected(world: Planted) -> None:
    """Each is told, wherever its target is; what it names may be anybody's."""
    for number, deadline_ns in enumerate((None, PAST_NS, LATER_NS)):
        path = f"misdirected/objects/{number}"
        for other in (f"misdirected/objects/{number}0/{world.id()}", f"a/objects/k/{world.id()}", f"zzz/objects/k/{world.id()}"):
            await world.ground.row(f"{path}/{other}", other, deadline_ns)
            world.expect(FindingClass.MISDIRECTED, f"{path}/{other}")
    name = f"misdirected/objects/there/{world.id()}"
    world.undecided.add(name)
    await world.ground.blob(name, 1, OLD_NS, None)
    await world.ground.row("misdirected/objects/elsewhere", name, None)
    world.expect(FindingClass.MISDIRECTED, "misdirected/objects/elsewhere")
