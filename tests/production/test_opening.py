"""The store as a service opens it, on both emulators: from settings to objects, and every way this can fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio
import yaml
from google.cloud.bigtable_admin_v2.types import ColumnFamily, Table

from changelog.base.runtime import SystemRuntime
from changelog.bigtable.channel import BigtableTable, set_cell
from changelog.change import ChangeId
from emulators.bigtable.memory import MemoryBigtable, MemoryChannel
from emulators.up import BUILT_IN, start_emulators
from recovery.states import Level
from recovery.status.judgement import judge
from recovery.status.known import Status
from recovery.status.look import gather
from tests.given.command_line import OWN_PROCESS, Command
from tests.given.other_software import cells_of
from tiered import (
    ConfigurationError,
    DanglingTombstoneError,
    InvalidRequestError,
    Metadata,
    ObjectId,
    ObjectPrefix,
    PutRequest,
    Settings,
    Tier,
    TieredStorage,
    UnavailableError,
    open_storage,
)
from tiered.bigtable.cells import LEGACY_FAMILIES
from tiered.gcs.blobs import GcsBlobs
from tiered.kinds.bigtable import told_by_deletions
from tiered.kinds.chosen import inspect, provision
from tiered.metadata import NS_PER_S, TimeToIdle, whole_ms
from tiered.object_id import blob_name
from tiered.open import open_backends
from tiered.provision.bucket import open_client
from tiered.provision.findings import NoticeKind
from tiered.provision.schema import OBJECT_FAMILIES
from tiered.provision.tables import open_admin
from tiered.services.backends import Inline, Tombstone
from tiered.settings import StoreSettings

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
RUNTIME = SystemRuntime()
ODD_KEYS = ["a#b?c=d&e", "100%2F%00", "dots...", "ü/é/😀🙂", " leading and trailing ", "semi;colon:at@", "x" * (987 - len("odd/objects/"))]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def settings(anyio_backend: str, bigtable_host: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Settings]:
    """Tables and a bucket of this test's own."""
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable_host)
    suffix = f"{RUNTIME.random.getrandbits(64):016x}"
    assert BUILT_IN.bigtable is not None
    tables = {"table": f"objects-{suffix}", "changelog_table": f"changelog-{suffix}"}
    async with start_emulators(BUILT_IN.model_copy(update={"bigtable": BUILT_IN.bigtable.model_copy(update=tables)})) as at:
        yield at


def changed(settings: Settings, section: str, **values: Any) -> Any:
    return settings.model_copy(update={section: getattr(settings, section).model_copy(update=values)})


async def refusal(settings: Settings) -> str:
    """The sentence with which the store refuses to open."""
    with pytest.raises((ConfigurationError, UnavailableError)) as refused:
        async with open_storage(settings, RUNTIME):
            pass
    return str(refused.value)


async def left_over(settings: Settings) -> tuple[list[str], int]:
    """The names of all blobs, and how many entries there are."""
    async with open_backends(settings, RUNTIME) as backends:
        blobs = await backends.tiers.long_term.list("", None, 1000)
        return [blob.name for blob in blobs.blobs], len((await backends.log.entries("", 1000)).entries)


# --- objects -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ODD_KEYS)
async def test_an_object_lives_in_both_tiers_and_dies_whatever_its_key(settings: Settings, key: str) -> None:
    object_id = ObjectId.create("odd", key)
    metadata = Metadata(content_type="text/plain", filename="size.txt", custom={"build": "a/b"})
    async with open_storage(settings, RUNTIME) as storage:
        for size, tier in ((10, Tier.HIGH_VOLUME), (2 * MIB, Tier.LONG_TERM), (5, Tier.HIGH_VOLUME)):
            assert (await storage.put(object_id, b"x" * size, metadata)).tier is tier
            stored = await storage.get(object_id)
            assert stored is not None and await stored.read() == b"x" * size
            assert (stored.metadata.content_type, stored.metadata.filename, stored.metadata.custom) == (
                "text/plain", "size.txt", {"build": "a/b"},
            )  # fmt: skip
            head = await storage.head(object_id)
            assert head is not None and (head.size, head.tier) == (size, tier)
            assert [entry.object_id async for entry in storage.list(ObjectPrefix.create("odd"))] == [object_id]
        await storage.delete(object_id)
        assert await storage.get(object_id) is None
    assert await left_over(settings) == ([], 0)


async def test_a_payload_of_unknown_size_goes_through_a_session_and_one_that_breaks_leaves_nothing(settings: Settings) -> None:
    async def chunks(*, broken: bool) -> AsyncIterator[bytes]:
        for _ in range(40):
            yield bytes(100_000)
        if broken:
            raise ArithmeticError

    object_id = ObjectId.create("streams", "k")
    async with open_storage(settings, RUNTIME) as storage:
        assert (await storage.put(object_id, chunks(broken=False))).size == 4_000_000
        with pytest.raises(ArithmeticError):
            await storage.put(object_id, chunks(broken=True))
        stored = await storage.get(object_id)
        assert stored is not None and await stored.read() == bytes(4_000_000)
    blobs, entries = await left_over(settings)
    assert (len(blobs), entries) == (1, 0)


async def test_many_objects_go_in_and_out_in_bulk(settings: Settings) -> None:
    payloads = {ObjectId.create("bulk", f"{n:03d}"): bytes([n]) * (2 * MIB if n % 10 == 0 else 100) for n in range(60)}
    async with open_storage(settings, RUNTIME) as storage:
        async with storage.put_many(PutRequest(each, payload) for each, payload in payloads.items()) as results:
            assert [result.error async for result in results] == [None] * 60
        async with storage.get_many(payloads) as loaded:
            assert {result.request: result.value.payload async for result in loaded if result.value} == payloads
        async with storage.delete_many(payloads) as deleted:
            assert [result.error async for result in deleted] == [None] * 60
        assert [entry.object_id async for entry in storage.list()] == []
    assert await left_over(settings) == ([], 0)


async def test_stores_on_the_same_backends_share_them_and_see_each_other(settings: Settings) -> None:
    object_id = ObjectId.create("shared", "k")
    async with open_backends(settings, RUNTIME) as backends, TieredStorage(backends.tiers, backends.log, RUNTIME, settings) as one:
        await one.put(object_id, b"one" * MIB)
        async with TieredStorage(backends.tiers, backends.log, RUNTIME, settings) as other:
            await other.put(object_id, b"other" * MIB)
        stored = await one.get(object_id)
        assert stored is not None and await stored.read() == b"other" * MIB
    blobs, entries = await left_over(settings)
    assert (len(blobs), entries) == (1, 0)


# --- what may be wrong ---------------------------------------------------------------------------------


async def test_an_emulator_beside_a_real_service_is_refused(settings: Settings) -> None:
    at = settings.bigtable, settings.gcs
    assert at[0] is not None and at[1] is not None
    assert await refusal(changed(settings, "gcs", endpoint=None)) == (
        f"bigtable.emulator_host is {at[0].emulator_host}, an emulator, but gcs.endpoint (STORAGE_EMULATOR_HOST) is not set: "
        "rows would name blobs of another world; set both or neither"
    )
    assert await refusal(changed(settings, "bigtable", emulator_host=None)) == (
        f"gcs.endpoint is {at[1].endpoint}, an emulator, but bigtable.emulator_host (BIGTABLE_EMULATOR_HOST) is not set: "
        "rows would name blobs of another world; set both or neither"
    )


async def test_a_table_that_is_missing_is_named_with_what_to_run(settings: Settings) -> None:
    assert await refusal(changed(settings, "bigtable", table="elsewhere")) == (
        "there is no table elsewhere in projects/emulated-project/instances/emulated: "
        "run 'tiered provision', or correct the names in the section bigtable"
    )


async def test_a_table_without_its_families_is_refused_before_anything_is_written(settings: Settings) -> None:
    assert settings.bigtable is not None
    sentence = await refusal(changed(settings, "bigtable", table=settings.bigtable.changelog_table))
    assert all(family in sentence for family in ("fg", "fm", "ff")) and "tiered provision" in sentence


async def test_a_bucket_that_is_missing_is_named_with_what_to_run(settings: Settings) -> None:
    sentence = await refusal(changed(settings, "gcs", bucket="elsewhere"))
    assert "'elsewhere'" in sentence and "tiered provision" in sentence


@pytest.mark.parametrize("address", ["nobody", "bigtable"])
async def test_without_gcs_small_objects_go_on_and_large_ones_name_the_address(
    settings: Settings, bigtable_host: str, caplog: pytest.LogCaptureFixture, address: str
) -> None:
    settings = settings.model_copy(update={"store": StoreSettings(answer_budget_s=0.3)})
    endpoint = {"nobody": "http://127.0.0.1:1", "bigtable": f"http://{bigtable_host}"}[address]
    async with open_storage(changed(settings, "gcs", endpoint=endpoint), RUNTIME) as storage:
        assert "bucket_not_reached bucket=tiered-blobs: " in caplog.text and endpoint in caplog.text
        await storage.put(ObjectId.create("a", "small"), b"x")
        with pytest.raises(UnavailableError, match=endpoint):
            await storage.put(ObjectId.create("a", "large"), bytes(2 * MIB))


async def test_without_bigtable_the_store_does_not_open_and_names_the_address(settings: Settings) -> None:
    assert settings.gcs is not None and settings.gcs.endpoint is not None
    for host in ("127.0.0.1:1", settings.gcs.endpoint.removeprefix("http://")):
        assert host in await refusal(changed(settings, "bigtable", emulator_host=host))


def test_the_store_says_that_it_needs_asyncio() -> None:
    async def main() -> None:
        async with open_storage(BUILT_IN):
            pass

    with pytest.raises(ConfigurationError, match="need asyncio"):
        trio.run(main)


# --- beside other software -------------------------------------------------------------------------------


PATH = "theirs/objects/k"


@pytest.fixture
async def theirs(anyio_backend: str, settings: Settings) -> Settings:
    """A table of the software that this format comes from: without marks, without a changelog, with payloads apart."""
    assert settings.bigtable is not None
    at = settings.bigtable.model_copy(update={"table": f"theirs-{settings.bigtable.table}", "changelog_table": "no-such-table"})
    with open_admin(at) as admin:
        families = Table(column_families={family: ColumnFamily() for family in ("fg", "fm", *LEGACY_FAMILIES)})
        admin.tables.create_table(parent=admin.instance, table_id=at.table, table=families, timeout=10)
    assert settings.gcs is not None
    with open_client(settings.gcs, at.project) as client:
        await anyio.to_thread.run_sync(client.create_bucket, "theirs")
    their_bucket = settings.gcs.model_copy(update={"bucket": "theirs"})
    return settings.model_copy(update={"bigtable": at, "gcs": their_bucket, "changelog": "noop"})


async def test_a_table_of_other_software_is_read_and_not_written(theirs: Settings, caplog: pytest.LogCaptureFixture) -> None:
    large = ObjectId.create("theirs", "large")
    assert theirs.gcs is not None
    async with cells_of(theirs) as table, GcsBlobs.connect("theirs", RUNTIME, endpoint=theirs.gcs.endpoint) as blobs:
        await table.mutate(PATH.encode(), set_cell("fpm", b"p", b"hello"), set_cell("fm", b"m", b'{"content_type":"text/plain"}'))
        await table.mutate(large.path.encode(), set_cell("fm", b"r", b""), set_cell("fm", b"t", b"{}"))
        upload = await blobs.open_upload(large.path, Metadata(), 3)
        await upload.write(b"big")
        await upload.finalise()
    async with open_storage(theirs, RUNTIME, writes=False) as storage:
        small = await storage.get(ObjectId.parse(PATH))
        assert small is not None and await small.read() == b"hello"
        stored = await storage.get(large)
        assert stored is not None and await stored.read() == b"big"
        assert await storage.head(large) is not None
        assert [entry.object_id.path async for entry in storage.list()] == [PATH, large.path]
        for write in (partial(storage.put, large, b"x"), partial(storage.delete, large)):
            with pytest.raises(ConfigurationError, match="opened to read only"):
                await write()
    assert "no family ff" in await refusal(theirs)
    assert "no-such-table" in await refusal(theirs.model_copy(update={"changelog": "bigtable"}))
    assert [said.sentence for said in await inspect(theirs) if said.kind is NoticeKind.PROBLEM] == [
        f"table {theirs.bigtable.table} has no family ff: run 'tiered provision'" if theirs.bigtable else "",
        "gs://theirs/ holds objects, and no marker says whose: if no other store keeps its blobs there, run 'tiered provision"
        " --adopt-bucket'; else give this store another gcs.bucket, or a gcs.prefix of its own",
    ]
    assert "bucket_without_owner bucket=theirs: no store owns gs://theirs/ yet" in caplog.text


async def test_a_copy_of_an_object_whose_row_tells_no_lifetime_has_it(settings: Settings) -> None:
    source, copy = (ObjectId.create("photos", key) for key in ("source", "copy"))
    hour, deadline_ns = TimeToIdle(ns=3600 * NS_PER_S), whole_ms(RUNTIME.wall_ns()) + 3000 * NS_PER_S
    target = blob_name(source.path, ChangeId.new(RUNTIME))
    async with cells_of(settings) as table, open_backends(settings, RUNTIME) as backends:
        await table.mutate(source.path.encode(), set_cell("fm", b"r", target.encode()))
        upload = await backends.tiers.long_term.open_upload(target, Metadata(hour, time_expires_ns=deadline_ns), 3)
        await upload.write(b"big")
        await upload.finalise()
        async with open_storage(settings, RUNTIME) as storage:
            await storage.copy(source, copy)
            head = await storage.head(copy)
        assert head is not None and (head.metadata.expiration, head.metadata.time_expires_ns) == (hour, deadline_ns)
        state = (await backends.tiers.high_volume.read(copy.path)).state
        assert isinstance(state, Tombstone) and (state.expiration, state.deadline_ns) == (hour, deadline_ns)


async def test_commands_that_read_serve_a_table_of_other_software(theirs: Settings, tmp_path: Path) -> None:
    async with cells_of(theirs) as table:
        await table.mutate(PATH.encode(), set_cell("fm", b"p", b"hello"), set_cell("fm", b"m", b'{"content_type":"text/plain"}'))
    config = ["--config", str(settings_file(theirs, tmp_path, changelog="noop"))]
    for command in (f"get {PATH}", f"head {PATH}", "ls", f"audit show {PATH}"):
        out, _ = await run(tmp_path, [*config, *command.split()])
        assert "hello" in out if command.startswith("get") else out
    # An audit that cannot know whose the blobs are is not complete.
    audit = ["audit", "run", "--engine", "local", "--parallel", "1", "--to", str(tmp_path / "run")]
    said = "".join(await run(tmp_path, [*config, *audit], OWN_PROCESS, code=2))
    assert "blobs of another store may be among these, because no store owns gs://theirs/ yet" in said


async def run(directory: Path, arguments: Sequence[str], python: tuple[str, ...] = (), code: int = 0) -> tuple[str, str]:
    """Runs a command in a thread, or in a process of its own. Returns what it printed, and its complaints."""
    command = Command(directory, store=False)
    return await anyio.to_thread.run_sync(lambda: command(*arguments, python=python, code=code)), command.errors


def settings_file(settings: Settings, directory: Path, **others: str) -> Path:
    assert settings.bigtable is not None and settings.gcs is not None
    sections = {"bigtable": settings.bigtable.model_dump(exclude_unset=True), "gcs": settings.gcs.model_dump(exclude_unset=True)}
    (directory / "tiered.yaml").write_text(yaml.safe_dump(sections | others))
    return directory / "tiered.yaml"


async def test_where_no_changelog_is_set_commands_name_the_one_that_there_could_be(settings: Settings, tmp_path: Path) -> None:
    await provision(settings.model_copy(update={"changelog": None}))
    for command in ("log list", "recover --once", "check"):
        python = OWN_PROCESS if command.startswith("recover") else ()  # it listens to signals, which a thread cannot
        arguments = ["--config", str(settings_file(settings, tmp_path)), *command.split()]
        said = "".join(await run(tmp_path, arguments, python, code=0 if command == "check" else 3))
        assert "set changelog: bigtable" in said and "changelog: sqlite" not in said
    assert "note    no changelog is kept" in said and "WARNING" not in said, "it is a note like the others, so that it is in JSON, too"


async def test_check_says_that_other_software_writes_beside_this_one(settings: Settings, tmp_path: Path) -> None:
    theirs, now_ns = ObjectId.create("photos", "theirs"), RUNTIME.wall_ns()
    config = ["--config", str(settings_file(settings, tmp_path)), "check"]
    [early, before, lately] = (ChangeId.first(now_ns // 1_000_000 - minutes * 60_000) for minutes in (180, 20, 10))
    old, new = (blob_name(theirs.path, revision) for revision in (early, lately))
    async with open_storage(settings, RUNTIME) as storage, cells_of(settings) as table, open_backends(settings, RUNTIME) as backends:
        await storage.put(ObjectId.create("photos", "ours"), b"small")
        assert await backends.tiers.high_volume.put_inline("photos/objects/before", before, Inline(Metadata(size=1), b"x"))
        await table.mutate(b"photos/objects/damaged", set_cell("fm", b"m", b"{"), set_cell("fm", b"p", b""))
        assert "other software" not in (await run(tmp_path, config))[0]
        for target in (old, new):
            upload = await backends.tiers.long_term.open_upload(target, Metadata(), 3)
            await upload.write(b"big")
            await upload.finalise()
        await table.mutate(theirs.path.encode(), set_cell("fm", b"r", old.encode()))
        out, _ = await run(tmp_path, config)
        assert "4 rows were looked at, and none shows that other software writes beside this one; some are of other software" in out
        await table.mutate(theirs.path.encode(), set_cell("fm", b"r", new.encode()))
        out, _ = await run(tmp_path, config, code=3)
    assert f"problem other software wrote {theirs.path}, or extended its life, by 20" in out and "and this one wrote photos/objects/" in out
    assert "let only one of them write" in out


async def test_the_command_takes_a_bucket_by_a_word_only(settings: Settings, theirs: Settings, tmp_path: Path) -> None:
    assert theirs.gcs is not None
    endpoint = theirs.gcs.endpoint
    async with GcsBlobs.connect("theirs", RUNTIME, endpoint=endpoint) as blobs:
        upload = await blobs.open_upload(PATH, Metadata(), 3)
        await upload.write(b"big")
        await upload.finalise()
    assert theirs.bigtable is not None and settings.bigtable is not None
    config = ["--config", str(settings_file(theirs, tmp_path, changelog="noop"))]
    out, _ = await run(tmp_path, [*config, "provision"], code=3)
    assert "problem gs://theirs/ holds objects" in out and "--adopt-bucket" in out
    out, _ = await run(tmp_path, [*config, "provision", "--dry-run", "--adopt-bucket"])
    assert f"planned would give gs://theirs/ to this store, {theirs.bigtable.owner}, with what it holds" in out
    out, _ = await run(tmp_path, [*config, "provision", "--adopt-bucket"])
    assert f"done    gave gs://theirs/ to this store, {theirs.bigtable.owner}, with what it holds" in out
    out, _ = await run(tmp_path, [*config, "check"])
    assert f"ok      gs://theirs/ belongs to this store, {theirs.bigtable.owner}" in out

    config = ["--config", str(settings_file(changed(settings, "gcs", bucket="theirs"), tmp_path, changelog="bigtable"))]
    out, _ = await run(tmp_path, [*config, "check"], code=3)
    assert f"problem gs://theirs/ belongs to the store of {theirs.bigtable.owner}, and this is " in out
    _, said = await run(tmp_path, [*config, "rm", PATH], code=3)
    assert f"gs://theirs/ belongs to the store of {theirs.bigtable.owner}" in said
    _, said = await run(tmp_path, [*config, "recover", "--once"], OWN_PROCESS, code=3)
    assert f"gs://theirs/ belongs to the store of {theirs.bigtable.owner}" in said
    out, _ = await run(tmp_path, [*config, "provision", "--adopt-bucket-from", theirs.bigtable.owner])
    assert f"in place of {theirs.bigtable.owner}" in out


async def test_a_large_object_whose_path_is_too_long_for_the_prefix_is_refused_and_leaves_nothing(settings: Settings) -> None:
    below = changed(settings, "gcs", bucket="other", prefix="photos/")
    await provision(below)
    long, longest = ("a/objects/" + "k" * (size - len("a/objects/")) for size in (988 - len("photos/"), 987 - len("photos/")))
    async with open_storage(below, RUNTIME) as storage:
        await storage.put(ObjectId.parse(long), b"small")
        with pytest.raises(InvalidRequestError, match="GCS takes 1024"):
            await storage.put(ObjectId.parse(long), bytes(2 * MIB))
        stored = await storage.get(ObjectId.parse(long))
        assert stored is not None and await stored.read() == b"small", "nothing was done"
        await storage.put(ObjectId.parse(longest), bytes(2 * MIB))
    names, entries = await left_over(below)
    assert [name.rpartition("/")[0] for name in names] == [longest] and entries == 0


async def test_a_store_clears_payloads_apart_where_the_table_has_their_families(theirs: Settings) -> None:
    await provision(theirs)
    object_id = ObjectId.parse(PATH)
    async with cells_of(theirs) as table, open_storage(theirs, RUNTIME) as storage:
        small, large = (partial(storage.put, object_id, payload) for payload in (b"x", bytes(2 * MIB)))
        writes: list[Callable[[], Awaitable[object]]] = [small, partial(storage.delete, object_id), large]
        for write in writes:
            await table.mutate(PATH.encode(), set_cell("fpm", b"p", b"secret"), set_cell("fpg", b"p", b"secret"))
            await write()
            row = await table.read(PATH.encode())
            assert row is None or not {cell.family for cell in row.cells} & set(LEGACY_FAMILIES)


@pytest.mark.parametrize("families", [[], ["fpm"], [*LEGACY_FAMILIES]])
async def test_where_a_table_may_not_be_looked_at_deletions_tell_which_families_it_has(families: list[str]) -> None:
    """The server is simulated and refuses as the service does. The emulator would delete from a family it has not."""
    server = MemoryBigtable(RUNTIME, {"t": {**OBJECT_FAMILIES, **dict.fromkeys(families, OBJECT_FAMILIES["fm"])}})
    assert await told_by_deletions(BigtableTable(MemoryChannel(server), "t")) == set(families)
    assert server.tables["t"].rows == {}


async def test_a_large_object_is_read_with_what_its_caller_told_of_it(settings: Settings) -> None:
    told = Metadata(time_created_ns=1_700_000_000_123_456_789, unknown={"newer": ["ü"]}, custom={"k": "v"})
    object_id, before_ns = ObjectId.create("a", "large"), RUNTIME.wall_ns()
    async with open_storage(settings, RUNTIME) as storage:
        await storage.put(object_id, bytes(2 * MIB), told)
        head = await storage.head(object_id)
        assert head is not None and head.metadata == replace(told, size=2 * MIB)
        await storage.put(object_id, bytes(2 * MIB))
        head = await storage.head(object_id)
        assert head is not None and head.metadata.time_created_ns is not None
        assert before_ns - 1_000_000 <= head.metadata.time_created_ns <= RUNTIME.wall_ns()


async def test_what_a_reader_found_lost_is_known_after_it_until_it_is_replaced(settings: Settings) -> None:
    object_id = ObjectId.create("odd", "lost")

    async def look() -> Status:
        async with open_backends(settings, RUNTIME, writes=False) as backends:
            return await gather(backends, settings, RUNTIME)

    async with open_storage(settings, RUNTIME) as storage:
        await storage.put(object_id, b"x" * 2 * MIB)
        async with open_backends(settings, RUNTIME) as backends:
            [blob] = (await backends.tiers.long_term.list("", None, 10)).blobs
            await backends.tiers.long_term.delete(blob.name)
        with pytest.raises(DanglingTombstoneError):
            await storage.get(object_id)
    found = await look()
    assert judge(found).level is Level.LOST and found.lost_reads is not None
    assert [(each.path, each.blob) for each in found.lost_reads.objects] == [(object_id.path, blob.name)]
    async with open_storage(settings, RUNTIME) as storage:
        await storage.put(object_id, b"y")
    assert judge(await look()).level is not Level.LOST
