"""`compare`: what a caller's own rows name, beside what is stored."""

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from threading import get_ident
from typing import Any

import anyio
import pytest

from tests.given.repository import ROOT
from tiered import (
    CancelledElsewhereError,
    ConditionFailedError,
    Difference,
    InvalidRequestError,
    Metadata,
    ObjectId,
    ObjectPrefix,
    Settings,
    TimeToLive,
    UnavailableError,
    open_storage,
)
from tiered.testing import MemoryStorage, blocking_memory_storage, memory_storage

pytestmark = pytest.mark.anyio

PHOTOS = ObjectPrefix.create("photos")
LATER = timedelta(days=10)
LARGE = bytes(2_000_000)


def photo(number: object) -> ObjectId:
    return ObjectId.create("photos", f"{number}")


async def put_all(storage: MemoryStorage, ids: Iterable[ObjectId], payload: bytes = b"x") -> None:
    for each in ids:
        await storage.put(each, payload)
    storage.clock.advance(LATER)


async def found(storage: MemoryStorage, ids: Any, prefix: ObjectPrefix = PHOTOS, **others: Any) -> list[tuple[str, bool]]:
    """The key of each difference, and whether it is stored."""
    return [(each.object_id.key, each.entry is not None) async for each in storage.compare(prefix, ids, **others)]


async def test_what_only_one_side_has_is_told_in_the_order_of_paths() -> None:
    async with memory_storage() as storage:
        await put_all(storage, map(photo, "acegZ"))
        assert await found(storage, map(photo, ["g", "h", "B", "c", "a"])) == [
            ("B", False), ("Z", True), ("e", True), ("h", False),
        ]  # fmt: skip
        differences = [each async for each in storage.compare(PHOTOS, [photo(key) for key in "aceg"])]
        assert differences == [Difference(photo("Z"), await anext(storage.list()))]


async def test_thousands_of_ids_without_order_and_doubled_are_compared() -> None:
    async with memory_storage() as storage:
        numbers = [*range(2500), *range(0, 2500, 3)]
        random.Random(1).shuffle(numbers)
        await put_all(storage, (photo(number) for number in range(5, 2505)))

        async def named() -> AsyncIterator[ObjectId]:
            for number in numbers:
                yield photo(number)

        wanted = [(str(number), False) for number in range(5)] + [(str(number), True) for number in range(2500, 2505)]
        assert sorted(await found(storage, named())) == sorted(wanted)


@pytest.mark.parametrize("sort", ["async", "iterator", "list", "set"])
async def test_ids_come_from_whatever_gives_them(sort: str) -> None:
    ids = [photo("a"), photo("c")]

    async def asynchronous() -> AsyncIterator[ObjectId]:
        for each in ids:
            yield each

    kinds: dict[str, Any] = {"async": asynchronous(), "iterator": iter(ids), "list": ids, "set": set(ids)}
    async with memory_storage() as storage:
        await put_all(storage, map(photo, "ab"))
        assert await found(storage, kinds[sort]) == [("b", True), ("c", False)]


async def test_a_large_object_is_told_like_a_small_one() -> None:
    async with memory_storage() as storage:
        await put_all(storage, [photo("large")], LARGE)
        assert await found(storage, [photo("gone")]) == [("gone", False), ("large", True)]


@pytest.mark.parametrize("at", [0, 1500])
async def test_an_iterator_that_fails_tells_nothing_and_its_error_is_raised(at: int) -> None:
    async def named() -> AsyncIterator[ObjectId]:
        for number in range(at):
            yield photo(number)
        raise ZeroDivisionError("the database is away")

    async with memory_storage() as storage:
        await put_all(storage, [photo("x")])
        told = storage.compare(PHOTOS, named())
        with pytest.raises(ZeroDivisionError, match="the database is away"):
            await anext(told)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_the_iterator_awaited_was_cancelled_elsewhere_and_not_its_caller() -> None:
    async def named() -> AsyncIterator[ObjectId]:
        yield photo("a")
        (future := asyncio.get_running_loop().create_future()).cancel()
        await future

    async with memory_storage() as storage:
        with pytest.raises(CancelledElsewhereError, match="nothing was compared"):
            await found(storage, named())


# --- what is written meanwhile ------------------------------------------------------------------------


async def test_what_is_put_with_its_row_while_ids_are_read_or_listed_is_told_on_neither_side() -> None:
    """With a grace of nothing: also at the very moment at which the comparison begins."""
    async with memory_storage() as storage:
        rows = [photo(number) for number in range(3000)]
        await put_all(storage, rows)

        async def named() -> AsyncIterator[ObjectId]:
            for number, each in enumerate(list(rows)):
                yield each
                if number % 500 == 0:
                    await storage.put(new := photo(f"{number}-new"), LARGE if number else b"small")
                    rows.append(new)  # this reader has its own view of the rows, and does not see it

        assert await found(storage, named(), grace=timedelta(0)) == []

        extra = photo("0-extra")
        await storage.put(extra, b"x")
        storage.clock.advance(timedelta(seconds=1))
        told: list[str] = []
        async for each in storage.compare(PHOTOS, rows, grace=timedelta(0)):
            told.append(each.object_id.key)
            await storage.put(photo("9-while-it-is-listed"), b"x")
        assert told == [extra.key]


@pytest.mark.parametrize(("age", "grace", "told"), [
    (timedelta(days=8, hours=23), None, False), (timedelta(days=9, hours=1), None, True),
    (timedelta(minutes=59), timedelta(hours=1), False), (timedelta(minutes=61), timedelta(hours=1), True),
])  # fmt: skip
@pytest.mark.parametrize("payload", [b"small", LARGE])
async def test_an_object_without_a_row_is_told_when_it_is_older_than_the_grace(
    age: timedelta, grace: timedelta | None, told: bool, payload: bytes
) -> None:
    async with memory_storage() as storage:
        await storage.put(photo("a"), payload)
        storage.clock.advance(age)
        assert await found(storage, [], grace=grace, allow_empty=True) == [("a", True)] * told


async def test_the_default_waits_for_the_longest_open_upload() -> None:
    """Its revision is as old as its beginning, and not every row tells when it was completed."""
    async with memory_storage(Settings(directory="unused", store={"upload_age_max_s": 3 * 86_400})) as storage:
        upload = await storage.begin_multipart(photo("a"))
        await upload.upload_part(1, LARGE)
        storage.clock.advance(timedelta(days=2, hours=23))
        await upload.complete()
        storage.clock.advance(timedelta(hours=2))
        assert await found(storage, [], allow_empty=True) == []
        storage.clock.advance(timedelta(days=5))
        assert await found(storage, [], allow_empty=True) == [("a", True)]


async def test_a_copy_is_as_young_as_it_is_although_it_keeps_the_time_of_creation() -> None:
    async with memory_storage() as storage:
        await put_all(storage, [photo("a")])
        await storage.copy(photo("a"), photo("b"))
        assert await found(storage, [photo("a")]) == []


async def test_what_is_deleted_meanwhile_after_its_row_is_told_and_its_row_is_gone() -> None:
    """Nobody can tell it from a loss but by the row. So whoever acts on it looks there again."""
    async with memory_storage() as storage:
        rows = {photo("a"), photo("b")}
        await put_all(storage, rows)

        async def named() -> AsyncIterator[ObjectId]:
            for each in sorted(rows, key=str):
                yield each
            rows.discard(photo("b"))
            await storage.delete(photo("b"))

        told = [each async for each in storage.compare(PHOTOS, named())]
        assert told == [Difference(photo("b"), None)] and told[0].object_id not in rows


async def test_a_difference_names_the_revision_so_that_nothing_newer_is_deleted() -> None:
    async with memory_storage() as storage:
        await put_all(storage, [photo("a")])
        async for each in storage.compare(PHOTOS, [], allow_empty=True):
            await storage.put(photo("a"), b"put again, and its row will follow")
            assert each.entry is not None and each.entry.revision is not None
            with pytest.raises(ConditionFailedError):
                await storage.delete(each.object_id, if_revision=each.entry.revision)
        assert await storage.head(photo("a")) is not None


async def test_what_has_expired_is_no_object() -> None:
    async with memory_storage() as storage:
        await storage.put(photo("a"), b"x", Metadata(expiration=TimeToLive(timedelta(hours=1))))
        storage.clock.advance(LATER)
        assert await found(storage, [photo("a")]) == [("a", False)]


# --- what is refused ----------------------------------------------------------------------------------


async def test_rows_that_were_not_read_do_not_accuse_all_objects() -> None:
    async with memory_storage() as storage:
        assert await found(storage, []) == [], "there is nothing to accuse"
        await put_all(storage, [photo("a")])
        with pytest.raises(InvalidRequestError, match=r"no id came, and there are objects, such as photos/objects/a: .*allow_empty"):
            await found(storage, [])
        assert await found(storage, [], allow_empty=True) == [("a", True)]


@pytest.mark.parametrize(("ids", "told"), [
    ("photos/objects/a", "object_ids is an iterable or async iterable of ObjectId, not 'photos/objects/a'"),
    (7, "object_ids is an iterable or async iterable of ObjectId, not 7"),
    (["photos/objects/a"], r"pass each id as an ObjectId, not as 'photos/objects/a': ObjectId.parse\(text\)"),
    ([ObjectId.create("films", "a")], "films/objects/a is not within the prefix 'photos/': pass the prefix of all your ids"),
])  # fmt: skip
async def test_what_are_no_ids_of_the_prefix_is_refused(ids: Any, told: str) -> None:
    async with memory_storage() as storage:
        with pytest.raises(InvalidRequestError, match=told):
            await found(storage, ids)


@pytest.mark.parametrize(("arguments", "told"), [
    ({"grace": 5}, r"grace is how old an object is at least, such as timedelta\(days=1\), not 5"),
    ({"grace": timedelta(-1)}, "grace is how old an object is at least"),
    ({"allow_empty": 1}, "allow_empty"), ({"prefix": "photos"}, "a prefix is"),
])  # fmt: skip
async def test_wrong_arguments_are_refused_before_anything_is_read(arguments: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {"prefix": PHOTOS, "object_ids": [photo("a")], **arguments}
    async with memory_storage() as storage:
        with pytest.raises(InvalidRequestError, match=told):
            storage.compare(**given)


async def test_a_store_that_is_closed_says_so() -> None:
    async with memory_storage() as storage:
        pass
    with pytest.raises(InvalidRequestError, match="the storage is not open"):
        await found(storage, [photo("a")])


async def test_a_failure_of_the_store_is_raised() -> None:
    async with memory_storage() as storage:
        await put_all(storage, [photo("a")])
        storage.faults.fail("list", UnavailableError)
        with pytest.raises(UnavailableError):
            await found(storage, [photo("a")])


FULL = """
import resource
import signal
import anyio
from changelog.base.errors import UnavailableError
from changelog.sqlite import temporary
from tiered import ObjectId, ObjectPrefix
from tiered.testing import memory_storage

async def main():
    async with memory_storage() as storage:
        try:
            async for each in storage.compare(ObjectPrefix.create("photos"), [ObjectId.create("photos", f"{n}") for n in range(20_000)]):
                raise AssertionError(each)
        except UnavailableError as error:
            print(error)

temporary.CACHE_KIB = 16
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
anyio.run(main)
"""


@pytest.mark.slow
def test_a_disk_that_is_full_tells_nothing_and_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert re.search(r"^what does not fit into memory cannot be kept in a temporary file: .*; free space .* TMPDIR\n$", done.stdout), done


async def test_whoever_leaves_early_leaves_nothing_open() -> None:
    """An open database would be a ResourceWarning, which is an error in tests."""
    async with memory_storage() as storage:
        await put_all(storage, map(photo, range(5)))
        async with aclosing(storage.compare(PHOTOS, [photo("x")])) as differences:
            assert (await anext(differences)).object_id == photo(0)


# --- elsewhere -----------------------------------------------------------------------------------------


async def test_an_embedded_store_is_compared_as_well(tmp_path: Path) -> None:
    async with open_storage(Settings(directory=tmp_path, inline_bytes_max=4)) as storage:
        for key in ("a", "é", "z"):
            await storage.put(photo(key), b"large")
        await anyio.sleep(0.01)
        told = storage.compare(PHOTOS, [photo("z"), photo("ü")], grace=timedelta(0))
        assert [each.object_id.key async for each in told] == ["a", "é", "ü"]


def test_a_blocking_caller_reads_its_rows_in_its_own_thread() -> None:
    """As a cursor of SQLite demands."""
    threads: set[int] = set()

    def named(database: sqlite3.Connection) -> Iterator[ObjectId]:
        for (path,) in database.execute("SELECT object FROM photos"):
            threads.add(get_ident())
            yield ObjectId.parse(path)

    with blocking_memory_storage() as storage, sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE photos (object TEXT)")
        for number in range(1200):
            storage.put(photo(number), b"x")
            database.execute("INSERT INTO photos VALUES (?)", [str(photo(number + 1))])
        storage.clock.advance(LATER)
        told = list(storage.compare(PHOTOS, named(database)))
        assert [(each.object_id.key, each.entry is not None) for each in told] == [("0", True), ("1200", False)]
        assert threads == {get_ident()}
        with pytest.raises(ZeroDivisionError):
            list(storage.compare(PHOTOS, (photo(1 // number) for number in (1, 0))))
        with pytest.raises(InvalidRequestError, match="no event loop of yours"):
            storage.compare(PHOTOS, in_a_loop())  # type: ignore[arg-type]
    database.close()
    with pytest.raises(InvalidRequestError, match="not open"):
        storage.compare(PHOTOS, [])


async def in_a_loop() -> AsyncIterator[ObjectId]:
    yield photo("a")
