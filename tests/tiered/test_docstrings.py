"""The docstring of a call has its arguments and errors one a line: the site makes tables of them (mkdocs.yml)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import tiered
import tiered.sync

CLASSES = (
    tiered.TieredStorage, tiered.MultipartUpload, tiered.ResumableUpload,
    tiered.sync.SyncTieredStorage, tiered.sync.SyncMultipartUpload, tiered.sync.SyncResumableUpload,
)  # fmt: skip
CALLS = [
    pytest.param(kind, method, id=f"{kind.__name__}.{name}")
    for kind in CLASSES for name, method in vars(kind).items() if inspect.isfunction(method) and not name.startswith("_")
]  # fmt: skip
CLEAR = {"object_id", "object_ids", "prefix"}
"""They need no words."""


def listed(call: Callable[..., Any], section: str) -> list[str]:
    _, _, rest = (inspect.getdoc(call) or "").partition(f"\n{section}:\n")
    return re.findall(r"^    (\w+): \S", rest.partition("\n\n")[0], re.M)


def explained(kind: type, call: Callable[..., Any]) -> set[str]:
    """The parameters of which the docstring says something, or that of the call which it names instead."""
    text = " ".join((inspect.getdoc(call) or "").split())
    other = re.search(r"\b(?:arguments|rules)(?: and (?:errors|rules))? are those of `(\w+)`", text)
    return {*listed(call, "Args")} | (explained(kind, getattr(kind, other[1])) if other else set())


@pytest.mark.parametrize(("kind", "call"), CALLS)
def test_each_argument_has_a_line(kind: type, call: Callable[..., Any]) -> None:
    parameters = [name for name in inspect.signature(call).parameters if name != "self"]
    there = listed(call, "Args")
    assert there == [name for name in parameters if name in there]
    assert len({*parameters} - CLEAR) < 2 or {*parameters} - CLEAR - explained(kind, call) == set()


@pytest.mark.parametrize(("kind", "call"), CALLS)
def test_each_error_has_a_line(kind: type, call: Callable[..., Any]) -> None:
    errors = listed(call, "Raises")
    assert [name for name in errors if not issubclass(getattr(tiered, name), tiered.TieredError)] == []
    assert re.findall(r"\bRaises [^.]*`\w+Error`", inspect.getdoc(call) or "") == []
    assert re.findall(r"^`\w+Error`[:,]", inspect.getdoc(call) or "", re.M) == []
