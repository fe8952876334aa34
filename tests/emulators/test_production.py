"""The store as a service opens it, on both emulators: from settings to objects, and every way in which that can be wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from changelog.runtime import SystemRuntime
from emulators.up import BUILT_IN, start_emulators
from tiered import ConfigurationError, Metadata, ObjectId, PutRequest, Settings, Tier, TieredStorage, UnavailableError, open_storage
from tiered.compose import open_backends
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


def changed(settings: Settings, section: str, **values: Any) -> Settings:
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
    metadata = Metadata(content_type="text/plain", filename="größe.txt", custom={"build": "a/b"})
    async with open_storage(settings, RUNTIME) as storage:
        for size, tier in ((10, Tier.HIGH_VOLUME), (2 * MIB, Tier.LONG_TERM), (5, Tier.HIGH_VOLUME)):
            assert (await storage.put(object_id, b"x" * size, metadata)).tier is tier
            stored = await storage.get(object_id)
            assert stored is not None and await stored.read() == b"x" * size
            assert (stored.metadata.content_type, stored.metadata.filename, stored.metadata.custom) == (
                "text/plain", "größe.txt", {"build": "a/b"},
            )  # fmt: skip
            head = await storage.head(object_id)
            assert head is not None and (head.size, head.tier) == (size, tier)
            assert [listed async for listed in storage.list("odd/")] == [object_id]
        await storage.delete(object_id)
        assert await storage.get(object_id) is None
    assert await left_over(settings) == ([], 0)


async def test_a_payload_of_unknown_size_goes_through_a_session_and_one_that_breaks_leaves_nothing(settings: Settings) -> None:
    async def pieces(*, broken: bool) -> AsyncIterator[bytes]:
        for _ in range(40):
            yield bytes(100_000)
        if broken:
            raise ArithmeticError

    object_id = ObjectId.create("streams", "k")
    async with open_storage(settings, RUNTIME) as storage:
        assert (await storage.put(object_id, pieces(broken=False))).size == 4_000_000
        with pytest.raises(ArithmeticError):
            await storage.put(object_id, pieces(broken=True))
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
        assert [listed async for listed in storage.list()] == []
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
    settings = settings.model_copy(update={"store": StoreSettings(cleanup_budget_s=0.1)})
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
