"""The blocking API has the methods, parameters, defaults and documented errors of the asynchronous one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from types import MemberDescriptorType
from typing import Any

import pytest

import tiered
import tiered.bulk
import tiered.sync
from tiered.directories import download_directory, upload_directory
from tiered.exports import export_objects, import_objects

STORAGES = tiered.TieredStorage, tiered.sync.SyncTieredStorage
OBJECTS = tiered.StoredObject, tiered.sync.SyncStoredObject
WRITERS = tiered.ObjectWriter, tiered.sync.SyncObjectWriter
MULTIPARTS = tiered.MultipartUpload, tiered.sync.SyncMultipartUpload
RESUMABLES = tiered.ResumableUpload, tiered.sync.SyncResumableUpload
RENAMED = {"aclose": "close"}
FILE = {"name", "read1", "peek", "readable", "release"}
"""What `tiered.sync.SyncStoredObject` has besides, because it is a file, and because `put` takes it over."""

DIFFERENT: dict[str, set[str]] = {
    "SyncStoredObject.read": {"size"},  # as files have it
    "import_objects": {"existing"},  # whose default needs an extra
}
"""Parameters that only one of the two has."""


def public(kind: type) -> dict[str, Any]:
    own = [each for each in kind.__mro__ if each.__module__.startswith("tiered")]
    return {RENAMED.get(name, name): value for each in own for name, value in vars(each).items() if not name.startswith("_")}


def parameters(method: Callable[..., object]) -> dict[str, tuple[object, object]]:
    return {each.name: (each.kind, each.default) for each in inspect.signature(method).parameters.values() if each.name != "self"}


def errors(method: object) -> set[str]:
    return set(re.findall(r"\b[A-Z]\w+Error\b", inspect.getdoc(method) or "")) - {"TieredError"}


def pairs() -> list[Any]:
    made = []
    for asynchronous, blocking in (STORAGES, OBJECTS, WRITERS, MULTIPARTS, RESUMABLES):
        theirs = public(blocking)
        made += [pytest.param(f"{blocking.__name__}.{name}", value, theirs.get(name), id=f"{blocking.__name__}.{name}")
                 for name, value in public(asynchronous).items()]
    functions: tuple[Any, ...] = (tiered.open_storage, upload_directory, download_directory, export_objects, import_objects)
    return [*made, *(pytest.param(each.__name__, each, getattr(tiered.sync, each.__name__), id=each.__name__) for each in functions)]


@pytest.mark.parametrize(("name", "asynchronous", "blocking"), pairs())
def test_a_method_is_there_with_the_same_parameters_and_documented_errors(name: str, asynchronous: Any, blocking: Any) -> None:
    assert blocking is not None, f"tiered.sync.{name} is missing"
    if isinstance(asynchronous, property | MemberDescriptorType):
        assert isinstance(blocking, property)
        return
    ours, theirs = parameters(asynchronous), parameters(blocking)
    different = {each for each in ours.keys() | theirs.keys() if ours.get(each) != theirs.get(each)}
    assert different == DIFFERENT.get(name, set())
    assert [each for each in theirs if each not in different] == [each for each in ours if each not in different]
    assert errors(asynchronous) <= errors(blocking) | errors(tiered.sync.SyncTieredStorage)


def test_messages_show_the_names_that_callers_import() -> None:
    named = [getattr(tiered.sync, name) for name in tiered.sync.__all__]
    assert [each for each in named if each.__module__ != ("types" if each is tiered.sync.Payload else "tiered.sync")] == []


def test_the_blocking_classes_have_nothing_else() -> None:
    assert set(public(STORAGES[1])) == set(public(STORAGES[0]))
    assert set(public(OBJECTS[1])) - set(public(OBJECTS[0])) == {"close"} - set(public(OBJECTS[0])) | FILE


def test_returned_types_are_those_of_the_asynchronous_methods() -> None:
    """Except that what must be awaited or iterated asynchronously has a blocking counterpart, as `SyncStoredObject`."""
    for name, method in public(STORAGES[0]).items():
        if inspect.isfunction(method):
            expected = re.sub(r"AsyncGenerator\[(.*?), None\]", r"Iterator[\1]", method.__annotations__["return"]).replace("StoredObject",
            "SyncStoredObject").replace("Bulk[", "SyncBulk[").replace("ObjectWriter", "SyncObjectWriter").replace("MultipartUpload",
            "SyncMultipartUpload").replace("ResumableUpload", "SyncResumableUpload").replace("SignedPut", "SyncSignedPut")
            assert public(STORAGES[1])[name].__annotations__["return"] == expected, name
