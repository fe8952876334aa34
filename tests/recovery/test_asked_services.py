"""`AskedServices`: what a tier can do, it can do as a clean-up asks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from changelog.base.errors import UnavailableError
from recovery.outages import AskedServices
from tiered.embedded.blobs import FileBlobs
from tiered.services.backends import Tiers
from tiered.services.breaker import LONG_TERM
from tiered.services.capabilities import BatchHeads, PartUploads, SignedUrls
from tiered.testing.clock import Clock
from tiered.testing.log import MemoryChangeLog
from tiered.testing.rows import MemoryRows

pytestmark = pytest.mark.anyio


async def asked(tmp_path: Path) -> tuple[Any, AskedServices]:
    blobs = await FileBlobs.open_directory(tmp_path / "store", Clock())
    return blobs, AskedServices(Tiers(MemoryRows(Clock()), blobs), MemoryChangeLog(Clock()))


async def test_an_asked_tier_can_do_what_its_tier_can(tmp_path: Path) -> None:
    blobs, services = await asked(tmp_path)
    assert isinstance(blobs, PartUploads)
    for capability in (PartUploads, BatchHeads, SignedUrls):
        assert isinstance(services.tiers.long_term, capability) == isinstance(blobs, capability)


async def test_a_method_that_a_test_replaces_later_is_the_one_that_is_called(tmp_path: Path) -> None:
    blobs, services = await asked(tmp_path)

    async def replaced(name: str) -> str:
        raise UnavailableError(f"replaced {name}")

    blobs.head = replaced
    with pytest.raises(UnavailableError, match="replaced a") as failed:
        await services.tiers.long_term.head("a")
    assert services.service_of(failed.value) == LONG_TERM
