"""The blocking API in hands that make mistakes: no call hangs, and nothing that was cut off seems complete."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any

import anyio
import pytest

from tests.tiered.sync.test_storage import FORKING, in_child
from tiered import InvalidRequestError, ObjectId, PutRequest, UnavailableError
from tiered.testing import BlockingMemoryStorage, blocking_memory_storage

LARGE = bytes(range(256)) * 10_000
OBJECT = ObjectId.create("notes", "key")


def named(number: int) -> ObjectId:
    return ObjectId.create("notes", f"{number:04}")


@pytest.fixture
def storage() -> Iterator[BlockingMemoryStorage]:
    with blocking_memory_storage() as storage:
        yield storage


def within_seconds(call: Callable[[], object]) -> list[object]:
    """What a call returns or raises, in a thread of its own, so that a call that hangs fails the test."""
    told: list[object] = []

    def tell() -> None:
        try:
            told.append(call())
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            told.append(error)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it hangs"
    return told


# --- reading -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1000, -1])
def test_after_an_error_an_object_is_closed_and_never_seems_to_be_at_its_end(storage: BlockingMemoryStorage, size: int) -> None:
    storage.put(OBJECT, LARGE)
    storage.faults.fail("read")
    stored = storage.get(OBJECT)
    assert stored is not None
    with pytest.raises(UnavailableError):
        list(iter(lambda: stored.read(size), b""))
    assert stored.closed
    with pytest.raises(InvalidRequestError, match="was closed; get it again"):
        stored.read(size)


def test_a_listing_that_was_interrupted_does_not_seem_complete(storage: BlockingMemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        storage.put(named(number), b"")
    listed = storage.list()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(listed, "_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(listed)
    with pytest.raises(InvalidRequestError, match="interrupted and is not complete"):
        next(listed)


def test_threads_that_share_an_open_object_get_each_byte_once(storage: BlockingMemoryStorage) -> None:
    numbers = b"".join(number.to_bytes(4) for number in range(100_000))
    storage.put(OBJECT, numbers)
    stored, found = storage.get(OBJECT), list[bytes]()
    assert stored is not None
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda: found.extend(iter(lambda: stored.read(40), b""))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval)
    assert b"".join(sorted(found)) == numbers


def test_threads_may_share_a_listing(storage: BlockingMemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.sync.calls.TAKEN_AT_ONCE", 5)
    for number in range(100):
        storage.put(named(number), b"")
    listed, found = storage.list(), list[object]()
    threads = [threading.Thread(target=lambda: found.extend(entry.object_id for entry in listed)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == len(set(found)) == 100


# --- bulk calls --------------------------------------------------------------------------------------


def test_requests_that_ask_for_their_own_results_are_refused_and_do_not_hang(storage: BlockingMemoryStorage) -> None:
    def take() -> object:
        def requests() -> Iterator[PutRequest]:
            yield PutRequest(OBJECT, b"")
            next(results)

        with storage.put_many(requests()) as results:
            return list(results)

    [error] = within_seconds(take)
    assert isinstance(error, InvalidRequestError) and "from within itself" in str(error)


def test_a_bulk_call_that_is_left_while_other_threads_take_its_results_ends_for_all_of_them(storage: BlockingMemoryStorage) -> None:
    began, told, bulk = threading.Event(), list[object](), list[Any]()

    def slow() -> Iterator[bytes]:
        yield b"x"
        began.set()
        while bulk[0]._open:  # until the block is left: none of them ends before
            time.sleep(0.01)
        yield b"y"

    def leave() -> list[threading.Thread]:
        with storage.put_many([PutRequest(named(number), slow()) for number in range(4)]) as results:
            bulk.append(results)
            threads = [threading.Thread(target=lambda: told.extend(within_seconds(lambda: list(results)))) for _ in range(3)]
            for thread in threads:
                thread.start()
            began.wait(20)
        return threads

    [threads] = within_seconds(leave)
    assert isinstance(threads, list)
    for thread in threads:
        thread.join(20)
    assert len(told) == 3 and all(isinstance(each, InvalidRequestError) for each in told)


def test_a_bulk_call_goes_on_after_an_interruption_and_loses_no_result(storage: BlockingMemoryStorage) -> None:
    def take(interrupted_at: int) -> list[object]:
        def requests() -> Iterator[PutRequest]:
            for number in range(20):
                if number == interrupted_at:
                    raise KeyboardInterrupt
                yield PutRequest(named(number), b"")

        taken = list[object]()
        with storage.put_many(requests()) as results:
            while True:
                try:
                    taken.append(next(results).position)
                except KeyboardInterrupt:
                    taken.append("interrupted")
                except UnavailableError:
                    return taken

    [taken] = within_seconds(lambda: take(7))
    assert isinstance(taken, list) and set(taken) == {*range(7), "interrupted"} and len(taken) == 8


def test_a_bulk_call_that_nobody_leaves_ends_when_nobody_refers_to_it(storage: BlockingMemoryStorage) -> None:
    before = storage._storage._payloads._bulk_free
    results = storage.put_many([PutRequest(named(number), iter([b"x"])) for number in range(9)])
    results.__enter__()
    storage.head(OBJECT)
    assert storage._storage._payloads._bulk_free < before
    del results
    gc.collect()
    for _ in range(200):
        if storage._storage._payloads._bulk_free == before:
            return
        storage.head(OBJECT)
    pytest.fail("its places are still held")


@FORKING
def test_a_child_that_is_forked_while_another_thread_waits_for_a_result_is_refused(storage: BlockingMemoryStorage) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        began.set()
        go_on.wait(20)
        yield b"x"

    listed = storage.list()
    with storage.put_many([PutRequest(OBJECT, slow())]) as results:
        thread = threading.Thread(target=lambda: list(results))
        thread.start()
        began.wait(20)
        refused = in_child([lambda: next(results), lambda: next(listed), lambda: results.__exit__(None, None, None)])
        go_on.set()
        thread.join(20)
    assert [line[:50] for line in refused] == ["InvalidRequestError: this process was forked after"] * 2 + ["None"]
    assert [entry.object_id for entry in storage.list()] == [OBJECT]


# --- where it is called from -------------------------------------------------------------------------


def test_an_error_that_ends_programs_ends_one_call_and_not_the_event_loop(storage: BlockingMemoryStorage) -> None:
    class Leaving:
        """A path that lets the program exit when it is looked at in the event loop."""

        looks = 0

        def __fspath__(self) -> str:
            self.looks += 1
            if self.looks > 1:
                raise SystemExit(3)
            return "/etc/hostname"

    [error] = within_seconds(lambda: storage.put(OBJECT, Leaving()))
    assert isinstance(error, SystemExit)
    [done] = within_seconds(lambda: storage.put(OBJECT, b"x").size)
    assert done == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thread_whose_context_names_an_event_loop_may_call_it(storage: BlockingMemoryStorage, backend: str) -> None:
    def use() -> object:
        with blocking_memory_storage() as other:
            other.put(OBJECT, iter([b"x"]))
        return storage.put(OBJECT, iter([LARGE])).size

    async def main() -> object:
        if backend == "asyncio":
            return await asyncio.to_thread(use)
        context = copy_context()
        return await anyio.to_thread.run_sync(lambda: within_seconds(lambda: context.run(use))[0])

    assert anyio.run(main, backend=backend) == len(LARGE)


def test_a_signal_handler_may_use_the_store_while_a_call_waits(storage: BlockingMemoryStorage) -> None:
    def payload() -> Iterator[bytes]:
        yield LARGE
        signal.raise_signal(signal.SIGALRM)
        yield LARGE

    def handle(*_: object) -> None:
        storage.put(named(1), json.dumps({"alarm": True}).encode())

    before = signal.signal(signal.SIGALRM, handle)
    try:
        assert storage.put(OBJECT, payload()).size == 2 * len(LARGE)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert storage.head(named(1)) is not None
