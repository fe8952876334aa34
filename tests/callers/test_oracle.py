"""The oracle sees what it is there for: each kind of violation is planted in a store that is else the real one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
import pytest

import emulators.callers.episode_run as runner
from emulators.callers import values
from emulators.callers.episode_recipe import CallerStep, CallKind, EpisodeRecipe, Item
from emulators.callers.episode_run import run
from emulators.callers.interrupt import How, Interrupt
from emulators.callers.payloads import Payload
from emulators.callers.verdict import EpisodeResult, step_part
from tests.suites import share
from tiered import (
    ListEntry,
    Metadata,
    ObjectId,
    ObjectWriter,
    OffsetMismatchError,
    Part,
    PutRequest,
    ResumableUpload,
    StoredObject,
    TieredStorage,
    UploadEndedError,
)
from tiered.embedded.blobs import FileUpload
from tiered.payload.checksums import DeclaredChecksums
from tiered.protocol.assembling import Assembler
from tiered.protocol.listing import Lister
from tiered.stored import ProgressCount

OBJECT = values.Value("OBJECT", lambda: ObjectId.create("photos", "cat"))
SMALL, LARGE = Payload("bytes", 10, 1), Payload("async generator", 5000, 2)
NOTHING = values.exactly(None)
PUT = CallerStep(0, CallKind.PUT, {"id": OBJECT, "metadata": NOTHING}, SMALL)
PUT_LARGE = replace(PUT, number=1, payload=LARGE)
GET = CallerStep(2, CallKind.GET, {"id": OBJECT}, manner="read whole")
GROUNDS = ["embedded on asyncio", "embedded on trio", "simulated"]


def recipe(*steps: CallerStep, ground: str = "embedded on asyncio") -> EpisodeRecipe:
    settings: dict[str, object] = {"inline_bytes_max": 100, "changelog": "sqlite", "store": {"concurrency_max": 8, "queue_max": 8}}
    return EpisodeRecipe(1, ground, settings, (OBJECT,), steps)


def kind(result: EpisodeResult) -> str | None:
    return None if result.violation is None else result.violation.kind


def planted(
    monkeypatch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any], *steps: CallerStep, on: type = TieredStorage
) -> str | None:
    """What the oracle says when `wrong`, which is passed the real method, stands in for it."""
    real = getattr(on, name)

    async def stands_in(*arguments: Any, **named: Any) -> Any:
        return await wrong(real, *arguments, **named)

    monkeypatch.setattr(on, name, stands_in)
    return kind(run(recipe(*steps)))


@pytest.mark.parametrize("ground", GROUNDS)
def test_honest_store_is_found_honest(ground: str) -> None:
    bulk = CallerStep(3, CallKind.PUT_MANY, {"concurrency": NOTHING}, items=(Item(OBJECT, SMALL, NOTHING),), manner="a list, all results")
    cancelled = replace(PUT_LARGE, number=4, interrupt=Interrupt(How.SCOPE, 3))
    result = run(recipe(PUT, GET, PUT_LARGE, replace(GET, number=5), bulk, cancelled, ground=ground))
    assert result.violation is None, result.violation
    assert any("cancelled" in line for line in result.trace)


def test_error_that_is_not_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, *arguments: Any) -> Any:
        raise IndexError("list index out of range")

    assert planted(monkeypatch, "put", wrong, PUT) == "raw error"


def test_byte_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, stored: StoredObject) -> bytes:
        return (await real(stored))[:-1]  # type: ignore[no-any-return]

    assert planted(monkeypatch, "read", wrong, PUT, GET, on=StoredObject) == "wrong answer"


def test_progress_that_ends_no_put(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deaf(self: ProgressCount, size: int, total: int | None) -> None:
        with suppress(values.ProgressError):
            self._progress(size, total)

    monkeypatch.setattr(ProgressCount, "add", deaf)
    heard = values.Value("progress", lambda: values.Heard(raises_at=1))
    assert kind(run(recipe(replace(PUT, arguments={**PUT.arguments, "progress": heard})))) == "taken"


@pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["small", "large"])
def test_checksum_that_is_not_compared(monkeypatch: pytest.MonkeyPatch, payload: Payload) -> None:
    other = values.Value("other sha256", lambda: lambda content: {"sha256": "0" * 64}, values.Is.WRONG)
    step = replace(PUT, payload=payload, arguments={**PUT.arguments, "checksums": other})
    assert kind(run(recipe(step))) is None
    monkeypatch.setattr(DeclaredChecksums, "compare", lambda _: None)
    assert kind(run(recipe(step))) == "taken"


def test_what_is_told_at_the_end_and_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    told = values.Value("told", lambda: values.ToldAtEnd({"a": "b"}, later=True, raises=False))
    steps = replace(PUT_LARGE, arguments={**PUT.arguments, "custom_at_end": told}), GET
    assert kind(run(recipe(*steps))) is None
    monkeypatch.setattr(FileUpload, "amend", lambda *_: None)
    assert kind(run(recipe(*steps))) == "wrong answer"


def test_a_block_that_fails_and_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    step = CallerStep(0, CallKind.OPEN, PUT.arguments, SMALL, manner="block raises")
    assert kind(run(recipe(step, replace(step, number=1, manner="to its end"), GET))) is None
    real = ObjectWriter.__aexit__

    async def deaf(self: ObjectWriter, *raised: object) -> None:
        await real(self, None, None, None)

    monkeypatch.setattr(ObjectWriter, "__aexit__", deaf)
    assert kind(run(recipe(step, GET))) == "wrong answer"


@pytest.mark.parametrize("wrong", ["an object that is left out", "a size that is wrong"])
def test_list_that_is_wrong(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    real = Lister._finished

    async def stands_in(self: Lister, listing: Any, items: Any) -> Any:
        found = await real(self, listing, items)
        return [] if wrong == "an object that is left out" else [replace(entry, size=1) for entry in found if isinstance(entry, ListEntry)]

    monkeypatch.setattr(Lister, "_finished", stands_in)
    listed = CallerStep(9, CallKind.LIST, {"metadata": values.exactly(True)}, manner="to its end")
    assert kind(run(recipe(PUT, listed))) == "wrong answer"


def test_metadata_that_is_not_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, storage: Any, object_id: Any, payload: Any, metadata: Any = None) -> Any:
        return await real(storage, object_id, payload, Metadata(custom={"other": "x"}))

    assert planted(monkeypatch, "put", wrong, PUT, GET) == "wrong answer"


def test_condition_in_a_bulk_put_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, storage: Any, share: Any, places: Any, request: PutRequest) -> Any:
        return await real(storage, share, places, replace(request, if_absent=False))

    absent = values.Value("if_absent", lambda: {"if_absent": True})
    items = (Item(OBJECT, SMALL, NOTHING, condition=absent),)
    bulk = CallerStep(3, CallKind.PUT_MANY, {"concurrency": NOTHING}, items=items, manner="a list, all results")
    assert kind(run(recipe(PUT, bulk))) is None
    assert planted(monkeypatch, "_put", wrong, PUT, bulk) == "taken"


@pytest.mark.parametrize("ground", GROUNDS)
def test_a_wrong_payload_may_be_refused_for_its_condition_too(ground: str) -> None:
    """Seed 579037392: a large payload is read no further where the condition is false."""
    absent = values.Value("if_absent", lambda: {"if_absent": True})
    wrong = replace(PUT_LARGE, arguments=PUT.arguments | {"condition": absent}, payload=Payload("iterable of wrong types", 300_000, 2))
    result = run(recipe(PUT, wrong, ground=ground))
    assert result.violation is None, result.violation


MULTIPART = CallerStep(0, CallKind.MULTIPART, PUT.arguments, Payload("bytes", 999, 1))
RESUMABLE = replace(MULTIPART, call=CallKind.RESUMABLE)
ENDS = "no list, overwrite, no list, its list, a shorter list, a changed list, abort, part by link"


@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize("step", share([
    replace(MULTIPART, manner=f"a changed list, no list, part, part, part by link, part by link, a changed list, {ENDS}"),
    replace(MULTIPART, manner=f"part, part, part, part, a shorter list, {ENDS}"),
    replace(MULTIPART, manner="part, abort, abort, part, part by link, no list, a changed list"),
    replace(MULTIPART, manner="part, abort beside, its list, abort, abort beside"),
    replace(RESUMABLE, manner="no list, append, two at once, append elsewhere, another part_bytes, append, no list, append, no list"),
    replace(RESUMABLE, manner="append, append, part, no list, abort, status, two at once"),
    replace(RESUMABLE, manner="append, abort beside, abort beside, append"),
], 4), ids=lambda step: step.manner)  # fmt: skip
def test_an_honest_upload_is_found_honest(step: CallerStep, ground: str) -> None:
    for salt in range(4):
        result = run(recipe(replace(step, payload=Payload("bytes", 999, salt)), replace(GET, number=1), ground=ground))
        assert result.violation is None, (result.violation, result.trace)
        assert len(result.trace) == 2 + len(step.manner.split(", ")), result.trace  # each call was made, and a read


UPLOAD_FAULTS: dict[str, tuple[type, str, Callable[..., Any], CallerStep, str]] = {
    "the list is ignored": (
        Assembler, "complete", lambda real, self, of, upload_id, parts, *rest, **named: real(self, of, upload_id, None, *rest, **named),
        replace(MULTIPART, manner="part, part, part, a changed list"), "taken"),
    "another list later": (
        Assembler, "_completed_size", lambda real, self, write, parts: real(self, write, None),
        replace(MULTIPART, manner="part, part, no list, overwrite, a changed list"), "taken"),
    "a completed upload is forgotten": (
        Assembler, "_completed_size", lambda real, self, write, parts: real(self, write, [Part(1, 1, None, "x")]),
        replace(MULTIPART, manner="part, part, no list, overwrite, no list"), "refused"),
    "an end that nobody can tell": (
        Assembler, "_ended", lambda real, self, *rest: _raised(UploadEndedError(rest[0], rest[1], completed=None)),
        replace(MULTIPART, manner="part, no list, abort"), "wrong answer"),
    "an offset that nobody compares": (
        Assembler, "take", lambda real, self, object_id, upload_id, offset, *rest: _taken(real, self, object_id, upload_id, *rest),
        replace(RESUMABLE, manner="append, append elsewhere"), "taken"),
    "two who append": (
        ResumableUpload, "append", lambda real, self, offset, piece, final: _kept(real, self, offset, piece),
        replace(RESUMABLE, manner="append, two at once"), "wrong answer"),
    "a part that is lost": (
        Assembler, "put_part", lambda real, self, *rest: _passed(Part(1, 1, None, "x")),
        replace(MULTIPART, manner="part by link"), "wrong answer"),
}  # fmt: skip


@pytest.mark.parametrize("fault", UPLOAD_FAULTS)
def test_an_upload_that_is_not_what_it_was_told(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    on, name, wrong, step, finds = UPLOAD_FAULTS[fault]
    assert planted(monkeypatch, name, wrong, step, GET, on=on) == finds


async def _passed(value: Any) -> Any:
    return value


async def _raised(error: Exception) -> Any:
    raise error


async def _kept(real: Any, self: ResumableUpload, offset: int, piece: bytes) -> int:
    try:
        return await real(self, offset, piece, final=True)  # type: ignore[no-any-return]
    except OffsetMismatchError:
        return offset + len(piece)


async def _taken(real: Any, self: Assembler, object_id: ObjectId, upload_id: str, *rest: Any) -> Any:
    return await real(self, object_id, upload_id, await self.appended(object_id, upload_id), *rest)  # type: ignore[arg-type]


def test_put_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, storage: Any, object_id: Any, payload: Any, metadata: Any = None) -> Any:
        result = await real(storage, object_id, payload, metadata)
        await storage.delete(object_id)
        return result

    assert planted(monkeypatch, "put", wrong, PUT) == "wrong answer"


def test_failed_put_that_took_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, storage: Any, object_id: Any, payload: Any, metadata: Any = None) -> Any:
        await real(storage, object_id, b"nevertheless")
        return await real(storage, object_id, payload, metadata)

    junk = replace(PUT, payload=Payload("memoryview with gaps", 10, 1))
    assert planted(monkeypatch, "put", wrong, junk, GET) == "wrong answer"


def test_call_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, *arguments: Any) -> Any:
        await anyio.sleep(10_000)

    monkeypatch.setattr("emulators.callers.ground.Embedded.budget_s", 0.5)
    assert planted(monkeypatch, "put", wrong, PUT) == "hang"


def test_loop_that_is_starved(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, *arguments: Any) -> Any:
        while True:
            time.monotonic()

    monkeypatch.setattr(runner, "STUCK_AFTER_S", 1.0)
    assert planted(monkeypatch, "put", wrong, PUT) == "hang"


def test_cancellation_that_is_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, *arguments: Any) -> Any:
        try:
            await anyio.sleep(10_000)
        except BaseException:  # noqa: BLE001 - that is what is planted
            return await real(*arguments)

    cancelled = replace(PUT, interrupt=Interrupt(How.TASK, 1))
    assert planted(monkeypatch, "put", wrong, cancelled) == "swallowed"


def test_good_call_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, storage: Any, object_id: Any, *arguments: Any) -> Any:
        return await real(storage, object_id, "text")

    assert planted(monkeypatch, "put", wrong, PUT) == "refused"


def test_wrong_call_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, storage: Any, object_id: Any, *arguments: Any) -> Any:
        return await real(storage, object_id, b"text")

    assert planted(monkeypatch, "put", wrong, replace(PUT, payload=Payload("text", 10, 1))) == "taken"


def test_thread_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()

    async def wrong(real: Any, *arguments: Any) -> Any:
        threading.Thread(target=end.wait, name="stays").start()
        return await real(*arguments)

    monkeypatch.setattr(runner, "ENDED_WITHIN_S", 0.2)
    try:
        assert planted(monkeypatch, "put", wrong, PUT) == "left behind"
    finally:
        end.set()


def test_file_that_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    async def wrong(real: Any, *arguments: Any) -> Any:
        opened.append(os.open(os.devnull, os.O_RDONLY))
        return await real(*arguments)

    monkeypatch.setattr(runner, "ENDED_WITHIN_S", 0.2)
    try:
        assert planted(monkeypatch, "get", wrong, GET) == "left behind"
    finally:
        for each in opened:
            os.close(each)


def test_a_pipe_that_a_library_of_other_tests_opens_was_called_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe: list[int] = []

    async def wrong(real: Any, *arguments: Any) -> Any:
        pipe.extend(os.pipe())
        return await real(*arguments)

    monkeypatch.setattr(runner, "ENDED_WITHIN_S", 0.2)
    try:
        assert planted(monkeypatch, "get", wrong, GET) is None
    finally:
        for each in pipe:
            os.close(each)


def test_file_that_stays_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, storage: Any, *arguments: Any) -> Any:
        result = await real(storage, *arguments)
        (storage._settings.directory / "left").touch()
        return result

    assert planted(monkeypatch, "put", wrong, PUT) == "left behind"


def test_coroutine_that_is_never_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong(real: Any, storage: Any, *arguments: Any) -> Any:
        storage.head(arguments[0])
        return await real(storage, *arguments)

    assert planted(monkeypatch, "get", wrong, GET) == "unheard"


def test_recipe_is_the_same_every_time() -> None:
    for seed in range(200):
        assert list(EpisodeRecipe.of(seed).words()) == list(EpisodeRecipe.of(seed).words())


def test_step_is_the_same_when_others_are_left_out() -> None:
    whole = EpisodeRecipe.of(3)
    less = whole.without([step_part(whole.steps[0].number)])
    assert [str(step) for step in less.steps] == [str(step) for step in whole.steps[1:]]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.night), pytest.param(2, marks=pytest.mark.night)])
def test_simulated_episode_is_the_same_every_time(seed: int) -> None:
    chosen = EpisodeRecipe.of(seed, "simulated")
    first, second = run(chosen), run(chosen)
    assert first.trace == second.trace
    assert kind(first) == kind(second)
