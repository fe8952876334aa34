"""Every flag of the public API is True or False: a text such as "no" would count as true.

The table is what the signatures say. So a new flag is a row by itself, and a new class or function needs a line here.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import tiered
import tiered.asgi
import tiered.directories
import tiered.exports
import tiered.sync
import tiered.testing
from tests.given.tapped_store import OBJECT, SMALL
from tiered import InvalidRequestError, ObjectId, ObjectPrefix, Settings, TieredStorage
from tiered.testing import blocking_memory_storage, memory_storage
from tiered.testing.in_memory import NOWHERE

pytestmark = pytest.mark.anyio

WRONG: list[Any] = ["no", "", 0, 1, None]
VALUES: dict[str, Any] = {
    "object_id": OBJECT, "source": OBJECT, "target": ObjectId.create("attachments", "copy"), "payload": b"x", "offset": 0,
    "expires_in": timedelta(hours=1), "prefix": ObjectPrefix.create("attachments", "2026/"), "object_ids": [OBJECT], "operation": "put",
    "from_creation": timedelta(days=1), "link": None, "mode": "wb", "headers": {}, "etag": None,
}  # fmt: skip
"""An argument for each parameter that must have one, by its name."""

SIGNING = Settings(directory=NOWHERE, links={"base_url": "https://files.example", "keys": ["Zq3v8YtLw0nBx5RkSj7dFh2mPc9gUaEe"]})
NO_FLAGS = {"ExportReport", "VerifyReport", "LoadedObject", "OutcomeUnknownError", "UploadEndedError", "TieredError", "SyncLoadedObject"}
"""What the store itself makes, for its callers to read."""


def flags(call: Callable[..., Any]) -> Iterator[str]:
    try:
        parameters = inspect.signature(call).parameters.values()
    except ValueError:
        return
    yield from (parameter.name for parameter in parameters if parameter.annotation in (bool, "bool"))


def table() -> Iterator[tuple[str, str, str]]:
    """The module, the function or method, and the flag."""
    for module in (tiered, tiered.directories, tiered.exports, tiered.sync, tiered.testing, tiered.asgi):
        for name in getattr(module, "__all__", ()):
            public = getattr(module, name)
            if name in NO_FLAGS or not callable(public):
                continue
            yield from ((module.__name__, name, flag) for flag in flags(public))
            for method in vars(public) if inspect.isclass(public) else ():
                if not method.startswith("_") and inspect.isfunction(vars(public)[method]):
                    yield from ((module.__name__, f"{name}.{method}", flag) for flag in flags(vars(public)[method]))


TABLE = list(dict.fromkeys(table()))


async def called(outcome: Any) -> None:
    """Goes through what a call returns: whatever is lazy finds out only then."""
    if isinstance(outcome, AbstractAsyncContextManager):
        async with outcome as inner:
            if inner is not outcome:
                await called(inner)
            elif isinstance(inner, AsyncIterable):
                async for result in inner:
                    refuse(result)
    elif isinstance(outcome, Awaitable):
        await called(await outcome)
    elif isinstance(outcome, AsyncIterable):
        async for result in outcome:
            refuse(result)


def called_blocking(outcome: Any) -> None:
    """The same for blocking callers."""
    if hasattr(outcome, "__enter__"):
        with outcome as inner:
            called_blocking(inner)
    elif hasattr(outcome, "__iter__"):
        for result in outcome:
            refuse(result)


def refuse(result: Any) -> None:
    """Raises the error of an item of a bulk call."""
    if (error := getattr(result, "error", None)) is not None:
        raise error


@pytest.fixture
async def storage() -> AsyncIterator[TieredStorage]:
    async with memory_storage(SIGNING) as storage:
        await storage.put(OBJECT, SMALL)
        yield storage


def test_the_table_knows_what_is_public() -> None:
    names = {name for _, name, _ in TABLE}
    assert {"TieredStorage.put", "TieredStorage.head", "ResumableUpload.append", "SyncResumableUpload.append", "PutRequest"} <= names
    assert len(TABLE) > 40


def arguments(call: Callable[..., Any], store: Any, path: Path) -> dict[str, Any]:
    """One for each parameter that must have one."""
    settings = Settings(directory=path / "store")
    values = VALUES | {"storage": store, "directory": path, "to": path / "export", "settings": settings}
    if call.__name__ in ("open_storage", "create_app"):
        values["source"] = settings
    return {each.name: values.get(each.name) for each in inspect.signature(call).parameters.values() if each.default is each.empty}


def names(rows: list[Any]) -> list[str]:
    return [".".join(row) for row in rows]


BLOCKING = [row for row in TABLE if row[0] == "tiered.sync"]
ASYNC = [row for row in TABLE if row not in BLOCKING]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("module", "name", "flag"), ASYNC, ids=names(ASYNC))
async def test_a_flag_is_true_or_false(storage: Any, tmp_path: Path, module: str, name: str, flag: str) -> None:
    for wrong in WRONG:
        owner, _, method = name.rpartition(".")
        match owner:
            case "":
                call = getattr(import_module(module), method)
            case "ResumableUpload":
                call = getattr(await storage.begin_resumable(OBJECT), method)
            case "Settings":
                call = getattr(SIGNING, method)
            case "Faults":
                call = getattr(storage.faults, method)
            case _:
                call = getattr(storage, method)
        given = arguments(call, storage, tmp_path) | {flag: wrong}
        with pytest.raises(InvalidRequestError, match=f"{flag} is True or False"):
            await called(storage.put_many([call(**given)]) if name == "PutRequest" else call(**given))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("module", "name", "flag"), BLOCKING, ids=names(BLOCKING))
def test_a_flag_of_the_blocking_calls_is_true_or_false(tmp_path: Path, module: str, name: str, flag: str) -> None:
    with blocking_memory_storage(SIGNING) as storage:
        storage.put(OBJECT, SMALL)
        for wrong in WRONG:
            owner, _, method = name.rpartition(".")
            store: Any = storage.begin_resumable(OBJECT) if owner == "SyncResumableUpload" else storage
            call = getattr(store, method) if owner else getattr(import_module(module), method)
            with pytest.raises(InvalidRequestError, match=f"{flag} is True or False"):
                called_blocking(call(**arguments(call, storage, tmp_path) | {flag: wrong}))
    assert not list(tmp_path.iterdir())
