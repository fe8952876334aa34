"""Blobs of one size with their rows, damaged or not, and one audit of all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from recovery.audit.finding import Finding, Summary
from recovery.audit.manifest import Bounds, Verify
from recovery.audit.sweeping.sweep import audit_range
from tests.given.audit_grounds import OLD_NS, AuditGround, EmbeddedGround
from tests.given.planted_world import CUTOFF
from tiered.services.backends import LongTermBackend

PATH = "a/objects/k"
SIZE = 1000


async def plant(ground: AuditGround, path: str = PATH, *, row: bool = True, deadline_ns: int | None = None) -> str:
    name = f"{path}/{ground.clock.at(OLD_NS)}"
    await ground.blob(name, SIZE, OLD_NS, None)
    if row:
        await ground.row(path, name, deadline_ns)
    ground.clock.now_ns = CUTOFF.as_of_ns
    return name


def cut(ground: EmbeddedGround, name: str, size: int = SIZE // 2) -> None:
    file = ground.file_of(name)
    file.write_bytes(file.read_bytes()[:size])


def flip(ground: EmbeddedGround, name: str, at: int) -> None:
    raw = bytearray(ground.file_of(name).read_bytes())
    raw[at] ^= 1
    ground.file_of(name).write_bytes(raw)


async def audit(ground: AuditGround, verify: Verify | None = None, long_term: object | None = None) -> tuple[Summary, list[Finding]]:
    found: list[Finding] = []
    tiers = ground.tiers if long_term is None else replace(ground.tiers, long_term=cast(LongTermBackend, long_term))
    everything = Bounds(start="", end=None)
    return await audit_range(tiers, ground.log, everything, CUTOFF, ground.clock, found.extend, verify=verify), found


class Wrapped:
    """A long-term tier, some of whose methods are others'."""

    def __init__(self, blobs: LongTermBackend, **methods: Any) -> None:
        self._blobs = blobs
        vars(self).update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)
