"""From Objectstore to this store, and back: each step, what a crash leaves, and why both must not write at once.

Objectstore is stood in for by the requests that it was seen to send: a write deletes the whole row first, then sets the
cells of its form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from google.cloud.bigtable_admin_v2.types import ColumnFamily, Table

from changelog.base.errors import TieredError
from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import DELETE_ROW, NEWEST, BigtableTable, KeySpan, set_cell
from changelog.change import Change, ChangeId
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from emulators.up import BUILT_IN, start_emulators
from tests.given.command_line import OWN_PROCESS, Command
from tests.given.other_software import cells_of
from tests.given.repository import ROOT
from tiered import ConfigurationError, DanglingTombstoneError, Metadata, ObjectId, Settings, open_storage
from tiered.bigtable.rows import BigtableRows
from tiered.gcs.blobs import GcsBlobs
from tiered.kinds import chosen
from tiered.object_id import blob_name
from tiered.open import open_backends
from tiered.provision import bucket, tables
from tiered.provision.bucket import open_client
from tiered.provision.findings import NoticeKind
from tiered.provision.schema import OBJECT_FAMILIES
from tiered.provision.tables import open_admin
from tiered.services.backends import Inline, Tombstone
from tiered.settings import StoreSettings

pytestmark = pytest.mark.anyio

RUNTIME = SystemRuntime()
MIB = 1024 * 1024
SMALL, LARGE, DELETED, SWAPPED = (ObjectId.create("theirs", key) for key in ("small", "large", "deleted", "swapped"))


class CrashError(Exception):
    """Ends provisioning between two steps. Nothing there catches it."""


Cells = dict[bytes, list[tuple[str, bytes, bytes, int]]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def settings(anyio_backend: str, bigtable_host: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Settings]:
    """A table and a bucket as Objectstore has them, with two small and two large objects."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable_host)
    suffix = f"{RUNTIME.random.getrandbits(64):016x}"
    async with start_emulators(BUILT_IN) as running:
        assert running.bigtable is not None and running.gcs is not None
        at = running.bigtable.model_copy(update={"table": f"theirs-{suffix}", "changelog_table": f"changelog-{suffix}"})
        found = running.model_copy(update={
            "bigtable": at, "gcs": running.gcs.model_copy(update={"bucket": f"theirs-{suffix}"}), "changelog": "bigtable",
        })  # fmt: skip
        with open_admin(at) as admin:
            families = Table(column_families={family: ColumnFamily(gc_rule=OBJECT_FAMILIES[family]) for family in ("fg", "fm")})
            admin.tables.create_table(parent=admin.instance, table_id=at.table, table=families, timeout=10)
        assert found.gcs is not None
        with open_client(found.gcs, at.project) as client:
            await anyio.to_thread.run_sync(client.create_bucket, found.gcs.bucket)
        for object_id, payload in (SMALL, b"small"), (LARGE, b"large"), (DELETED, b"deleted"), (SWAPPED, b"swapped"):
            await they_put(found, object_id, payload, large=object_id is not SMALL)
        yield found


async def they_put(settings: Settings, object_id: ObjectId, payload: bytes, *, large: bool = False) -> None:
    assert settings.gcs is not None
    target = blob_name(object_id.path, ChangeId.new(RUNTIME))
    if large:
        async with GcsBlobs.connect(settings.gcs.bucket, RUNTIME, endpoint=settings.gcs.endpoint) as blobs:
            upload = await blobs.open_upload(target, Metadata(), len(payload))
            await upload.write(payload)
            await upload.finalise()
    cells = [set_cell("fm", b"r", target.encode())] if large else [
        set_cell("fm", b"p", payload), set_cell("fm", b"m", b'{"content_type":"text/plain","size":%d}' % len(payload)),
    ]  # fmt: skip
    async with cells_of(settings) as table:
        await table.mutate(object_id.path.encode(), DELETE_ROW, *cells)


async def rows_of(settings: Settings) -> Cells:
    """Every row of the table of objects, whole."""
    async with cells_of(settings) as table:
        rows = await table.scan([KeySpan(b"", b"")], NEWEST, limit=1000)
    return {row.key: [(cell.family, cell.column, cell.value, cell.timestamp_us) for cell in row.cells] for row in rows}


async def payloads(settings: Settings, *object_ids: ObjectId) -> list[bytes | None]:
    async with open_storage(settings.model_copy(update={"changelog": "noop"}), RUNTIME, writes=False) as storage:
        found = [await storage.get(each) for each in object_ids]
        return [None if each is None else await each.read() for each in found]


async def blobs_of(settings: Settings) -> list[tuple[Any, ...]]:
    """Every object of the bucket, with what changes when it is changed."""
    assert settings.gcs is not None and settings.bigtable is not None
    at, project = settings.gcs, settings.bigtable.project

    def look() -> list[tuple[Any, ...]]:
        with open_client(at, project) as client:
            return [(each.name, each.generation, each.metageneration, each.metadata) for each in client.list_blobs(at.bucket)]

    return await anyio.to_thread.run_sync(look)


async def move_over(settings: Settings) -> list[str]:
    """Returns what is still wrong."""
    return [each.sentence for each in await chosen.provision(settings, adopt=True) if each.kind is NoticeKind.PROBLEM]


@pytest.mark.night
async def test_an_audit_beside_objectstore_accuses_nothing_and_touches_nothing(settings: Settings, tmp_path: Path) -> None:
    command = commands(settings, tmp_path, "noop")
    before = await rows_of(settings), await blobs_of(settings)
    to = str(tmp_path / "run")
    run = ("audit", "run", "--engine", "local", "--parallel", "1", "--to", to)
    assert "no store owns gs://" in await command(*run, code=2, process=True)
    said = await command(*run, "--unowned", code=0, process=True)
    assert "is the caller's word (--unowned)" in said
    for words in ("ls",), ("get", LARGE.path), ("head", SMALL.path), ("audit", "show", LARGE.path, "--from", to):
        await command(*words, code=0)
    assert (await rows_of(settings), await blobs_of(settings)) == before


async def test_a_move_over_that_is_cut_anywhere_changes_no_row_and_is_done_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, step, cut_at = await rows_of(settings), 0, 0
    mended, marked = tables._mending, bucket._mark

    def cut(call: Callable[..., None], *arguments: Any) -> None:
        nonlocal step
        step += 1
        if step == cut_at:
            raise CrashError
        call(*arguments)

    monkeypatch.setattr(tables, "_mending", partial(cut, mended))
    monkeypatch.setattr(bucket, "_mark", partial(cut, marked))
    while True:
        step, cut_at = 0, cut_at + 1  # each time one step further
        try:
            assert await move_over(settings) == []
            break
        except CrashError:
            assert await rows_of(settings) == before, "Objectstore may go on"
            with pytest.raises(ConfigurationError):
                async with open_storage(settings, RUNTIME):
                    pass
            assert await payloads(settings, SMALL, LARGE) == [b"small", b"large"]
    assert cut_at > 3 and await rows_of(settings) == before
    async with open_storage(settings, RUNTIME) as storage:
        await storage.put(LARGE, b"ours" * MIB)
        assert await payloads(settings, LARGE) == [b"ours" * MIB]


async def test_what_was_handed_back_has_no_row_for_what_is_gone_and_all_that_lives_unchanged(settings: Settings) -> None:
    assert await move_over(settings) == []
    made, moved, conditional = (ObjectId.create("ours", key) for key in ("made", "moved", "conditional"))
    async with open_storage(settings, RUNTIME) as storage:
        await storage.delete(DELETED)
        revision = (await storage.put(SWAPPED, b"again" * MIB)).revision
        await storage.put(SWAPPED, b"a small one", if_revision=revision)
        await storage.put(made, b"made" * MIB)
        await storage.copy(made, moved)
        await storage.delete(made)
        revision = (await storage.put(conditional, b"x", if_absent=True)).revision
        await storage.delete(conditional, if_revision=revision)
    living = {SMALL: b"small", LARGE: b"large", SWAPPED: b"a small one", moved: b"made" * MIB}
    gone = (DELETED, made, conditional)
    shown = await rows_of(settings)
    assert all({family for family, *_ in shown[each.path.encode()]} == {"ff"} for each in gone), "Objectstore shows these as empty objects"

    [planned] = await chosen.hand_back(settings, dry_run=True)
    assert planned.kind is NoticeKind.PLANNED and await rows_of(settings) == shown
    tired = settings.model_copy(update={"store": StoreSettings(answer_budget_s=1)})
    async with open_storage(tired, RUNTIME) as forgotten:
        [done] = await chosen.hand_back(settings)
        assert done.kind is NoticeKind.DONE
        after = await rows_of(settings)
        for late in (forgotten.put(SMALL, b"late"), forgotten.delete(SMALL), forgotten.put(LARGE, b"late"), forgotten.delete(LARGE)):
            with pytest.raises(TieredError):
                await late
        assert await rows_of(settings) == after
    assert set(after) == {each.path.encode() for each in living}, "absent is absent"
    assert after == {key: [cell for cell in shown[key] if cell[0] != "ff"] for key in after}
    assert await payloads(settings, *living, *gone) == [*living.values(), None, None, None]
    [again] = await chosen.hand_back(settings)
    assert again.kind is NoticeKind.OK
    with pytest.raises(ConfigurationError, match="no family ff: run 'tiered provision'"):
        async with open_storage(settings, RUNTIME):
            pass
    await they_put(settings, SMALL, b"theirs again")
    assert await move_over(settings) == [] and await payloads(settings, SMALL) == [b"theirs again"]


async def test_nothing_that_was_under_way_lands_after_a_table_was_handed_back() -> None:
    """Simulated: the service refuses a request that names a family which the table does not have, as a whole.

    Google's emulator carries such a request out up to that family.
    """
    server = MemoryBigtable(RUNTIME, {"t": {family: rule for family, rule in OBJECT_FAMILIES.items() if family != "ff"}})
    table = BigtableTable(MemoryChannel(server), "t")
    await table.mutate(SMALL.path.encode(), set_cell("fm", b"p", b"theirs"))
    await table.mutate(LARGE.path.encode(), set_cell("fm", b"r", b"their blob"))
    rows, token = BigtableRows(table, RUNTIME), ChangeId.new(RUNTIME)
    tombstone, deadline_s = Tombstone(blob_name(SMALL.path, token), None, None, token), RUNTIME.boot_time() + 30
    inline = (partial(rows.put_inline, token=token, state=Inline(Metadata(), b"late")), partial(rows.delete_inline, token=token))
    for path, expected in (SMALL.path, None), (LARGE.path, "their blob"):
        for late in (
            *(partial(each, path) for each in inline if expected is None),
            partial(rows.swap, path, token, expected, tombstone, deadline_s), partial(rows.swap, path, token, expected, None, deadline_s),
            partial(rows.settle, path, token),
        ):  # fmt: skip
            with pytest.raises(TieredError):
                await late()
        row = await table.read(path.encode())
        assert row is not None and [cell.value for cell in row.cells] == [b"theirs" if expected is None else b"their blob"]


async def test_two_kinds_of_writers_at_once_lose_data(settings: Settings) -> None:
    """Why they must not: a swap of ours that was refused lands when Objectstore has wiped the mark that refused it."""
    assert await move_over(settings) == []
    async with open_backends(settings, RUNTIME) as backends:
        rows, path, token = backends.tiers.high_volume, SWAPPED.path, ChangeId.new(RUNTIME)
        before = (await rows.read(path)).target
        assert not await rows.settle(path, token), "recovery has given the change up, and deletes its blob"
        late = partial(rows.swap, path, token, before, Tombstone(blob_name(path, token), None, None, token), RUNTIME.boot_time() + 30)
        assert not await late(), "the mark refuses it"
        async with cells_of(settings) as table:  # a renewal of Objectstore writes the row anew
            await table.mutate(path.encode(), DELETE_ROW, set_cell("fm", b"r", str(before).encode()))
        assert await late()
    with pytest.raises(DanglingTombstoneError):
        await payloads(settings, SWAPPED)


async def test_the_command_hands_back_only_what_is_at_rest(settings: Settings, tmp_path: Path) -> None:
    said = commands(settings, tmp_path, "bigtable")
    assert await move_over(settings) == []
    async with open_backends(settings, RUNTIME) as backends:
        entry = await backends.log.record(Change(ChangeId.new(RUNTIME), SMALL.path), "a store")
        await backends.log.announce("daemon-1")
        sentences = await said("hand-back", code=3)
        assert "problem 1 change is not cleaned up: run `tiered" in sentences and "stop daemon-1" in sentences
        assert await open_for_writing(settings)
        await backends.log.forget(entry)
    assert settings.bigtable is not None
    with open_admin(settings.bigtable) as admin:  # a day later, its presence is gone
        admin.tables.drop_row_range(request={"name": admin.table(settings.bigtable.changelog_table), "delete_all_data_from_table": True})
    without = commands(settings, tmp_path, "noop")
    assert "problem whether changes are under way is not known" in await without("hand-back", code=3)
    assert await open_for_writing(settings)
    said = commands(settings, tmp_path, "bigtable")
    assert "planned would remove family ff" in await said("hand-back", "--dry-run", code=0)
    assert "done    removed family ff, all marks, from table" in await said("hand-back", code=0)
    assert "ok      " in await said("hand-back", code=0)
    assert "no family ff" in await said("check", code=3)


def commands(settings: Settings, directory: Path, changelog: str) -> Callable[..., Awaitable[str]]:
    """Runs a command on these settings, and returns what it printed."""
    assert settings.bigtable is not None and settings.gcs is not None
    sections = {"bigtable": settings.bigtable.model_dump(exclude_unset=True), "gcs": settings.gcs.model_dump(exclude_unset=True)}
    (directory / "tiered.yaml").write_text(yaml.safe_dump({**sections, "changelog": changelog}))
    command = Command(directory, store=False)
    command.environment["PYTHONPATH"] = str(ROOT)

    async def said(*words: str, code: int, process: bool = False) -> str:
        python = OWN_PROCESS if process else ()
        arguments = ["--config", str(directory / "tiered.yaml"), *words]
        return await anyio.to_thread.run_sync(lambda: command(*arguments, python=python, code=code)) + command.errors

    return said


async def open_for_writing(settings: Settings) -> bool:
    async with open_storage(settings, RUNTIME):
        return True
