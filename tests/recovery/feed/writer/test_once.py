"""A run with `once` beside another writer: it ends, and what it says is true."""

from __future__ import annotations

import anyio
import pytest

from changelog.base.errors import ConfigurationError, UnavailableError
from recovery.feed.writer.supervisor import FeedRun
from tests.given.fed_store import FedStore

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("virtual_time")]


async def beside(store: FedStore, once: FeedRun) -> None:
    """Runs it beside a writer that lives. If that does not end within an hour, it is a failure."""
    living = store.run()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(living.run)
        await store.runtime.sleep(1)
        failure: Exception | None = None
        try:
            with anyio.fail_after(3600):
                await once.run()
        except (UnavailableError, ConfigurationError) as error:
            failure = error
        living.stop()
    if failure is not None:
        raise failure


async def test_once_beside_a_living_writer_ends_when_that_one_has_published_what_was_there(store: FedStore) -> None:
    await store.put("a")
    once = store.run(once=True)
    await beside(store, once)
    view, _ = store.sink.view()
    assert view == await store.references() and len(view) == 1
    assert once.written.other is not None and once.written.other != once.writer.name
    assert (once.written.frontier or 0) > 1 and once.written.updates == 0
    assert await store.kept() == 0


async def test_once_beside_a_living_writer_whose_sink_is_away_ends_with_an_error(store: FedStore) -> None:
    await store.put("a")
    store.sink.is_away = True
    with pytest.raises(UnavailableError, match=r"another writer .*: the sink https://memory/feed does not have all of it"):
        await beside(store, store.run(once=True))


async def test_a_new_generation_is_not_begun_beside_a_living_writer(store: FedStore) -> None:
    await store.put("a")
    with pytest.raises(ConfigurationError, match="stop it before you begin a new generation"):
        await beside(store, store.run(once=True, new_generation=True))
    assert len({segment.generation for segment in store.sink.segments}) == 1


async def test_once_takes_over_from_a_writer_that_was_killed(store: FedStore) -> None:
    killed = store.run()
    await killed.writer.open()
    await store.put("a")
    once = await store.run_once()
    assert once.written.other is None
    assert store.sink.view()[0] == await store.references()
