"""`Capability`: who has one is asked in the same way on each Python."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import pytest

from changelog.base.capability import Capability


@runtime_checkable
class Flies(Capability, Protocol):
    def fly(self) -> str: ...


@runtime_checkable
class FliesFar(Flies, Protocol):
    async def rest(self) -> None: ...


class Bird:
    def fly(self) -> str:
        return "up"


class Stork(Bird):
    async def rest(self) -> None:
        pass


class PassesOn:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Caged(PassesOn):
    fly = None


@pytest.mark.parametrize(("what", "flies", "far"), [(Bird(), True, False), (Stork(), True, True), (object(), False, False)])
def test_it_is_had_behind_a_wrapper_unless_that_hides_it(what: object, flies: bool, far: bool) -> None:
    for each in (what, PassesOn(what), PassesOn(PassesOn(what))):
        assert (isinstance(each, Flies), isinstance(each, FliesFar)) == (flies, far)
    assert not isinstance(Caged(what), Flies) and not isinstance(PassesOn(Caged(what)), FliesFar)
